"""Records as Kafka delivers them to a sink."""

from confluent_kafka import Message

from sessionary.schemas.codec import Decoder, Event, encode_event
from sessionary.schemas.events import SessionActivity
from sessionary.schemas.types import DataClass, Envelope
from sessionary.sinks.core.rows.raw_record import RawRecord
from tests.support.sink_records import NOW_US, session_id

KEY = f"acme:{session_id(1)}".encode()
DECODER = Decoder()


def raw_record(value: bytes | None, key: bytes | None = KEY, timestamp_ms: int = NOW_US // 1_000) -> RawRecord:
    return RawRecord("t.x", 3, 42, timestamp_ms, key, value, message_with(("h", b"\xff"), ("h", None)))


def message_with(*headers: tuple[str, str | bytes | None]) -> Message:
    return Message("t.x", 3, 42, headers=list(headers))


def encoded_activity(*data_classes: DataClass, occurred_at: int = NOW_US) -> bytes:
    envelope = Envelope(
        event_id="e1",
        event_type="session_activity",
        schema_version=1,
        tenant_id="acme",
        session_id=session_id(1),
        user_id="u1",
        agent_id="a1",
        agent_role=None,
        service_id="billing",
        actor=None,
        epoch=1,
        producer_id="p1",
        producer_seq=7,
        run_id=None,
        run_seq=None,
        step_id=None,
        causation_id=None,
        occurred_at=occurred_at,
        data_classes=data_classes,
    )
    return encode_event(Event(envelope, SessionActivity("llm")))
