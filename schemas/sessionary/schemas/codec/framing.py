"""Bytes to events and records, and back. The first byte tells the framing.

    C3 01 + fingerprint (8 bytes, little-endian) + body    Avro single-object encoding; schemas ship in this package
    00    + schema id (4 bytes, big-endian)      + body    Confluent's; the id is looked up in a registry

Writing is strict: a missing, extra or ill-typed field is an `EncodeError`. Reading evolves: bytes of any released
schema become today's classes, an unknown enum symbol becomes `UNKNOWN`. Whatever else the bytes may be, reading ends in
a `DecodeError` whose reason is `undecodable`, `unknown_schema` or `unknown_event_type`; never in another error, but
for `Unavailable` where a registry does not answer.
"""

import json
import struct
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any, NamedTuple, Protocol

from fastavro import schemaless_reader, schemaless_writer

from sessionary.schemas import records, types
from sessionary.schemas.codec.catalogue import (
    EVENTS_NAMESPACE,
    Json,
    current_schemas,
    foreign_schema,
    parsed_schema,
    schema_fingerprint,
    writer_schemas,
)
from sessionary.schemas.codec.compiled_reader import GAVE_UP, Reader, compiled_reader
from sessionary.schemas.codec.compiled_writer import REFUSED, Writer, compiled_writer
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
CONFLUENT = b"\x00"
_HEADER_BYTES = 10

Record = AuditRecord | BatchRecord | CleanupRequest | Gravestone | Position | RejectedEvent | SessionState | Tick


class Event(NamedTuple):
    """An event as it travels: who, where and when, and what."""

    envelope: Envelope
    payload: Payload


class SchemaRegistry(Protocol):
    """Where Confluent-framed bytes find their writer's schema."""

    def schema(self, schema_id: int) -> str:
        """Return the schema's JSON. Raises `KeyError` for an id that does not exist, `Unavailable` for an outage."""
        ...

    def schema_id(self, full_name: str, schema: str) -> int:
        """Return the id of `schema`, registering it where needed. Raises `Unavailable`."""
        ...


class _Format(NamedTuple):
    """How one class is read and written."""

    cls: type[Any]
    header: bytes
    schema: dict[str, Json]
    to_avro: Callable[[Any], dict[str, Any]]
    from_avro: Callable[[dict[str, Any]], Any]
    is_event: bool


def _event_writer(payload: type[Any], schema: Mapping[str, Json]) -> Callable[[Event], dict[str, Any]]:
    write_payload, write_envelope = record_writer(payload, schema), record_writer(Envelope, _envelope_schema(schema))

    def write(event: Event) -> dict[str, Any]:
        if type(event.envelope) is not Envelope:
            raise TypeError(f"envelope is a {type(event.envelope).__name__}")
        plain = write_payload(event.payload)
        plain["envelope"] = write_envelope(event.envelope)
        return plain

    return write


def _event_reader(payload: type[Any], schema: Mapping[str, Json]) -> Callable[[dict[str, Any]], Event]:
    read_payload, read_envelope = record_reader(payload, schema), record_reader(Envelope, _envelope_schema(schema))

    def read(decoded: dict[str, Any]) -> Event:
        envelope: Envelope = read_envelope(decoded["envelope"])
        if envelope.event_type != EVENT_TYPES[payload]:
            raise DecodeError("unknown_event_type", f"{envelope.event_type!r} written as {payload.__name__}")
        return Event(envelope, read_payload(decoded))

    return read


def _envelope_schema(schema: Mapping[str, Json]) -> Mapping[str, Json]:
    (envelope,) = (field["type"] for field in schema["fields"] if field["name"] == "envelope")
    assert isinstance(envelope, dict)
    return envelope


def _formats() -> tuple[dict[str, _Format], dict[type[Any], _Format]]:
    by_name: dict[str, _Format] = {}
    by_class: dict[type[Any], _Format] = {}
    payloads = {f"{EVENTS_NAMESPACE}.{cls.__name__}": cls for cls in PAYLOADS.values()}
    for name, schema in current_schemas().items():
        cls: type[Any] = payloads.get(name) or getattr(records, name.rpartition(".")[2])
        is_event = name in payloads
        by_name[name] = by_class[cls] = _Format(
            cls,
            SINGLE_OBJECT + schema_fingerprint(schema),
            parsed_schema(schema),
            _event_writer(cls, schema) if is_event else record_writer(cls, schema),
            _event_reader(cls, schema) if is_event else record_reader(cls, schema),
            is_event,
        )
    return by_name, by_class


