"""How each class is read and written: its schema, its header and its conversions."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

from sessionary.schemas import records
from sessionary.schemas.codec.catalogue import (
    EVENTS_NAMESPACE,
    RECORDS_NAMESPACE,
    Json,
    canonical_form,
    current_schemas,
    parsed_schema,
    schema_fingerprint,
    schemas_by,
)
from sessionary.schemas.codec.mapping import record_reader, record_writer
from sessionary.schemas.errors import DecodeError, EncodeError
from sessionary.schemas.events import EVENT_TYPES, PAYLOADS, Payload
from sessionary.schemas.records import (
    AgentState,
    ArtifactState,
    AuditRecord,
    BatchAcknowledged,
    BatchRecord,
    CheckpointState,
    CleanupRequest,
    EndedToolCall,
    FinishedRun,
    MessageContent,
    MessageState,
    MigrationRequest,
    Position,
    QuotaNotice,
    QuotaVerdict,
    RejectedEvent,
    RulesActivation,
    RunContent,
    RunState,
    RunTombstone,
    SessionContent,
    SessionState,
    StepContent,
    StepState,
    TaskRequest,
    TenantQuota,
    Tick,
    TimedStep,
    Tombstone,
    TombstoneChunk,
    ToolCallContent,
    ToolCallState,
)
from sessionary.schemas.rules import known_rules
from sessionary.schemas.types import Envelope

SINGLE_OBJECT = b"\xc3\x01"

Record = (
    AgentState
    | ArtifactState
    | AuditRecord
    | BatchAcknowledged
    | BatchRecord
    | CheckpointState
    | CleanupRequest
    | EndedToolCall
    | FinishedRun
    | Tombstone
    | TombstoneChunk
    | MessageContent
    | MessageState
    | MigrationRequest
    | Position
    | QuotaNotice
    | QuotaVerdict
    | RejectedEvent
    | RulesActivation
    | RunContent
    | RunTombstone
    | RunState
    | SessionContent
    | SessionState
    | StepContent
    | StepState
    | TaskRequest
    | TenantQuota
    | Tick
    | TimedStep
    | ToolCallContent
    | ToolCallState
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


def format_by_name(name: str) -> Format | None:
    """Return how the class with a full name is written with today's schema; None if it has none."""
    return _build_current(name) if name in current_schemas() else None


# A format takes milliseconds to build, and a process uses few of them.
@cache
def _build_current(name: str) -> Format:
    return _build_format(name, current_schemas()[name])


class _CurrentFormats(dict[type[Any], Format | None]):
    """How classes are written with today's schemas; None for a foreign class."""

    def __missing__(self, cls: type[Any]) -> Format | None:
        """Build the format of a class; it is None for a foreign one."""
        format_ = format_by_name(f"{EVENTS_NAMESPACE}.{cls.__name__}") or format_by_name(
            f"{RECORDS_NAMESPACE}.{cls.__name__}"
        )
        if format_ is None or format_.cls is not cls:
            return None  # not kept: there is no end of foreign classes
        self[cls] = format_
        return format_


@cache
def record_formats(rules: int) -> Mapping[type[Any], Format]:
    """Return how records are written while a version of the rules is in force, by their classes.

    Until newer rules are activated, a worker that knows only these may have to read every topic.
    Raises `KeyError` for unknown rules.
    """
    formats = [
        _form_by_schema(name, schema) for name, schema in schemas_by(rules).items() if name not in _PAYLOADS_BY_NAME
    ]
    return {format_.cls: format_ for format_ in formats}


def _form_by_schema(name: str, schema: Mapping[str, Json]) -> Format:
    """Return how a class is written with a schema of its name; today's format if they are equal."""
    today = _build_current(name)
    if canonical_form(schema) == canonical_form(current_schemas()[name]):
        return today
    return _build_format(name, schema, today.from_avro)


class OlderForm(NamedTuple):
    """How older rules write events of a class that has another schema today."""

    format: Format
    fields: int  # of the payload
    defaults: tuple[Any, ...]  # of the fields that came later


class _OlderEvents(dict[type[Any], OlderForm | None]):
    """The oldest form of each event class that has another schema today, else None."""

    def __missing__(self, cls: type[Any]) -> OlderForm | None:
        name = f"{EVENTS_NAMESPACE}.{cls.__name__}"
        by_rules = (schemas_by(rules) for rules in sorted(known_rules()))
        first = next(_form_by_schema(name, schemas[name]) for schemas in by_rules if name in schemas)
        self[cls] = found = None if first is _build_current(name) else _older_form(first)
        return found


def _older_form(format_: Format) -> OlderForm:
    fields = len(format_.schema["fields"]) - 1  # without the envelope
    later = format_.cls._fields[fields:]
    return OlderForm(format_, fields, tuple(format_.cls._field_defaults[each] for each in later))


_CURRENT_FORMATS = _CurrentFormats()
_OLDER_EVENTS = _OlderEvents()


def record_format(cls: type[Any], rules: int) -> Format:
    """Return how records of `cls` are written while a version of the rules is in force.

    Raises `EncodeError` for a class that is no record, or one that these rules do not know.
    """
    format_ = record_formats(rules).get(cls)
    if format_ is None:
        raise EncodeError("invalid_value", f"rules {rules} have no schema for a {cls.__name__}")
    return format_


def format_of(value: Event | Record) -> Format:
    """Return how `value` is written with today's schemas.

    Raises `EncodeError` for a foreign class, or a payload under the wrong event type.
    """
    content = value.payload if isinstance(value, Event) else value
    format_ = _CURRENT_FORMATS[type(content)]
    if format_ is None or format_.is_event != isinstance(value, Event):
        raise EncodeError("invalid_value", f"no schema is known for a {type(content).__name__}")
    if isinstance(value, Event) and value.envelope.event_type != EVENT_TYPES[format_.cls]:
        raise EncodeError("invalid_value", f"event type {value.envelope.event_type!r} with a {format_.cls.__name__}")
    return format_


def event_format(event: Event) -> Format:
    """Return how `event` is written, so that judges by the oldest possible rules know it.

    If its later fields have only defaults, the event is written in the oldest form. Raises as
    `format_of` does.
    """
    newest = format_of(event)
    older = _OLDER_EVENTS[newest.cls]
    if older is not None and event.payload[older.fields :] == older.defaults:
        return older.format
    return newest


def older_form(newest: Format) -> OlderForm | None:
    """Return how events are written whose later fields have only defaults, if differently.

    `newest` is today's format of the payload's class.
    """
    return _OLDER_EVENTS[newest.cls]
