"""Records as Kafka delivers them to a sink."""

from clickhouse_connect.datatypes.registry import get_from_name
from clickhouse_connect.driver.insert import InsertContext
from confluent_kafka import Message

from sessionary.schemas.codec import Decoder, Event, encode_event
from sessionary.schemas.events import SessionActivity
from sessionary.schemas.types import DataClass, Envelope
from sessionary.sinks.clickhouse.native import NativeBlock
from sessionary.sinks.core.rows.history import HISTORY_COLUMNS
from sessionary.sinks.core.rows.shared import RawRecord
from tests.support.sink_records import NOW_US, session_id

# The types of the table's columns, as sinks insert them.
HISTORY_TYPES = (
    *("UInt32", "UInt64", "DateTime64(3, 'UTC')", "String"),
    *("String", "String", "Int32", "String", "String", "Nullable(String)", "String", "Nullable(String)", "String"),
    *("Nullable(String)", "Int64", "String", "Int64", "Nullable(String)", "Nullable(Int64)", "Nullable(String)"),
    *("Nullable(String)", "DateTime64(6, 'UTC')", "Array(String)", "Nullable(Int64)", "Nullable(String)"),
    *("Nullable(String)", "String", "Nullable(String)", "Nullable(String)"),
    *("Array(Tuple(name String, value String))", "String", "DateTime64(6, 'UTC')", "Nullable(DateTime64(6, 'UTC'))"),
    *("DateTime('UTC')", "String", "UInt32"),
    *("Nullable(String)", "Int64", "Int64", "Int64", "Int64", "Bool", "Int64", "Int64", "Int64", "Int64"),
    *("Nullable(Int64)", "Nullable(Int64)", "Nullable(UInt64)", "Nullable(Int64)", "String", "String"),
)
KEY = f"acme:{session_id(1)}".encode()
DECODER = Decoder()


def history_block() -> NativeBlock:
    """Return an empty block of the table history."""
    types = [get_from_name(name) for name in HISTORY_TYPES]
    return NativeBlock(InsertContext("t", [*HISTORY_COLUMNS, "topic_id"], types, column_oriented=True), "id")


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
