"""Batches at their edges: what fills one, what a void one leaves behind, what a transaction says of itself."""

from unittest.mock import patch

import pytest

from sessionary.schemas.records import Gravestone, Position, SessionState
from sessionary.stream_processors.core.committed import PartitionSettings
from sessionary.stream_processors.core.model import RECORD_OVERHEAD_BYTES, LogRecord
from sessionary.stream_processors.core.overlay import Overlay
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.core.session.machine import GRAVESTONE_MS, SessionMachine
from tests.core.court import DECODER, SETTINGS, START_MS, Court
from tests.support.machines import MACHINES
from tests.support.scribe import TICK, Scribe

WEEK_MS = 7 * 86_400_000


def opened(settings: PartitionSettings = SETTINGS) -> PartitionState:
    fold = PartitionState(0, settings, DECODER, MACHINES)
    fold.finish_loading()
    return fold


def again(court: Court) -> PartitionState:
    """A second fold of a court's log so far."""
    fold = opened()
    batch = fold.begin()
    assert all(batch.apply(record) for record in court.log)
    batch.finish()
    fold.merge(batch)
    return fold


def about_to_be_archived() -> tuple[PartitionState, int, bytes]:
    """Return a fold with one ended session, a second before it is archived, the log's end and the session's key."""
    court, agent = Court(), Scribe()
    court.starts(agent)
    assert court.says(agent, "session_terminated", reason="closed") == "applied"
    court.passes(299_000, step_ms=5_000)
    return again(court), len(court.log), agent.key.encoded()


def tick(offset: int, at_ms: int) -> LogRecord:
    return LogRecord(offset, at_ms, None, TICK)


def audited(batch: Overlay) -> list[tuple[str | None, int, int]]:
    return [(line.transition, line.audit_seq, line.source_n) for _, line in batch.finish().records_on("audit")]


def test_the_bounds_of_a_batch_and_of_the_quiet_are_as_documented() -> None:
    assert PartitionSettings("t", 4) == PartitionSettings("t", 4, 5_000, 25_000, 5_000, 8 * 1_048_576, 5_000)
    assert GRAVESTONE_MS == 14 * 86_400_000


@pytest.mark.parametrize(("short_by", "taken"), [(0, 2), (1, 1)])
def test_bytes_fill_a_batch_exactly(short_by: int, taken: int) -> None:
    key, value = b"k" * 7, b"v" * 11
    size = len(key) + len(value) + RECORD_OVERHEAD_BYTES
    assert RECORD_OVERHEAD_BYTES == 100
    batch = opened(SETTINGS._replace(bytes_max=2 * size - short_by)).begin()
    assert [batch.apply(LogRecord(n, START_MS, key, value)) for n in range(3)] == [n < taken for n in range(3)]
    assert batch.records == taken


def test_a_record_larger_than_a_batch_is_a_batch_of_its_own() -> None:
    fold = opened(SETTINGS._replace(bytes_max=10))
    batch = fold.begin()
    assert batch.apply(LogRecord(0, START_MS, b"k", b"v"))
    assert not batch.apply(tick(1, START_MS))
    assert not batch.apply(LogRecord(1, START_MS, None, None))
    fold.merge(batch)
    assert fold.begin().apply(tick(1, START_MS))


def test_an_empty_batch_says_where_it_stands() -> None:
    fold = opened()
    fold.load_position(Position(17, START_MS, START_MS + 5, 3, 0))
    outcome = fold.begin().finish()
    assert outcome.counts == (0, 0, 0, 0, 0, 0, 17, 17)
    assert outcome.position == Position(17, START_MS, START_MS + 5, 4, 0)
    assert (
        outcome.rows,
        list(outcome.records_on("audit")),
        list(outcome.records_on("rejected")),
        list(outcome.records_on("cleanup")),
    ) == ({}, [], [], [])


