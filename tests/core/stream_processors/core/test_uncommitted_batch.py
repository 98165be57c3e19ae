"""Batches at their limits: what fills one, what a void one leaves behind, and what is counted."""

import pytest

from sessionary.schemas.records import Position, SessionState, Tombstone, TombstoneChunk
from sessionary.stream_processors.core.committed import PartitionSettings
from sessionary.stream_processors.core.model import RECORD_OVERHEAD_BYTES, Counts, LogRecord
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.core.session.rows import TOMBSTONE_MS, SessionRows
from sessionary.stream_processors.core.tombstones import DAY_MS, ChunkSizes, end_of_day
from sessionary.stream_processors.core.uncommitted_batch import UncommittedBatch
from tests.core.oracle_rig import DECODER, SETTINGS, START_MS, OracleRig
from tests.support.event_factory import TICK, EventFactory
from tests.support.judges import JUDGE

WEEK_MS = 7 * DAY_MS
UNPACKED = SETTINGS._replace(chunk_sizes=ChunkSizes(chunk_keys=99))
PACKED = SETTINGS._replace(chunk_sizes=ChunkSizes(chunk_keys=1))  # every tombstone, at once
either_form = pytest.mark.parametrize(
    ("settings", "form"), [(UNPACKED, Tombstone), (PACKED, TombstoneChunk)], ids=["unpacked", "packed"]
)


def open_fold(settings: PartitionSettings = SETTINGS) -> PartitionState:
    fold = PartitionState(0, settings, DECODER, JUDGE)
    fold.finish_loading()
    return fold


def fold_again(rig: OracleRig, settings: PartitionSettings = SETTINGS) -> PartitionState:
    """Return a second fold of a rig's log."""
    fold = open_fold(settings)
    batch = fold.begin()
    assert all(batch.apply(record) for record in rig.log)
    batch.finish()
    fold.merge(batch)
    return fold


def about_to_be_archived(
    settings: PartitionSettings = SETTINGS, start_ms: int = START_MS
) -> tuple[PartitionState, int, bytes]:
    """Return a fold, the log's end, and the key of a session that is archived in one second.

    It ended at `start_ms`, so that is 300 seconds later.
    """
    rig, agent = OracleRig(), EventFactory()
    rig.at = start_ms
    rig.start(agent)
    assert rig.send(agent, "session_terminated", reason="closed") == "applied"
    rig.advance(299_000, step_ms=5_000)
    return fold_again(rig, settings), len(rig.log), agent.key.encoded()


def only_tombstone(fold: PartitionState, form: type[Tombstone | TombstoneChunk]) -> tuple[bytes, int]:
    """Return the key of a fold's only row, which is a tombstone of a form, and its time."""
    ((key, row),) = fold.rows.items()
    assert type(row) is form
    return key, row.expires_at


def tick(offset: int, at_ms: int) -> LogRecord:
    return LogRecord(offset, at_ms, None, TICK)


def audit_numbers(batch: UncommittedBatch) -> list[tuple[str | None, int, int]]:
    return [(line.transition, line.audit_seq, line.source_n) for _, line in batch.finish().records_on("audit")]


def test_the_bounds_of_a_batch_and_of_the_outage_grace_are_as_documented() -> None:
    assert PartitionSettings("t", 4) == PartitionSettings(
        "t", 4, 5_000, 25_000, 5_000, 8 * 1_048_576, 5_000, 16 * 1_048_576
    )
    assert TOMBSTONE_MS == 14 * 86_400_000


@pytest.mark.parametrize(("short_by", "taken"), [(0, 2), (1, 1)])
def test_bytes_fill_a_batch_exactly(short_by: int, taken: int) -> None:
    key, value = b"k" * 7, b"v" * 11
    size = len(key) + len(value) + RECORD_OVERHEAD_BYTES
    assert RECORD_OVERHEAD_BYTES == 100
    batch = open_fold(SETTINGS._replace(bytes_max=2 * size - short_by)).begin()
    assert [batch.apply(LogRecord(n, START_MS, key, value)) for n in range(3)] == [n < taken for n in range(3)]
    assert batch.records == taken


def test_a_record_larger_than_a_batch_is_a_batch_of_its_own() -> None:
    fold = open_fold(SETTINGS._replace(bytes_max=10))
    batch = fold.begin()
    assert batch.apply(LogRecord(0, START_MS, b"k", b"v"))
    assert not batch.apply(tick(1, START_MS))
    assert not batch.apply(LogRecord(1, START_MS, None, None))
    fold.merge(batch)
    assert fold.begin().apply(tick(1, START_MS))