_BY_NAME, _BY_CLASS = _formats()
_WRITERS = writer_schemas()
_COMPILED_WRITERS: dict[type[Any], Writer] = {}


class _Quick(dict[bytes, Reader | None]):
    """Compiled readers by the bytes that a value begins with, each made when it is first needed."""

    def __missing__(self, header: bytes) -> Reader | None:
        """Compile the reader of what today's schemas wrote; None for anything else."""
        writer = _WRITERS.get(header[2:]) if header[:2] == SINGLE_OBJECT else None
        if writer is None or not writer.current:
            return None  # not kept: anybody may write any bytes
        format_ = _BY_NAME[writer.full_name]
        self[header] = reader = compiled_reader(writer.parsed, format_.cls, Event if format_.is_event else None)
        return reader


_QUICK = _Quick()


def read_compiled(value: bytes) -> Event | Record | None:
    """Read what today's schemas wrote, in the plain way of writing it; None for anything else, which says nothing."""
    if (read := _QUICK[value[:_HEADER_BYTES]]) is None:
        return None
    try:
        found: Event | Record = read(value, _HEADER_BYTES)
    except GAVE_UP:
        return None
    return found


def _format_of(value: Event | Record) -> _Format:
    """Return how `value` is written. Raises `EncodeError` for a foreign class or a payload under a wrong name."""
    content = value.payload if isinstance(value, Event) else value
    format_ = _BY_CLASS.get(type(content))
    if format_ is None or format_.is_event != isinstance(value, Event):
        raise EncodeError("invalid_value", f"a {type(content).__name__} is not written so")
    if isinstance(value, Event) and value.envelope.event_type != EVENT_TYPES[format_.cls]:
        raise EncodeError("invalid_value", f"event type {value.envelope.event_type!r} with a {format_.cls.__name__}")
    return format_


def _encoded(format_: _Format, value: Event | Record, header: bytes) -> bytes:
    try:
        return _writer_of(format_)(header, value)
    except REFUSED:
        return write_generally(value, header)


def _writer_of(format_: _Format) -> Writer:
    """Return the compiled writer of a class, made when it is first needed."""
    writer = _COMPILED_WRITERS.get(format_.cls)
    if writer is None:
        writer = compiled_writer(format_.schema, format_.cls, event=format_.is_event)
        _COMPILED_WRITERS[format_.cls] = writer
    return writer


def write_generally(value: Event | Record, header: bytes) -> bytes:
    """Write `value` behind `header` the general way: the authority on what may be written. Raises `EncodeError`."""
    format_ = _format_of(value)
    out = BytesIO()
    out.write(header)
    try:
        schemaless_writer(out, format_.schema, format_.to_avro(value))
    except (ValueError, TypeError, OverflowError, AttributeError, KeyError, struct.error) as error:
        raise EncodeError("invalid_value", f"{format_.cls.__name__}: {error}") from error
    return out.getvalue()


def encode_event(event: Event) -> bytes:
    """Return the event in single-object encoding. Raises `EncodeError`."""
    format_ = _format_of(event)
    return _encoded(format_, event, format_.header)


def encode_record(record: Record) -> bytes:
    """Return the record in single-object encoding. Raises `EncodeError`."""
    format_ = _format_of(record)
    return _encoded(format_, record, format_.header)


def record_header(cls: type[Record]) -> bytes:
    """Return the ten bytes with which `encode_record` begins every record of a class."""
    return _BY_CLASS[cls].header


def encode_confluent(value: Event | Record, registry: SchemaRegistry) -> bytes:
    """Return `value` in Confluent's framing. Raises `EncodeError`, `Unavailable`."""
    format_ = _format_of(value)
    name = f"{format_.schema['name']}"
    schema_id = registry.schema_id(name, json.dumps(current_schemas()[name]))
    return _encoded(format_, value, CONFLUENT + struct.pack(">I", schema_id))


