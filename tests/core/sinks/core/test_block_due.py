import pytest

from sessionary.schemas.codec import encode_record
from sessionary.schemas.records import BatchAcknowledged, Tick
from sessionary.sinks.core.block_due import IDLE_RECORDS, BlockLimits, WaitingRecords, is_block_due
from tests.support.event_factory import EventFactory
from tests.support.sink_records import batch_record

LIMITS = BlockLimits(rows=9_000, bytes=100, seconds=1.0, idle_seconds=60.0)


@pytest.mark.parametrize(
    ("waiting", "now_s", "is_due"),
    [
        # Records arrived at 10 s; those that are all idle may wait until 70 s.
        (WaitingRecords(1, 1, 10.0, 70.0), 11.0, False),
        (WaitingRecords(1, 1, 10.0, 70.0), 69.999, False),
        (WaitingRecords(1, 1, 10.0, 70.0), 70.0, True),
        # Idle records that are old already are collected for as long as others.
        (WaitingRecords(1, 1, 10.0, 10.0), 10.999, False),
        (WaitingRecords(1, 1, 10.0, 10.0), 11.0, True),
        # Another record among them: as if it had come alone.
        (WaitingRecords(5, 5, 10.0, 70.0, busy_since_s=40.0), 40.999, False),
        (WaitingRecords(5, 5, 10.0, 70.0, busy_since_s=40.0), 41.0, True),
        (WaitingRecords(1, 1, 10.0, 70.0, busy_since_s=10.0), 11.0, True),
        # More is known to wait in the log.
        (WaitingRecords(1, 1, 10.0, 70.0, busy_since_s=10.0, is_far_behind=True), 13.999, False),
        (WaitingRecords(1, 1, 10.0, 70.0, busy_since_s=10.0, is_far_behind=True), 14.0, True),
        (WaitingRecords(1, 1, 10.0, 10.0, is_far_behind=True), 13.999, False),
        (WaitingRecords(1, 1, 10.0, 10.0, is_far_behind=True), 14.0, True),
        # A full block does not wait; one of many idle records waits no longer than others.
        (WaitingRecords(9_000, 1, 10.0, 70.0), 10.0, True),
        (WaitingRecords(1, 100, 10.0, 70.0), 10.0, True),
        (WaitingRecords(5_000, 1, 10.0, 70.0), 10.999, False),
        (WaitingRecords(5_000, 1, 10.0, 70.0), 11.0, True),
    ],
)
def test_when_a_block_is_due(waiting: WaitingRecords, now_s: float, is_due: bool) -> None:
    assert is_block_due(waiting, LIMITS, now_s) is is_due


def ticks_alone(**fields: object) -> bytes:
    counts: dict[str, object] = {"applied": 0, "audited": 0, "ticks": 60, **fields}
    return encode_record(batch_record(0, 1, **counts))


def test_ticks_and_heartbeats_are_idle_other_events_are_not() -> None:
    is_idle = IDLE_RECORDS["events"]
    assert is_idle(encode_record(Tick("p1")))
    assert is_idle(EventFactory().event_bytes("heartbeat"))
    assert not is_idle(EventFactory().event_bytes("session_started"))
    assert not is_idle(b"")
    assert not is_idle(None)


def test_a_batch_is_idle_if_only_ticks_made_it() -> None:
    is_idle = IDLE_RECORDS["batches"]
    assert is_idle(ticks_alone())
    for count in ("applied", "duplicate", "rejected", "audited", "timers"):
        assert not is_idle(ticks_alone(**{count: 1})), count


def test_acknowledgements_are_idle_and_unreadable_batches_are_not() -> None:
    is_idle = IDLE_RECORDS["batches"]
    assert is_idle(encode_record(BatchAcknowledged(0, 1, 1_000, "p1")))
    assert not is_idle(ticks_alone()[:12])
    assert not is_idle(None)


def test_topics_without_idle_records_have_no_rule() -> None:
    assert IDLE_RECORDS.keys() == {"events", "batches"}