def test_an_empty_batch_has_a_position() -> None:
    fold = open_fold()
    fold.load_position(Position(17, START_MS, START_MS + 5, 3, 0))
    outcome = fold.begin().finish()
    assert outcome.counts == Counts(0, 0, 0, 0, 0, 0, 17, 17)
    assert outcome.position == Position(17, START_MS, START_MS + 5, 4, 0)
    assert (
        outcome.rows,
        list(outcome.records_on("audit")),
        list(outcome.records_on("rejected")),
        list(outcome.records_on("cleanup")),
        list(outcome.records_on("tasks")),
    ) == ({}, [], [], [], [])


def test_the_position_has_the_time_of_the_previous_acknowledgement() -> None:
    fold = open_fold()
    batch = fold.begin()
    assert batch.apply(tick(0, START_MS))
    assert batch.final_position.previous_acknowledged_at is None
    assert batch.finish(previous_acknowledged_at=1_234).position.previous_acknowledged_at == 1_234
    fold.merge(batch)
    assert fold.position.previous_acknowledged_at == 1_234


def test_an_outcome_says_how_late_each_timer_fired() -> None:
    rig, agents = OracleRig(), [EventFactory("one"), EventFactory("two")]
    for agent in agents:
        rig.start(agent)
        rig.at += 500
    rig.advance(58_000)
    rig.at = START_MS + 62_000
    rig.tick()
    assert rig.outcomes[-1].counts.timers == 2
    assert rig.outcomes[-1].timer_lateness_ms == [2_000, 1_500]


def test_counts_name_the_first_and_the_last_offset() -> None:
    fold = open_fold()
    batch = fold.begin()
    for record in (tick(4, START_MS), LogRecord(5, START_MS, None, b"x"), tick(9, START_MS)):
        assert batch.apply(record)
    outcome = batch.finish()
    assert outcome.counts == Counts(0, 0, 1, 1, 0, 2, 4, 9)
    assert outcome.position == Position(10, START_MS, 0, 1, 0)


def test_only_the_last_batch_can_be_merged_and_only_once() -> None:
    fold = open_fold()
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
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    fold = fold_again(rig)
    before = fold.next_deadline_ms
    assert before == START_MS + 60_000
    batch = fold.begin()
    assert batch.apply(LogRecord(len(rig.log), START_MS + 1_000, agent.key.encoded(), agent.event_bytes("heartbeat")))
    assert fold.next_deadline_ms == before
    fold.merge(batch)
    assert fold.next_deadline_ms == START_MS + 61_000


def test_what_fired_in_a_void_batch_fires_again() -> None:
    rig, agents = OracleRig(), [EventFactory("one"), EventFactory("two")]
    for agent in agents:
        rig.start(agent)
    rig.advance(58_000)
    fold, offset = fold_again(rig), len(rig.log)
    numbers = []
    for _ in range(3):
        batch = fold.begin()
        assert batch.apply(tick(offset, START_MS + 60_000))
        numbers.append(audit_numbers(batch))
        assert batch.live == 2
    assert numbers == [[("T06", 3, 0), ("T06", 3, 1)]] * 3


def test_a_void_batch_does_not_move_a_deadline() -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    rig.advance(58_000)
    fold, offset = fold_again(rig), len(rig.log)
    void = fold.begin()
    assert void.apply(LogRecord(offset, START_MS + 59_000, agent.key.encoded(), agent.event_bytes("heartbeat")))
    assert void.apply(tick(offset + 1, START_MS + 61_000))
    batch = fold.begin()
    assert batch.apply(tick(offset, START_MS + 60_000))
    assert audit_numbers(batch) == [("T06", 3, 0)]


def rig_with_archived() -> tuple[OracleRig, EventFactory]:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    assert rig.send(agent, "session_terminated", reason="closed") == "applied"
    assert rig.advance(300_000, step_ms=5_000) == ["T14 archived"]
    return rig, agent


@either_form
@pytest.mark.parametrize("void_batches", [0, 1, 2])
def test_a_tombstone_goes_at_its_end_and_not_before_also_after_a_void_batch(
    void_batches: int, settings: PartitionSettings, form: type[Tombstone | TombstoneChunk]
) -> None:
    rig, agent = rig_with_archived()
    fold, offset, key = fold_again(rig, settings), len(rig.log), agent.key.encoded()
    grave_key, expires_at = only_tombstone(fold, form)
    ends_ms = end_of_day(rig.at + 2 * WEEK_MS)
    assert (grave_key == key, expires_at) == ((True, rig.at + 2 * WEEK_MS) if form is Tombstone else (False, ends_ms))
    for _ in range(void_batches):
        assert fold.begin().apply(tick(offset, ends_ms))
    batch = fold.begin()
    assert batch.apply(tick(offset, ends_ms - 1))
    assert batch.rows == {}
    assert batch.apply(tick(offset + 1, ends_ms))
    assert batch.rows == {grave_key: None}
    fold.merge(batch)
    assert (dict(fold.rows), fold.tombstones) == ({}, 0)


