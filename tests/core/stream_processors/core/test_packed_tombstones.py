"""Tombstones: one verdict, packed or not; what is there already is packed in steps."""

import pytest

from sessionary.schemas.ids import SessionKey, new_session_id
from sessionary.schemas.records import Tombstone, TombstoneChunk
from sessionary.stream_processors.core.model import LogRecord
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.core.session.rows import TOMBSTONE_MS
from sessionary.stream_processors.core.tombstones import DAY_MS, ChunkSizes, chunk_key, end_of_day
from tests.core.oracle_rig import DECODER, SETTINGS, START_MS, OracleRig
from tests.support.event_factory import TICK, EventFactory
from tests.support.judges import JUDGE

SMALL = SETTINGS._replace(chunk_sizes=ChunkSizes(chunk_keys=4, chunks_merged=3))


def agents_of(count: int) -> list[EventFactory]:
    return [EventFactory(f"agent{n}") for n in range(count)]


def archive_sessions(rig: OracleRig, agents: list[EventFactory]) -> None:
    for agent in agents:
        assert rig.send(agent, "session_created") == "applied"
        assert rig.send(agent, "session_start_failed") == "applied"
    assert rig.advance(300_000, step_ms=5_000) == len(agents) * ["T14 archived"]


def chunks_of(rig: OracleRig) -> list[TombstoneChunk]:
    return [row for row in rig.fold.rows.values() if isinstance(row, TombstoneChunk)]


def rows_of(rig: OracleRig) -> set[bytes]:
    return {key for key, row in rig.fold.rows.items() if isinstance(row, Tombstone)}


