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

from sessionary.schemas import common, records
from sessionary.schemas.catalogue import (
    EVENTS_NAMESPACE,
    Json,
    current_schemas,
    parsed_schema,
    schema_fingerprint,
    writer_schemas,
)
from sessionary.schemas.common import Envelope
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
    nested: dict[str, Callable[[Any], Any]]


def _nested_reader(schema: Json) -> Callable[[Any], Any] | None:
    """Return what turns a decoded value into our class, or None where the value is right as it comes."""
    match schema:
        case {"type": "record", "name": str(name)}:
            cls: Any = getattr(common, name.rpartition(".")[2])
            return _record_reader(cls, schema)
        case {"type": "array", "items": items}:
            read = _nested_reader(items)
            return None if read is None else _list_reader(read)
        case [_, branch]:
            read = _nested_reader(branch)
            return None if read is None else _optional_reader(read)
        case str() if schema.startswith("sessionary.common."):
            known = getattr(common, schema.rpartition(".")[2], None)
            if isinstance(known, type):  # a record already spelled out earlier in the same schema
                raise AssertionError(f"{schema}: inline it")
    return None


def _list_reader(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda values: [read(value) for value in values]


def _optional_reader(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


def _nested_fields(schema: Mapping[str, Json]) -> dict[str, Callable[[Any], Any]]:
    readers = ((field["name"], _nested_reader(field["type"])) for field in schema["fields"])
    return {name: reader for name, reader in readers if reader is not None}


def _record_reader(cls: Any, schema: Mapping[str, Json]) -> Callable[[dict[str, Any]], Any]:
    nested = _nested_fields(schema)

    def read(value: dict[str, Any]) -> Any:
        for name, convert in nested.items():
            value[name] = convert(value[name])
        return cls(**value)

    return read


def _plain(value: Any) -> Any:
    """Return `value` as fastavro writes it: classes as dicts, sequences as lists."""
    if isinstance(value, tuple):
        fields = getattr(value, "_fields", None)
        if fields is not None:
            return {name: _plain(part) for name, part in zip(fields, value, strict=True)}
        return [_plain(part) for part in value]
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return dict(value) if isinstance(value, Mapping) else value


def _record_to_avro(record: Any) -> dict[str, Any]:
    plain: dict[str, Any] = _plain(record)
    return plain


def _event_to_avro(event: Event) -> dict[str, Any]:
    plain = _record_to_avro(event.payload)
    plain["envelope"] = _record_to_avro(event.envelope)
    return plain


def _formats() -> tuple[dict[str, _Format], dict[type[Any], _Format]]:
    by_name: dict[str, _Format] = {}
    by_class: dict[type[Any], _Format] = {}
    classes = {f"{EVENTS_NAMESPACE}.{cls.__name__}": cls for cls in PAYLOADS.values()}
    for name, schema in current_schemas().items():
        cls: type[Any] = classes.get(name) or getattr(records, name.rpartition(".")[2])
        to_avro = _event_to_avro if name in classes else _record_to_avro
        header = SINGLE_OBJECT + schema_fingerprint(schema)
        by_name[name] = by_class[cls] = _Format(cls, header, parsed_schema(schema), to_avro, _nested_fields(schema))
    return by_name, by_class


_BY_NAME, _BY_CLASS = _formats()
_WRITERS = writer_schemas()


def _encoded(format_: _Format, value: Event | Record, header: bytes) -> bytes:
    out = BytesIO(header)
    out.seek(0, 2)
    try:
        schemaless_writer(out, format_.schema, format_.to_avro(value), strict=True)
    except (ValueError, TypeError, OverflowError, AttributeError, KeyError, struct.error) as error:
        raise EncodeError("invalid_value", f"{format_.cls.__name__}: {error}") from error
    return out.getvalue()


def encode_event(event: Event) -> bytes:
    """Return the event in single-object encoding. Raises `EncodeError`."""
    format_ = _BY_CLASS.get(type(event.payload))
    if format_ is None or event.envelope.event_type != EVENT_TYPES[type(event.payload)]:
        raise EncodeError(
            "invalid_value", f"event type {event.envelope.event_type!r} with a {type(event.payload).__name__}"
        )
    return _encoded(format_, event, format_.header)


def encode_record(record: Record) -> bytes:
    """Return the record in single-object encoding. Raises `EncodeError`."""
    format_ = _BY_CLASS[type(record)]
    return _encoded(format_, record, format_.header)


def encode_confluent(value: Event | Record, registry: SchemaRegistry) -> bytes:
    """Return `value` in Confluent's framing. Raises `EncodeError`, `Unavailable`."""
    format_ = _BY_CLASS[type(value.payload if isinstance(value, Event) else value)]
    name = f"{format_.schema['name']}"
    schema_id = registry.schema_id(name, json.dumps(current_schemas()[name]))
    return _encoded(format_, value, CONFLUENT + struct.pack(">I", schema_id))


class Decoder:
    """Reads both framings; keeps the registry's schemas once fetched. Raises `DecodeError`, `Unavailable`."""

    def __init__(self, registry: SchemaRegistry | None = None) -> None:
        self._registry = registry
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
                schema = json.loads(self._registry.schema(schema_id))
                self._fetched[schema_id] = (f"{schema['namespace']}.{schema['name']}", parsed_schema(schema))
            except (KeyError, ValueError, TypeError):
                raise DecodeError("unknown_schema", f"the registry has no usable schema {schema_id}") from None
        return self._fetched[schema_id]

    def _read(self, value: bytes, start: int, name: str, writer: dict[str, Json], *, current: bool) -> Event | Record:
        format_ = _BY_NAME.get(name)
        if format_ is None:
            reason: common.RefusalReason = (
                "unknown_event_type" if name.startswith(EVENTS_NAMESPACE) else "unknown_schema"
            )
            raise DecodeError(reason, f"no class for {name}")
        source = BytesIO(value)
        source.seek(start)
        try:
            decoded: Any = schemaless_reader(source, writer, None if current else format_.schema)
        except Exception as error:  # noqa: BLE001 - whatever broken bytes provoke in the reader is a property of the bytes
            raise DecodeError("undecodable", f"{name}: {type(error).__name__} {error}") from None
        if source.tell() != len(value):
            raise DecodeError("undecodable", f"{name}: {len(value) - source.tell()} bytes too many")
        return _built(format_, decoded)


def _built(format_: _Format, decoded: dict[str, Any]) -> Event | Record:
    for field, convert in format_.nested.items():
        decoded[field] = convert(decoded[field])
    if format_.to_avro is _record_to_avro:
        record: Record = format_.cls(**decoded)
        return record
    envelope: Envelope = decoded.pop("envelope")
    if EVENT_TYPES[format_.cls] != envelope.event_type:
        raise DecodeError("unknown_event_type", f"{envelope.event_type!r} written as {format_.cls.__name__}")
    return Event(envelope, format_.cls(**decoded))


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
]