def test_counts_name_the_first_and_the_last_offset() -> None:
    fold = opened()
    batch = fold.begin()
    for record in (tick(4, START_MS), LogRecord(5, START_MS, None, b"x"), tick(9, START_MS)):
        assert batch.apply(record)
    outcome = batch.finish()
    assert outcome.counts == (0, 0, 1, 1, 0, 2, 4, 9)
    assert outcome.position == Position(10, START_MS, 0, 1, 0)


def test_only_the_last_batch_can_be_merged_and_only_once() -> None:
    fold = opened()
    first, second = fold.begin(), fold.begin()
    for batch in (first, second):
        assert batch.apply(tick(0, START_MS))
    with pytest.raises(ValueError, match="void"):
        fold.merge(first)
    fold.merge(second)
    with pytest.raises(ValueError, match="void"):
        fold.merge(second)
    assert fold.position.next_offset == 1


def test_the_next_deadline_is_the_committed_one_while_a_batch_is_open() -> None:
    court, agent = Court(), Scribe()
    court.starts(agent)
    fold = again(court)
    before = fold.next_deadline_ms
    assert before == START_MS + 60_000
    batch = fold.begin()
    assert batch.apply(LogRecord(len(court.log), START_MS + 1_000, agent.key.encoded(), agent.writes("heartbeat")))
    assert fold.next_deadline_ms == before
    fold.merge(batch)
    assert fold.next_deadline_ms == START_MS + 61_000


def test_what_fired_in_a_void_batch_fires_again() -> None:
    court, agents = Court(), [Scribe("one"), Scribe("two")]
    for agent in agents:
        court.starts(agent)
    court.passes(58_000)
    fold, offset = again(court), len(court.log)
    told = []
    for _ in range(3):
        batch = fold.begin()
        assert batch.apply(tick(offset, START_MS + 60_000))
        told.append(audited(batch))
        assert batch.live == 2
    assert told == [[("T06", 3, 0), ("T06", 3, 1)]] * 3


def test_a_deadline_that_a_void_batch_moved_stands_where_it_stood() -> None:
    court, agent = Court(), Scribe()
    court.starts(agent)
    court.passes(58_000)
    fold, offset = again(court), len(court.log)
    void = fold.begin()
    assert void.apply(LogRecord(offset, START_MS + 59_000, agent.key.encoded(), agent.writes("heartbeat")))
    assert void.apply(tick(offset + 1, START_MS + 61_000))
    batch = fold.begin()
    assert batch.apply(tick(offset, START_MS + 60_000))
    assert audited(batch) == [("T06", 3, 0)]


def archived() -> tuple[Court, Scribe]:
    court, agent = Court(), Scribe()
    court.starts(agent)
    assert court.says(agent, "session_terminated", reason="closed") == "applied"
    assert court.passes(300_000, step_ms=5_000) == ["T14 archived"]
    return court, agent


@pytest.mark.parametrize("void_batches", [0, 1, 2])
def test_a_gravestone_goes_at_its_end_and_not_before_also_after_a_void_batch(void_batches: int) -> None:
    court, agent = archived()
    fold, offset, key = again(court), len(court.log), agent.key.encoded()
    grave = fold.rows[key]
    assert isinstance(grave, Gravestone)
    assert grave.expires_at == court.at + 2 * WEEK_MS
    for _ in range(void_batches):
        assert fold.begin().apply(tick(offset, grave.expires_at))
    batch = fold.begin()
    assert batch.apply(tick(offset, grave.expires_at - 1))
    assert batch.rows == {}
    assert batch.apply(tick(offset + 1, grave.expires_at))
    assert batch.rows == {key: None}
    fold.merge(batch)
    assert key not in fold.rows


def test_an_archiving_in_a_void_batch_leaves_no_gravestone_behind() -> None:
    fold, offset, key = about_to_be_archived()
    for _ in range(2):
        batch = fold.begin()
        assert batch.apply(tick(offset, START_MS + 300_000))
        assert audited(batch) == [("T14", 4, 0)]
        assert batch.live == 0
    assert isinstance(fold.rows[key], SessionState)
    assert fold.live == 1
    fold.merge(batch)
    assert (fold.live, fold.next_deadline_ms) == (0, None)
    assert isinstance(fold.rows[key], Gravestone)