def test_tombstones_are_packed_once_enough_wait() -> None:
    rig, agents = OracleRig(SMALL), agents_of(7)
    archive_sessions(rig, agents[:4])
    archive_sessions(rig, agents[4:])
    assert sum(len(chunk.key_hashes) // 16 for chunk in chunks_of(rig)) == 4
    assert len(rows_of(rig)) == 3


def test_every_late_event_is_rejected_whether_packed_or_not() -> None:
    rig, agents = OracleRig(SMALL), agents_of(5)
    archive_sessions(rig, agents[:4])
    archive_sessions(rig, agents[4:])
    assert rows_of(rig) == {agents[4].key.encoded()}
    for agent in agents:
        created = agent.event_bytes("session_created", {"producer_seq": 1})
        for value in (created, agent.event_bytes("session_activity", {"producer_seq": 9})):
            rows = dict(rig.fold.rows)
            assert rig.append(agent.key.encoded(), value) == "rejected session_archived"
            (line,) = rig.last_audits()
            assert (line.audit_seq, line.from_state, line.to_state) == (0, "Archived", "Archived")
            assert rig.fold.rows == rows
        assert rig.send(agent, "heartbeat") == "rejected session_archived"
        assert rig.last_audits() == []


def test_a_session_can_be_created_again_from_the_end_of_its_tombstones_last_day_on() -> None:
    rig, agents = OracleRig(SMALL), agents_of(5)
    archive_sessions(rig, agents[:4])
    archive_sessions(rig, agents[4:])
    ends_ms = end_of_day(rig.at + TOMBSTONE_MS)
    for at_ms, outcome in ((ends_ms - 1, "rejected session_archived"), (ends_ms, "applied")):
        rig.at = at_ms
        for agent in agents:
            created = agent.event_bytes("session_created", {"producer_seq": 1})
            assert rig.append(agent.key.encoded(), created) == outcome
    assert chunks_of(rig) == []
    assert rig.fold.expiries == []
    assert len(rig.fold.chunks) == 0


@pytest.mark.parametrize("void_batches", [1, 2])
def test_what_a_void_batch_packed_is_packed_by_the_next_one(void_batches: int) -> None:
    rig = OracleRig(SMALL._replace(chunk_sizes=ChunkSizes(chunk_keys=9)))
    archive_sessions(rig, agents := agents_of(8))
    fold, offset = rig.fold, len(rig.log)
    fold.settings = SMALL
    for _ in range(void_batches + 1):
        batch = fold.begin()
        assert batch.apply(LogRecord(offset, rig.at, None, TICK))
        rows = batch.finish().rows
        assert sum(row is None for row in rows.values()) == len(agents)
    fold.merge(batch)
    assert rows_of(rig) == set()
    assert all(fold.is_packed(agent.key.encoded()) for agent in agents)


def test_a_batch_that_is_finished_twice_packs_once() -> None:
    unpacked = SETTINGS._replace(chunk_sizes=ChunkSizes(chunk_keys=99))
    rig = OracleRig(unpacked)
    archive_sessions(rig, agents_of(30))
    rig.fold.settings = SMALL
    batch = rig.fold.begin()
    assert batch.apply(LogRecord(len(rig.log), rig.at, None, TICK))
    first = dict(batch.finish().rows)
    assert batch.finish().rows == first
    assert sum(row is None for row in first.values()) == 16


def test_records_that_follow_after_a_batch_was_finished_find_its_tombstones() -> None:
    rig, agents = OracleRig(SETTINGS), agents_of(5)
    rig.fold.settings = SETTINGS._replace(chunk_sizes=ChunkSizes(chunk_keys=99))
    archive_sessions(rig, agents)
    rig.fold.settings = SMALL
    fold, batch, offset = rig.fold, rig.fold.begin(), len(rig.log)
    assert batch.apply(LogRecord(offset, rig.at, None, TICK))
    assert len(batch.finish().rows) == len(agents)  # four rows go, a chunk comes
    key = agents[0].key.encoded()
    for at_ms, rejected in ((rig.at, 1), (rig.at + TOMBSTONE_MS + DAY_MS, 1)):
        offset += 1
        created = agents[0].event_bytes("session_created", {"producer_seq": 1})
        assert batch.apply(LogRecord(offset, at_ms, key, created))
        assert batch.finish().counts.rejected == rejected
    fold.merge(batch)
    assert {key: type(row).__name__ for key, row in fold.rows.items()} == {key: "SessionState"}
    assert len(fold.chunks) == len(fold.expiries) == 0


def test_a_client_cannot_reach_a_chunk_by_its_key() -> None:
    rig = OracleRig(SMALL)
    archive_sessions(rig, agents_of(4))
    (chunk,) = chunks_of(rig)
    key = chunk_key(chunk.expires_at, 0)
    assert rig.fold.rows[key] is chunk
    assert rig.append(key, EventFactory().event_bytes("session_created")) == "rejected bad_key"
    assert rig.fold.rows[key] is chunk


def test_a_fold_that_loads_the_rows_knows_what_is_packed() -> None:
    rig, agents = OracleRig(SMALL), agents_of(5)
    archive_sessions(rig, agents[:4])
    archive_sessions(rig, agents[4:])
    fold = PartitionState(0, SMALL, DECODER, JUDGE)
    for key, row in rig.fold.rows.items():
        fold.load(key, row)
    fold.load_position(rig.fold.position)
    fold.finish_loading()
    assert [fold.is_packed(agent.key.encoded()) for agent in agents] == [True, True, True, True, False]
    assert (len(fold.expiries), len(fold.chunks)) == (1, 4)


def agent_with_id(made_ms: int) -> EventFactory:
    agent = EventFactory()
    agent.key = SessionKey("acme", new_session_id(made_ms))
    return agent


@pytest.mark.parametrize(("age_ms", "outcome"), [(TOMBSTONE_MS - 1, "applied"), (TOMBSTONE_MS, "rejected too_old")])
def test_a_session_whose_id_is_too_old_is_not_created(age_ms: int, outcome: str) -> None:
    assert OracleRig().send(agent_with_id(START_MS - age_ms), "session_created") == outcome


def test_a_session_with_an_old_id_leaves_no_tombstone_and_is_not_revived() -> None:
    rig = OracleRig()
    agent = agent_with_id(START_MS - TOMBSTONE_MS + 1_000)
    assert rig.send(agent, "session_created") == "applied"
    rig.at += DAY_MS  # the session is archived a day later
    rig.tick()
    rig.advance(400_000, step_ms=5_000)
    assert rig.fold.rows == {}
    assert rig.fold.expiries == []
    repeated = agent.event_bytes("session_created", {"producer_seq": 1})
    assert rig.append(agent.key.encoded(), repeated) == "rejected too_old"


def test_a_tombstone_of_a_young_id_goes_when_its_creation_would_be_too_old() -> None:
    rig, agent = OracleRig(), agent_with_id(START_MS)
    assert rig.send(agent, "session_created") == "applied"
    rig.at += 3 * DAY_MS
    rig.tick()
    rig.advance(400_000, step_ms=5_000)
    assert rows_of(rig) == {agent.key.encoded()}
    ends_ms = end_of_day(START_MS + TOMBSTONE_MS)
    repeated = agent.event_bytes("session_created", {"producer_seq": 1})
    for at_ms, outcome in ((ends_ms - 1, "rejected session_archived"), (ends_ms, "rejected too_old")):
        rig.at = at_ms
        assert rig.append(agent.key.encoded(), repeated) == outcome
    assert rig.fold.rows == {}