@either_form
def test_an_archiving_in_a_void_batch_leaves_no_tombstone_behind(
    settings: PartitionSettings, form: type[Tombstone | TombstoneChunk]
) -> None:
    fold, offset, key = about_to_be_archived(settings)
    for _ in range(2):
        batch = fold.begin()
        assert batch.apply(tick(offset, START_MS + 300_000))
        assert audit_numbers(batch) == [("T14", 4, 0)]
        assert batch.live == 0
        assert isinstance(fold.rows[key], SessionState)
        assert (fold.live, fold.tombstones) == (1, 0)
    fold.merge(batch)
    assert (fold.live, fold.tombstones, fold.next_deadline_ms) == (0, 1, None)
    only_tombstone(fold, form)
    assert fold.is_packed(key) == (form is TombstoneChunk)


def test_a_rejected_record_is_unchanged_on_the_rejected_topic() -> None:
    agent = EventFactory()
    key, value = agent.key.encoded(), agent.event_bytes("session_activity", {"tenant_id": "evil"})
    fold = open_fold()
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


def test_a_record_without_a_valid_key_is_rejected_without_a_session() -> None:
    batch = open_fold().begin()
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
        (EventFactory().key.encoded(), TICK, "a tick has no key"),
    ],
)
def test_the_detail_says_what_is_wrong_with_a_key(key: bytes | None, value: bytes | None, detail: str) -> None:
    batch = open_fold().begin()
    assert batch.apply(LogRecord(0, START_MS, key, value))
    ((_, rejected),) = batch.finish().records_on("rejected")
    assert (rejected.reason, rejected.detail) == ("bad_key", detail)


@either_form
def test_recovery_takes_the_last_record_of_each_key(
    settings: PartitionSettings, form: type[Tombstone | TombstoneChunk]
) -> None:
    rig, agent = rig_with_archived()
    former = fold_again(rig, settings)
    key, _ = only_tombstone(former, form)
    grave = former.rows[key]
    fold = PartitionState(0, settings, DECODER, JUDGE)
    for row in (grave, None, grave, None):
        fold.load(key, row)
    fold.finish_loading()
    assert (dict(fold.rows), fold.live, fold.tombstones) == ({}, 0, 0)
    assert (fold.expiries, len(fold.chunks), fold.timers.keys()) == ([], 0, [])
    fold.load(key, grave)
    fold.load(b"other", None)
    fold.finish_loading()
    assert (fold.live, fold.tombstones) == (0, 1)
    assert fold.is_packed(agent.key.encoded()) == (form is TombstoneChunk)
    batch = fold.begin()
    ends_ms = end_of_day(rig.at + 2 * WEEK_MS)
    assert batch.apply(tick(0, ends_ms - 1))
    assert batch.rows == {}
    assert batch.apply(tick(1, ends_ms))
    assert batch.rows == {key: None}


@either_form
def test_tombstones_go_in_the_order_of_their_ends_however_they_were_loaded(
    settings: PartitionSettings, form: type[Tombstone | TombstoneChunk]
) -> None:
    rig, agents = OracleRig(settings), [EventFactory(f"s{n}") for n in range(3)]
    ends_ms = []
    for agent in agents:
        assert rig.send(agent, "session_created") == "applied"
        assert rig.send(agent, "session_start_failed") == "applied"
        assert rig.advance(300_000, step_ms=5_000) == ["T14 archived"]
        ends_ms.append(end_of_day(rig.at + 2 * WEEK_MS))
        rig.at += DAY_MS
    graves = [*rig.fold.rows.items()]
    assert [type(row) for _, row in graves] == [form] * 3
    assert [end_of_day(row.expires_at) for _, row in graves] == ends_ms == sorted(set(ends_ms))
    fold = PartitionState(0, settings, DECODER, JUDGE)
    for key, row in reversed(graves):
        fold.load(key, row)
    fold.finish_loading()
    fold.finish_loading()
    assert fold.tombstones == 3
    batch = fold.begin()
    for n, at_ms in enumerate(ends_ms):
        assert batch.apply(tick(n, at_ms))
        assert list(batch.rows) == [key for key, _ in graves[: n + 1]]


@either_form
def test_a_tombstone_stays_to_its_own_end_though_a_void_batch_had_set_it_earlier(
    settings: PartitionSettings, form: type[Tombstone | TombstoneChunk]
) -> None:
    midnight_ms = end_of_day(START_MS)
    fold, offset, _ = about_to_be_archived(settings, midnight_ms - 300_000)
    assert fold.begin().apply(tick(offset, midnight_ms))
    batch = fold.begin()
    assert batch.apply(tick(offset, midnight_ms + 2_000))
    batch.finish()
    fold.merge(batch)
    key, _ = only_tombstone(fold, form)
    batch = fold.begin()
    assert batch.apply(tick(offset + 1, midnight_ms + 2 * WEEK_MS))
    assert batch.rows == {}
    assert batch.apply(tick(offset + 2, midnight_ms + 2 * WEEK_MS + DAY_MS))
    assert batch.rows == {key: None}


