from sessionary.schemas.codec import encode_record
from sessionary.schemas.records import BatchAcknowledged, Tick
from sessionary.sinks.core.idle_records import IDLE_RECORDS
from tests.support.event_factory import EventFactory
from tests.support.sink_records import batch_record


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
    for count in ("applied", "duplicate", "refused", "audited", "timers"):
        assert not is_idle(ticks_alone(**{count: 1})), count


def test_acknowledgements_are_idle_and_unreadable_batches_are_not() -> None:
    is_idle = IDLE_RECORDS["batches"]
    assert is_idle(encode_record(BatchAcknowledged(0, 1, 1_000, "p1")))
    assert not is_idle(ticks_alone()[:12])
    assert not is_idle(None)


def test_topics_without_idle_records_have_no_rule() -> None:
    assert IDLE_RECORDS.keys() == {"events", "batches"}