def test_a_refused_record_stands_on_the_rejected_topic_as_it_came() -> None:
    agent = Scribe()
    key, value = agent.key.encoded(), agent.writes("session_activity", {"tenant_id": "evil"})
    fold = opened()
    batch = fold.begin()
    assert batch.apply(LogRecord(3, START_MS, key, value, (("trace", b"1"),)))
    ((rejected_key, rejected),) = batch.finish().records_on("rejected")
    assert rejected_key == key
    assert (rejected.reason, rejected.security) == ("foreign_tenant", True)
    assert (rejected.tenant_id, rejected.session_id) == agent.key
    event = agent.envelope("session_activity", producer_seq=1)
    assert (rejected.event_type, rejected.service_id) == ("session_activity", "billing")
    assert rejected.event_id == event.event_id
    assert (rejected.source_topic, rejected.source_partition, rejected.source_offset) == ("sessionary.events", 0, 3)
    assert rejected.appended_at == START_MS * 1_000
    assert (rejected.key, rejected.value, rejected.headers) == (key, value, {"trace": b"1"})


def test_a_record_that_nobody_can_place_is_rejected_without_a_name() -> None:
    batch = opened().begin()
    assert batch.apply(LogRecord(0, START_MS, None, b"x"))
    outcome = batch.finish()
    ((key, rejected),) = outcome.records_on("rejected")
    assert (key, rejected.key, rejected.value, rejected.reason) == (None, None, b"x", "bad_key")
    assert (rejected.tenant_id, rejected.session_id, rejected.event_id) == (None, None, None)
    assert (rejected.event_type, rejected.service_id, rejected.security) == (None, None, False)
    ((audit_key, line),) = outcome.records_on("audit")
    assert (audit_key, line.tenant_id, line.session_id, line.audit_seq) == (b"", "", "", 0)


@pytest.mark.parametrize(
    ("key", "value", "detail"),
    [
        (None, b"x", "a record without key is a tick, and this is none"),
        (None, None, "a record without key is a tick, and this is none"),
        (b"acme", b"x", "key b'acme' is not tenant_id:session_id"),
        (b"\xff", b"x", "key b'\\xff' is not UTF-8"),
        (Scribe().key.encoded(), TICK, "a tick has no key"),
    ],
)
def test_a_bad_key_is_told_as_what_it_is(key: bytes | None, value: bytes | None, detail: str) -> None:
    batch = opened().begin()
    assert batch.apply(LogRecord(0, START_MS, key, value))
    ((_, rejected),) = batch.finish().records_on("rejected")
    assert (rejected.reason, rejected.detail) == ("bad_key", detail)


def test_recovery_takes_the_last_record_of_each_key() -> None:
    court, agent = archived()
    key = agent.key.encoded()
    grave = court.fold.rows[key]
    fold = PartitionState(0, SETTINGS, DECODER, MACHINES)
    for row in (grave, None, grave, None):
        fold.load(key, row)
    fold.finish_loading()
    assert (dict(fold.rows), fold.live, fold.expiries, len(fold.timers)) == ({}, 0, [], 0)
    fold.load(key, grave)
    fold.load(b"other", None)
    fold.finish_loading()
    assert fold.live == 0
    batch = fold.begin()
    assert batch.apply(tick(0, court.at + 2 * WEEK_MS))
    assert batch.rows == {key: None}


