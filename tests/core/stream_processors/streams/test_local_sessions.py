"""The sessions of the open partitions: forms of a key, what is absent, and what is not local."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from sessionary.schemas.ids import SessionKey, partition_of
from sessionary.schemas.records import SessionState
from sessionary.stream_processors.core.model import LogRecord
from sessionary.stream_processors.errors import NotLocal
from sessionary.stream_processors.runtime.assignment import Assignment
from sessionary.stream_processors.streams.sessions_table import LocalSessions
from tests.core.oracle_rig import START_MS
from tests.core.store_rig import StoreRig
from tests.core.stream_processors.streams.local_rows import PARTITIONS, PartitionedRows
from tests.support.event_factory import EventFactory

ALL = tuple(range(PARTITIONS))


def record_of(agent: EventFactory, event_type: str, offset: int) -> LogRecord:
    return LogRecord(offset, START_MS + offset, agent.key.encoded(), agent.event_bytes(event_type))


def sessions_of(rows: Any) -> LocalSessions:
    return LocalSessions(rows, PARTITIONS)


def test_every_form_of_a_key_reads_the_same_session() -> None:
    rows = PartitionedRows(*ALL)
    sessions, key = sessions_of(rows), rows.keys[0]
    tenant_id, _, session_id = key.partition(":")
    session = sessions[key]
    assert isinstance(session, SessionState)
    assert (session.tenant_id, session.session_id, session.owner_service) == (tenant_id, session_id, "billing")
    assert sessions[key.encode()] == sessions[SessionKey(tenant_id, session_id)] == session
    assert sessions[(tenant_id, session_id)] == session
    assert sessions.get(key) == session
    assert key in sessions
    assert key.encode() in sessions  # type: ignore[comparison-overlap]  # its own keys are text


@pytest.mark.parametrize("key", [None, 7, ("acme",), ("acme", b"s")])
def test_what_is_no_key_is_an_error_and_not_an_unknown_session(key: Any) -> None:
    with pytest.raises(TypeError, match="is no key of a session"):
        sessions_of(PartitionedRows(*ALL)).get(key)


def test_unknown_and_archived_sessions_and_rows_of_other_families_are_absent() -> None:
    rows = PartitionedRows(*ALL)
    sessions = sessions_of(rows)
    for key in (rows.buried, rows.tally_key, "acme:unknown", ""):
        assert key not in sessions
        assert sessions.get(key, 7) == 7
        with pytest.raises(KeyError):
            sessions[key]
    assert sorted(sessions) == rows.keys
    assert len(sessions) == len(rows.keys)
    assert {key: session.session_id for key, session in sessions.items()} == {
        key: key.partition(":")[2] for key in rows.keys
    }


def test_a_session_elsewhere_is_no_unknown_session() -> None:
    rows = PartitionedRows(1, 2)
    sessions = sessions_of(rows)
    away = next(key for key in rows.keys if partition_of(key.encode(), PARTITIONS) == 0)
    for read in (sessions.get, sessions.__getitem__, sessions.__contains__):
        with pytest.raises(NotLocal, match=r"partition 0, which is not open on this worker \(open: 1, 2\)") as caught:
            read(away)
        assert (caught.value.key, caught.value.partition) == (away, 0)
        assert not isinstance(caught.value, KeyError)
    assert sorted(sessions) == sorted(rows.keys_of(1) + rows.keys_of(2))


def test_a_partition_that_closes_takes_its_sessions_along() -> None:
    rows = PartitionedRows(1, 2)
    sessions = sessions_of(rows)
    rows.owners[1].is_readable = False
    assert sorted(sessions) == rows.keys_of(2)
    with pytest.raises(NotLocal):
        sessions.get(rows.keys_of(1)[0])


def test_what_a_batch_makes_of_sessions_shows_once_it_is_merged() -> None:
    """A batch is merged when its transaction is acknowledged; until then it may abort."""
    rig, known, new = StoreRig(), EventFactory("known"), EventFactory("new")
    owner = SimpleNamespace(is_readable=True, state=rig.state)
    sessions = LocalSessions(cast(Assignment, SimpleNamespace(owners={0: owner}, next_offsets={0: 1})), 1)
    keys = [agent.key.encoded().decode() for agent in (known, new)]

    def shown() -> tuple[int, list[str], list[str | None]]:
        found = [sessions.get(key) for key in keys]
        return len(sessions), sorted(sessions), [None if row is None else row.state for row in found]

    rig.fold_records([record_of(known, "session_created", 0)])
    before = shown()
    assert before == (1, keys[:1], ["Idle", None])
    changes = [record_of(known, "session_start_failed", 1), record_of(new, "session_created", 2)]
    for aborts in (True, False):
        batch = rig.state.begin()
        assert all(batch.apply(record) for record in changes)
        batch.finish()
        assert len(batch.rows) >= len(keys)
        assert shown() == before
        if not aborts:
            rig.state.merge(batch)
    assert shown() == (2, sorted(keys), ["Terminated", "Idle"])
