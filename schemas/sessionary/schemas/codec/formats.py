"""How each class is read and written: its schema, its header and its conversions."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sessionary.schemas import records
from sessionary.schemas.codec.catalogue import (
    EVENTS_NAMESPACE,
    Json,
    current_schemas,
    parsed_schema,
    schema_fingerprint,
)
from sessionary.schemas.codec.mapping import record_reader, record_writer
from sessionary.schemas.errors import DecodeError, EncodeError
from sessionary.schemas.events import EVENT_TYPES, PAYLOADS, Payload
from sessionary.schemas.records import (
    AuditRecord,
    BatchRecord,
    CleanupRequest,
    Gravestone,
    Position,
    RejectedEvent,
    SessionState,
    Tick,
)
from sessionary.schemas.types import Envelope

SINGLE_OBJECT = b"\xc3\x01"

Record = AuditRecord | BatchRecord | CleanupRequest | Gravestone | Position | RejectedEvent | SessionState | Tick
"""Any record that processors write."""


class Event(NamedTuple):
    """An event: the envelope (who, where and when) and the payload (what).

    `envelope.event_type` must be the type of the payload's class (`EVENT_TYPES`).
    """

    envelope: Envelope
    payload: Payload


class Format(NamedTuple):
    """How one class is read and written."""

    cls: type[Any]
    header: bytes
    schema: dict[str, Json]
    to_avro: Callable[[Any], dict[str, Any]]
    from_avro: Callable[[dict[str, Any]], Any]
    is_event: bool


def _event_writer(payload: type[Any], schema: Mapping[str, Json]) -> Callable[[Event], dict[str, Any]]:
    write_payload, write_envelope = record_writer(payload, schema), record_writer(Envelope, _envelope_schema(schema))

    def write_event(event: Event) -> dict[str, Any]:
        if type(event.envelope) is not Envelope:
            raise TypeError(f"envelope is a {type(event.envelope).__name__}")
        fields = write_payload(event.payload)
        fields["envelope"] = write_envelope(event.envelope)
        return fields

    return write_event


def _event_reader(payload: type[Any], schema: Mapping[str, Json]) -> Callable[[dict[str, Any]], Event]:
    read_payload, read_envelope = record_reader(payload, schema), record_reader(Envelope, _envelope_schema(schema))

    def read_event(decoded: dict[str, Any]) -> Event:
        envelope: Envelope = read_envelope(decoded["envelope"])
        if envelope.event_type != EVENT_TYPES[payload]:
            raise DecodeError("unknown_event_type", f"{envelope.event_type!r} written as {payload.__name__}")
        return Event(envelope, read_payload(decoded))

    return read_event


def _envelope_schema(schema: Mapping[str, Json]) -> Mapping[str, Json]:
    (envelope,) = (field["type"] for field in schema["fields"] if field["name"] == "envelope")
    assert isinstance(envelope, dict)
    return envelope


def _build_formats() -> tuple[dict[str, Format], dict[type[Any], Format]]:
    by_name: dict[str, Format] = {}
    by_class: dict[type[Any], Format] = {}
    payloads = {f"{EVENTS_NAMESPACE}.{cls.__name__}": cls for cls in PAYLOADS.values()}
    for name, schema in current_schemas().items():
        cls: type[Any] = payloads.get(name) or getattr(records, name.rpartition(".")[2])
        is_event = name in payloads
        by_name[name] = by_class[cls] = Format(
            cls,
            SINGLE_OBJECT + schema_fingerprint(schema),
            parsed_schema(schema),
            _event_writer(cls, schema) if is_event else record_writer(cls, schema),
            _event_reader(cls, schema) if is_event else record_reader(cls, schema),
            is_event,
        )
    return by_name, by_class


FORMATS_BY_NAME, FORMATS_BY_CLASS = _build_formats()


def format_of(value: Event | Record) -> Format:
    """Return how `value` is written.

    Raises `EncodeError` for a foreign class, or a payload under the wrong event type.
    """
    content = value.payload if isinstance(value, Event) else value
    format_ = FORMATS_BY_CLASS.get(type(content))
    if format_ is None or format_.is_event != isinstance(value, Event):
        raise EncodeError("invalid_value", f"no schema is known for a {type(content).__name__}")
    if isinstance(value, Event) and value.envelope.event_type != EVENT_TYPES[format_.cls]:
        raise EncodeError("invalid_value", f"event type {value.envelope.event_type!r} with a {format_.cls.__name__}")
    return format_


__all__ = [
    "FORMATS_BY_CLASS",
    "FORMATS_BY_NAME",
    "SINGLE_OBJECT",
    "Event",
    "Format",
    "Record",
    "format_of",
]