class Decoder:
    """Reads both framings; keeps the registry's schemas once fetched. Raises `DecodeError`, `Unavailable`."""

    def __init__(self, registry: SchemaRegistry | None = None, *, compiled: bool = True) -> None:
        """`compiled=False` leaves all to the general reader: the same values and errors, later."""
        self._registry = registry
        self._compiled = compiled
        self._fetched: dict[int, tuple[str, dict[str, Json]]] = {}

    def event(self, value: bytes | None) -> Event | Tick:
        """Read what may stand on the events topic."""
        decoded = self._decoded(value)
        if isinstance(decoded, Event | Tick):
            return decoded
        raise DecodeError("unknown_event_type", f"a {type(decoded).__name__} is no event")

    def record(self, value: bytes | None) -> Record:
        """Read what may stand on a topic that a processor writes."""
        decoded = self._decoded(value)
        if isinstance(decoded, Event):
            raise DecodeError("unknown_schema", "an event stands where a processor's record should be")
        return decoded

    def _decoded(self, value: bytes | None) -> Event | Record:
        if not value:
            raise DecodeError("undecodable", "no bytes")
        if self._compiled and (found := read_compiled(value)) is not None:
            return found
        if value[:2] == SINGLE_OBJECT and len(value) >= _HEADER_BYTES:
            writer = _WRITERS.get(value[2:_HEADER_BYTES])
            if writer is None:
                raise DecodeError("unknown_schema", f"no schema has the fingerprint {value[2:_HEADER_BYTES].hex()}")
            return self._read(value, _HEADER_BYTES, writer.full_name, writer.parsed, current=writer.current)
        if value[:1] == CONFLUENT and len(value) >= 5:
            name, parsed = self._registered(struct.unpack(">I", value[1:5])[0])
            return self._read(value, 5, name, parsed, current=False)
        raise DecodeError("undecodable", f"no framing begins with {value[:2].hex()}")

    def _registered(self, schema_id: int) -> tuple[str, dict[str, Json]]:
        if schema_id not in self._fetched:
            if self._registry is None:
                raise DecodeError("unknown_schema", f"schema id {schema_id}, but no registry is configured")
            try:
                text = self._registry.schema(schema_id)
            except KeyError:
                raise DecodeError("unknown_schema", f"the registry has no schema {schema_id}") from None
            try:
                self._fetched[schema_id] = foreign_schema(text)
            except Exception as error:  # noqa: BLE001 - anyone may register anything; the parser's errors are many
                detail = f"schema {schema_id} is not usable: {type(error).__name__}"
                raise DecodeError("unknown_schema", detail) from None
        return self._fetched[schema_id]

    def _read(self, value: bytes, start: int, name: str, writer: dict[str, Json], *, current: bool) -> Event | Record:
        format_ = _BY_NAME.get(name)
        if format_ is None:
            reason: types.RefusalReason = (
                "unknown_event_type" if name.startswith(EVENTS_NAMESPACE) else "unknown_schema"
            )
            raise DecodeError(reason, f"no class for {name}")
        source = BytesIO(value)
        source.seek(start)
        try:
            decoded: Any = schemaless_reader(source, writer, None if current else format_.schema)
        except Exception as error:  # noqa: BLE001 - whatever broken bytes provoke in the reader is a property of the bytes
            # The detail goes into the audit trail, and a replay has to give the same: fastavro's text holds addresses.
            detail = f"{name}: {type(error).__name__} at byte {source.tell()}"
            raise DecodeError("undecodable", detail) from None
        if source.tell() != len(value):
            raise DecodeError("undecodable", f"{name}: {len(value) - source.tell()} bytes too many")
        built: Event | Record = format_.from_avro(decoded)
        return built


__all__ = [
    "CONFLUENT",
    "SINGLE_OBJECT",
    "Decoder",
    "Event",
    "Record",
    "SchemaRegistry",
    "encode_confluent",
    "encode_event",
    "encode_record",
    "read_compiled",
    "record_header",
    "write_generally",
]
