"""How each class is read and written: its schema, its header and its conversions."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sessionary.schemas import records
from sessionary.schemas.codec.catalogue import (
    EVENTS_NAMESPACE,
    Json,
    current_schemas,
    parsed_schema,
    released_schemas,
    schema_fingerprint,
)
from sessionary.schemas.codec.mapping import record_reader, record_writer
from sessionary.schemas.errors import DecodeError, EncodeError
from sessionary.schemas.events import EVENT_TYPES, PAYLOADS, Payload
from sessionary.schemas.records import (
    AuditRecord,
    BatchAcknowledged,
    BatchRecord,
    CleanupRequest,
    Gravestone,
    GravestoneChunk,
    Position,
    RejectedEvent,
    RulesActivation,
    SessionContent,
    SessionState,
    Tick,
)
from sessionary.schemas.rules import NEWEST_RULES, RULES_BY_RELEASE
from sessionary.schemas.types import Envelope

SINGLE_OBJECT = b"\xc3\x01"

Record = (
    AuditRecord
    | BatchAcknowledged
    | BatchRecord
    | CleanupRequest
    | Gravestone
    | GravestoneChunk
    | Position
    | RejectedEvent
    | RulesActivation
    | SessionContent
    | SessionState
    | Tick
)
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


_PAYLOADS_BY_NAME = {f"{EVENTS_NAMESPACE}.{cls.__name__}": cls for cls in PAYLOADS.values()}


def _build_format(name: str, schema: Mapping[str, Json], from_avro: Callable[[Any], Any] | None = None) -> Format:
    """Return how the class named by `name` is written with a schema, and read with today's."""
    is_event = name in _PAYLOADS_BY_NAME
    cls: type[Any] = _PAYLOADS_BY_NAME[name] if is_event else getattr(records, name.rpartition(".")[2])
    return Format(
        cls,
        SINGLE_OBJECT + schema_fingerprint(schema),
        parsed_schema(schema),
        _event_writer(cls, schema) if is_event else record_writer(cls, schema),
        from_avro or (_event_reader(cls, schema) if is_event else record_reader(cls, schema)),
        is_event,
    )


def _build_record_formats() -> dict[int, dict[type[Any], Format]]:
    """Return how records are written, by the version of the rules that are in force.

    The schemas are those of the release that the rules are from: until other rules are activated,
    a worker of that release may have to read every topic.
    """
    newest = {format_.cls: format_ for format_ in FORMATS_BY_NAME.values() if not format_.is_event}
    found = {NEWEST_RULES.version: newest}
    for release, version in RULES_BY_RELEASE.items():
        found[version] = {
            FORMATS_BY_NAME[name].cls: _older_format(name, schema)
            for name, schema in released_schemas()[release].items()
            if name in FORMATS_BY_NAME and not FORMATS_BY_NAME[name].is_event
        }
    return found


def _older_format(name: str, schema: Mapping[str, Json]) -> Format:
    today = FORMATS_BY_NAME[name]
    if today.header == SINGLE_OBJECT + schema_fingerprint(schema):
        return today
    return _build_format(name, schema, today.from_avro)


class OlderForm(NamedTuple):
    """How a release wrote events of a class that has more fields today."""

    format: Format
    fields: int  # of the payload
    defaults: tuple[Any, ...]  # of the fields that came later


def _build_older_events() -> dict[type[Any], OlderForm]:
    """Return the first release's forms of the events that have more fields today."""
    found: dict[type[Any], OlderForm] = {}
    for release in sorted(RULES_BY_RELEASE, reverse=True):
        for name, schema in released_schemas()[release].items():
            if name in _PAYLOADS_BY_NAME and (older := _older_format(name, schema)) is not FORMATS_BY_NAME[name]:
                fields = len(schema["fields"]) - 1  # without the envelope
                later = older.cls._fields[fields:]
                found[older.cls] = OlderForm(older, fields, tuple(older.cls._field_defaults[each] for each in later))
    return found


FORMATS_BY_NAME = {name: _build_format(name, schema) for name, schema in current_schemas().items()}
FORMATS_BY_CLASS = {format_.cls: format_ for format_ in FORMATS_BY_NAME.values()}
RECORD_FORMATS = _build_record_formats()
OLDER_EVENTS = _build_older_events()


def record_format(cls: type[Any], rules: int) -> Format:
    """Return how records of `cls` are written while a version of the rules is in force.

    Raises `EncodeError` for a class that is no record, or one that these rules do not know.
    """
    format_ = RECORD_FORMATS[rules].get(cls)
    if format_ is None:
        raise EncodeError("invalid_value", f"rules {rules} have no schema for a {cls.__name__}")
    return format_


def format_of(value: Event | Record) -> Format:
    """Return how `value` is written with today's schemas.

    Raises `EncodeError` for a foreign class, or a payload under the wrong event type.
    """
    content = value.payload if isinstance(value, Event) else value
    format_ = FORMATS_BY_CLASS.get(type(content))
    if format_ is None or format_.is_event != isinstance(value, Event):
        raise EncodeError("invalid_value", f"no schema is known for a {type(content).__name__}")
    if isinstance(value, Event) and value.envelope.event_type != EVENT_TYPES[format_.cls]:
        raise EncodeError("invalid_value", f"event type {value.envelope.event_type!r} with a {format_.cls.__name__}")
    return format_


def event_format(event: Event) -> Format:
    """Return how `event` is written, so that judges by the oldest rules that can know it do.

    If it says nothing in the fields that came later, that is as the first release wrote it. Raises
    as `format_of` does.
    """
    format_ = format_of(event)
    older = OLDER_EVENTS.get(format_.cls)
    if older is not None and event.payload[older.fields :] == older.defaults:
        return older.format
    return format_


__all__ = [
    "FORMATS_BY_CLASS",
    "FORMATS_BY_NAME",
    "RECORD_FORMATS",
    "SINGLE_OBJECT",
    "Event",
    "Format",
    "Record",
    "event_format",
    "format_of",
    "record_format",
]