def test_gravestones_go_in_the_order_of_their_ends_however_they_were_loaded() -> None:
    court, agents = Court(), [Scribe(f"s{n}") for n in range(3)]
    for agent in agents:
        court.says(agent, "session_created")
        court.says(agent, "session_start_failed")
        court.passes(10_000, step_ms=5_000)
    court.passes(300_000, step_ms=5_000)
    graves = [(agent.key.encoded(), court.fold.rows[agent.key.encoded()]) for agent in agents]
    fold = PartitionState(0, SETTINGS, DECODER, MACHINES)
    for key, row in reversed(graves):
        fold.load(key, row)
    fold.finish_loading()
    fold.finish_loading()
    assert len(fold.expiries) == 3
    batch = fold.begin()
    for n, (key, row) in enumerate(graves):
        assert isinstance(row, Gravestone)
        assert batch.apply(tick(n, row.expires_at))
        assert list(batch.rows) == [key for key, _ in graves[: n + 1]]


def test_a_gravestone_stays_to_its_own_end_though_a_void_batch_had_set_it_earlier() -> None:
    fold, offset, key = about_to_be_archived()
    assert fold.begin().apply(tick(offset, START_MS + 300_000))
    batch = fold.begin()
    assert batch.apply(tick(offset, START_MS + 302_000))
    fold.merge(batch)
    batch = fold.begin()
    assert batch.apply(tick(offset + 1, START_MS + 300_000 + 2 * WEEK_MS))
    assert batch.rows == {}
    assert batch.apply(tick(offset + 2, START_MS + 302_000 + 2 * WEEK_MS))
    assert batch.rows == {key: None}


@pytest.mark.parametrize("epoch", [0, 99])
def test_a_refused_heartbeat_writes_no_row(epoch: int) -> None:
    court, agent = Court(), Scribe()
    court.starts(agent)
    assert court.says(agent, "heartbeat", {"epoch": epoch}).startswith("refused ")
    assert court.outcomes[-1].rows == {}


def test_within_active_no_event_costs_the_working_out_of_a_deadline() -> None:
    court, agent = Court(), Scribe()
    court.starts(agent)
    fold = again(court)
    key, offset = agent.key.encoded(), len(court.log)
    batch = fold.begin()
    with patch.object(SessionMachine, "deadline", autospec=True, side_effect=SessionMachine.deadline) as asked:
        for event_type in ("heartbeat", "session_activity", "state_updated", "heartbeat"):
            assert batch.apply(LogRecord(offset, START_MS + 1_000, key, agent.writes(event_type)))
            offset += 1
        assert asked.call_count == 0
        assert batch.apply(LogRecord(offset, START_MS + 1_000, key, agent.writes("session_paused")))
        assert asked.call_count == 1
    assert batch.finish().counts.applied == 5


def test_a_new_partition_begins_with_nothing() -> None:
    fold = PartitionState(0, SETTINGS, DECODER, MACHINES)
    assert fold.position == Position(0, 0, 0, 0, 0)
    assert (dict(fold.rows), fold.live, fold.expiries, len(fold.timers), fold.next_deadline_ms) == ({}, 0, [], 0, None)


def test_records_fill_a_batch_exactly() -> None:
    batch = opened(SETTINGS._replace(records_max=3, timers_max=50)).begin()
    assert [batch.apply(tick(n, START_MS)) for n in range(5)] == [True] * 3 + [False] * 2
    assert (batch.records, batch.final_position.next_offset) == (3, 3)


def test_a_batch_that_timers_fill_behind_offsets_without_records_stands_at_its_record() -> None:
    court, agents = Court(), [Scribe("one"), Scribe("two"), Scribe("three")]
    for agent in agents:
        court.starts(agent)
    court.passes(58_000)
    fold, offset = again(court), len(court.log) + 4
    fold.settings = SETTINGS._replace(timers_max=2)
    batch = fold.begin()
    assert not batch.apply(tick(offset, START_MS + 60_000))
    assert (batch.final_position.next_offset, batch.final_position.outcome_n) == (offset, 2)
    fold.merge(batch)
    rest = fold.begin()
    assert rest.apply(tick(offset, START_MS + 60_000))
    assert audited(rest) == [("T06", 3, 2)]