def test_a_rejected_heartbeat_writes_no_row_but_for_the_first_one_of_a_fenced_client() -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    row = rig.row_of(agent)
    assert rig.send(agent, "heartbeat", {"epoch": 99}) == "rejected future_epoch"
    assert rig.outcomes[-1].rows == {}
    assert rig.send(agent, "heartbeat", {"epoch": 0}) == "rejected stale_epoch"
    ((key, noted),) = rig.outcomes[-1].rows.items()
    assert key == agent.key.encoded()
    assert isinstance(noted, SessionState)
    assert noted.fenced_beats is not None
    assert noted._replace(fenced_beats=None) == row
    assert rig.send(agent, "heartbeat", {"epoch": 0}) == "fenced beat"
    assert rig.outcomes[-1].rows == {}


def test_events_within_active_do_not_recompute_the_deadline() -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    fold = fold_again(rig)
    key, offset = agent.key.encoded(), len(rig.log)
    batch = fold.begin()
    asked: list[SessionState] = []
    whole = SessionRows.due_ms

    def note_row(machine: SessionRows, row: SessionState, outage_end_ms: int = 0) -> int:
        asked.append(row)
        return whole(machine, row, outage_end_ms)

    with pytest.MonkeyPatch.context() as patch:  # a fixture is none of the mutants' suite
        patch.setattr(SessionRows, "due_ms", note_row)
        for event_type in ("heartbeat", "session_activity", "state_updated", "heartbeat"):
            assert batch.apply(LogRecord(offset, START_MS + 1_000, key, agent.event_bytes(event_type)))
            offset += 1
        assert len(asked) == 0
        assert batch.apply(LogRecord(offset, START_MS + 1_000, key, agent.event_bytes("session_paused")))
        assert len(asked) == 1
    assert batch.finish().counts.applied == 5


def test_a_new_partition_begins_with_nothing() -> None:
    fold = PartitionState(0, SETTINGS, DECODER, JUDGE)
    assert fold.position == Position(0, 0, 0, 0, 0)
    assert (dict(fold.rows), fold.live, fold.expiries) == ({}, 0, [])
    assert (fold.timers.keys(), fold.next_deadline_ms) == ([], None)


def test_only_ticks_that_change_no_row_and_find_no_outage_can_wait() -> None:
    empty = open_fold().begin()
    assert not empty.holds_only_ticks
    assert empty.apply(tick(0, 1_000))
    assert empty.holds_only_ticks
    assert empty.apply(LogRecord(1, 1_000, None, b"no tick"))
    assert not empty.holds_only_ticks

    fold, end, _ = about_to_be_archived()
    due_ms = fold.next_deadline_ms
    assert due_ms is not None
    batch = fold.begin()
    assert batch.apply(tick(end, due_ms - 1))
    assert batch.holds_only_ticks
    assert batch.apply(tick(end + 1, due_ms))
    assert not batch.holds_only_ticks, "a deadline fired"

    rig = OracleRig()
    rig.start(EventFactory())
    batch = rig.fold.begin()
    assert batch.apply(tick(len(rig.log), rig.at + 5_001))
    assert not batch.holds_only_ticks, "the grace after an outage counts for the next deadline"


def test_records_fill_a_batch_exactly() -> None:
    batch = open_fold(SETTINGS._replace(records_max=3, timers_max=50)).begin()
    assert [batch.apply(tick(n, START_MS)) for n in range(5)] == [True] * 3 + [False] * 2
    assert (batch.records, batch.final_position.next_offset) == (3, 3)


def test_a_batch_filled_by_timers_after_an_offset_gap_ends_at_its_record() -> None:
    rig, agents = OracleRig(), [EventFactory("one"), EventFactory("two"), EventFactory("three")]
    for agent in agents:
        rig.start(agent)
    rig.advance(58_000)
    fold, offset = fold_again(rig), len(rig.log) + 4
    fold.settings = SETTINGS._replace(timers_max=2)
    batch = fold.begin()
    assert not batch.apply(tick(offset, START_MS + 60_000))
    assert (batch.final_position.next_offset, batch.final_position.outputs_written) == (offset, 2)
    fold.merge(batch)
    rest = fold.begin()
    assert rest.apply(tick(offset, START_MS + 60_000))
    assert audit_numbers(rest) == [("T06", 3, 2)]
