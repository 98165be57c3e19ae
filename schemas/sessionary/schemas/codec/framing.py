"""Bytes to events and records, and back; pure. The first byte identifies the framing.

    C3 01 + fingerprint (8 bytes, little-endian) + body    Avro's single-object encoding
    00    + schema id (4 bytes, big-endian)      + body    Confluent's: a registry has the schema

The schemas of all fingerprints ship in this package.

Writing is strict: a missing, extra or ill-typed field is an `EncodeError`. Reading evolves: bytes
of any known schema become today's classes, and an unknown enum symbol becomes `UNKNOWN`. For any
other bytes reading raises a `DecodeError`, whose reason is `undecodable`, `unknown_schema` or
`unknown_event_type`. The only other error is `Unavailable`, if a registry does not answer.
"""

import json
import struct
from collections.abc import Mapping
from functools import cache, lru_cache, partial
from io import BytesIO
from typing import Any, Protocol

from fastavro import schemaless_reader, schemaless_writer

from sessionary.schemas import types
from sessionary.schemas.codec.catalogue import (
    EVENTS_NAMESPACE,
    Json,
    current_schemas,
    foreign_schema,
    schemas_as_of,
    writer_schemas,
)
from sessionary.schemas.codec.compiled_helpers import READER_GAVE_UP, WRITER_GAVE_UP, Reader, Writer, find_function
from sessionary.schemas.codec.formats import (
    SINGLE_OBJECT,
    Event,
    Format,
    Record,
    event_format,
    format_by_name,
    format_of,
    record_format,
    record_formats,
)
from sessionary.schemas.codec.mapping import find_wrong_field
from sessionary.schemas.errors import DecodeError, EncodeError
from sessionary.schemas.events import Payload
from sessionary.schemas.headers import EventIdentity
from sessionary.schemas.records import Position, QuotaVerdict, RulesActivation, Tick
from sessionary.schemas.rules import known_rules, newest_known, rules_to_write

CONFLUENT = b"\x00"
_ON_EVENTS = (Event, Tick, RulesActivation, QuotaVerdict)  # each call would make a new union
_FETCHED_MAX = 1_024
_HEADER_BYTES = 10


class SchemaRegistry(Protocol):
    """Finds the writer's schema of bytes in Confluent's framing."""

    def get_schema(self, schema_id: int) -> str:
        """Return the schema's JSON; may block.

        Raises `KeyError` for an unknown id, `Unavailable` if the registry does not answer.
        """
        ...

    def register_schema(self, full_name: str, schema: str) -> int:
        """Return the id of `schema`; registers it if it is new. May block. Raises `Unavailable`."""
        ...


_NEWEST = newest_known().version
_WRITERS: dict[bytes, Writer] = {}


class _CompiledReaders(dict[bytes, Reader | None]):
    """Compiled readers by the first ten bytes of a value; each loads when it is first needed."""

    def __init__(self, rules: int) -> None:
        super().__init__()
        self._rules = rules  # of the judges that read

    def __missing__(self, header: bytes) -> Reader | None:
        """Load the reader of a known schema; None for any other header, or if none was made."""
        writer = schemas_as_of(self._rules).get(header[2:]) if header[:2] == SINGLE_OBJECT else None
        if writer is None or format_by_name(writer.full_name) is None:
            return None  # not kept: there is no end of other headers
        reader: Reader | None = find_function("read", writer.full_name, writer.fingerprint)
        self[header] = reader
        return reader


_compiled_readers_as_of = cache(_CompiledReaders)


def read_compiled(value: bytes, readers: Mapping[bytes, Reader | None] | None = None) -> Event | Record | None:
    """Read bytes that a known schema wrote; None if the compiled reader gave up.

    None says nothing about the bytes: `Decoder` reads them, or reports the fault.
    """
    known, header = _NEWEST_READERS if readers is None else readers, value[:_HEADER_BYTES]
    # By `get`: the index of a class below `dict` is looked up as a method by each use.
    if (read := known.get(header) or known[header]) is None:
        return None
    try:
        found: Event | Record = read(value, _HEADER_BYTES)
    except READER_GAVE_UP:
        return None
    return found


def read_identity(value: bytes) -> EventIdentity | None:
    """Read a part of an event's envelope; None if no known schema wrote the event.

    Costs a quarter of reading the event, and says nothing about the rest of it. Only an event that
    the compiled reader gives up is read in full; None if that cannot be done.
    """
    if (read := _identity_reader(value[:_HEADER_BYTES])) is None:
        return None
    try:
        found: EventIdentity = read(value, _HEADER_BYTES)
    except READER_GAVE_UP:
        return _identity_of_whole(value)
    return found


def _identity_of_whole(value: bytes, _place: int = _HEADER_BYTES) -> EventIdentity | None:
    try:
        event = Decoder(compiled=False).decode_event(value)
    except DecodeError:
        return None
    assert isinstance(event, Event)
    return EventIdentity(*(getattr(event.envelope, field) for field in EventIdentity._fields))


@lru_cache(maxsize=_FETCHED_MAX)
def _identity_reader(header: bytes) -> Reader | None:
    writer = writer_schemas().get(header[2:]) if header[:2] == SINGLE_OBJECT else None
    format_ = None if writer is None else format_by_name(writer.full_name)
    if writer is None or format_ is None or not format_.is_event:
        return None
    return find_function("read_identity", writer.full_name, writer.fingerprint) or _identity_of_whole


_NEWEST_READERS = _compiled_readers_as_of(_NEWEST)


def _encode_with(format_: Format, value: Event | Record, header: bytes) -> bytes:
    try:
        return _writer_of(format_)(header, value)
    except WRITER_GAVE_UP:
        return write_generally(value, header, format_)


def _writer_of(format_: Format) -> Writer:
    """Return the compiled writer of a format, or fastavro's if none was made."""
    writer = _WRITERS.get(format_.header)
    if writer is None:
        name = f"{format_.schema['name']}"
        writer = find_function("write", name, format_.header[2:]) or partial(_write_plainly, format_)
        _WRITERS[format_.header] = writer
    return writer


def _write_plainly(format_: Format, header: bytes, value: Event | Record) -> bytes:
    return write_generally(value, header, format_)


def write_generally(value: Event | Record, header: bytes, format_: Format | None = None) -> bytes:
    """Return `header` and `value`, written by fastavro, which decides what may be written.

    Today's schema is used unless a format is given. Raises `EncodeError`.
    """
    format_ = format_ or format_of(value)
    out = BytesIO()
    out.write(header)
    try:
        schemaless_writer(out, format_.schema, format_.to_avro(value))
    except (ValueError, TypeError, OverflowError, AttributeError, KeyError, struct.error) as error:
        raise EncodeError(
            "invalid_value", f"{format_.cls.__name__}: {_find_wrong_value(value, format_) or error}"
        ) from error
    return out.getvalue()


def _find_wrong_value(value: Event | Record, format_: Format) -> str:
    """Return which field of a value does not fit, and which types would; '' if none is found."""
    fields = format_.schema["fields"]
    if not isinstance(value, Event):
        return find_wrong_field(value, fields)
    return find_wrong_field(value.payload, fields) or find_wrong_field(value, fields)


def encode_event(event: Event) -> bytes:
    """Return the event in single-object encoding. Raises `EncodeError`.

    The oldest form that holds the event is used, because judges by older rules know no later form.
    """
    format_ = event_format(event)
    return _encode_with(format_, event, format_.header)


def encode_record(record: Record, rules: int = _NEWEST) -> bytes:
    """Return the record in single-object encoding, as it is written while `rules` are in force.

    Raises `EncodeError`, also for a value for which an older schema has no place.
    """
    format_ = record_format(type(record), rules)
    return _encode_with(format_, record, format_.header)


def encode_position(position: Position) -> bytes:
    """Return the position in single-object encoding, with the schema that its rules need."""
    return encode_record(position, rules_to_write(position.rules, position.announced))


def record_headers(cls: type[Record]) -> frozenset[bytes]:
    """Return the ten bytes with which records of `cls` begin, for every version of the rules."""
    return frozenset(formats[cls].header for formats in map(record_formats, known_rules()) if cls in formats)


def event_schema_headers(payload: type[Payload]) -> frozenset[bytes]:
    """Return the ten bytes with which events of a payload's class begin, by all rules."""
    name = f"{EVENTS_NAMESPACE}.{payload.__name__}"
    return frozenset(SINGLE_OBJECT + key for key, writer in writer_schemas().items() if writer.full_name == name)


def encode_confluent(value: Event | Record, registry: SchemaRegistry) -> bytes:
    """Return `value` in Confluent's framing; may block on the registry.

    Raises `EncodeError`, `Unavailable`.
    """
    format_ = format_of(value)
    name = f"{format_.schema['name']}"
    schema_id = registry.register_schema(name, json.dumps(current_schemas()[name]))
    return _encode_with(format_, value, CONFLUENT + struct.pack(">I", schema_id))


class Decoder:
    """Reads both framings. Keeps the registry's schemas once they are fetched."""

    def __init__(
        self, registry: SchemaRegistry | None = None, *, compiled: bool = True, rules: int | None = None
    ) -> None:
        """Make a decoder; without a `registry` bytes in Confluent's framing have an unknown schema.

        With `compiled=False`, fastavro reads all: the same values and errors, slower. With older
        `rules`, schemas that came with later ones are unknown; default: the newest.
        """
        rules = newest_known().version if rules is None else rules
        self._registry = registry
        self._compiled = compiled
        self._rules = rules
        self._readers = _compiled_readers_as_of(rules)
        self._fetched: dict[int, tuple[str, dict[str, Json]]] = {}
        self._by_rules: dict[int, Decoder] = {rules: self}

    def as_of(self, rules: int) -> "Decoder":
        """Return the decoder, with the same registry, of judges by a version of the rules."""
        found = self._by_rules.get(rules)
        if found is None:
            found = Decoder(self._registry, compiled=self._compiled, rules=rules)
            found._fetched, found._by_rules = self._fetched, self._by_rules
            self._by_rules[rules] = found
        return found

    def decode_event(self, value: bytes | None) -> Event | Tick | RulesActivation | QuotaVerdict:
        """Read a value of the events topic; may block on the registry, once per schema.

        Raises `DecodeError`, `Unavailable`.
        """
        decoded = self._decode(value)
        if isinstance(decoded, _ON_EVENTS):
            return decoded
        raise DecodeError("unknown_event_type", f"a {type(decoded).__name__} is no event")

    def decode_record(self, value: bytes | None) -> Record:
        """Read a value of a topic that processors write; may block as `decode_event`.

        Raises `DecodeError`, `Unavailable`.
        """
        decoded = self._decode(value)
        if isinstance(decoded, Event):
            raise DecodeError("unknown_schema", "an event stands where a processor's record should be")
        return decoded

    def _decode(self, value: bytes | None) -> Event | Record:
        if not value:
            raise DecodeError("undecodable", "no bytes")
        if self._compiled and (found := read_compiled(value, self._readers)) is not None:
            return found
        if value[:2] == SINGLE_OBJECT and len(value) >= _HEADER_BYTES:
            writer = schemas_as_of(self._rules).get(value[2:_HEADER_BYTES])
            if writer is None:
                raise DecodeError("unknown_schema", f"no schema has the fingerprint {value[2:_HEADER_BYTES].hex()}")
            return self._read_body(value, _HEADER_BYTES, writer.full_name, writer.parsed, current=writer.current)
        if value[:1] == CONFLUENT and len(value) >= 5:
            name, parsed = self._registry_schema(struct.unpack(">I", value[1:5])[0])
            return self._read_body(value, 5, name, parsed, current=False)
        raise DecodeError("undecodable", f"no framing begins with {value[:2].hex()}")

    def _registry_schema(self, schema_id: int) -> tuple[str, dict[str, Json]]:
        if schema_id not in self._fetched:
            if self._registry is None:
                raise DecodeError("unknown_schema", f"schema id {schema_id}, but no registry is configured")
            try:
                text = self._registry.get_schema(schema_id)
            except KeyError:
                raise DecodeError("unknown_schema", f"the registry has no schema {schema_id}") from None
            try:
                parsed = foreign_schema(text)
            except Exception as error:  # noqa: BLE001 - any text may be registered; the parser's errors are many
                detail = f"schema {schema_id} is not usable: {type(error).__name__}"
                raise DecodeError("unknown_schema", detail) from None
            if len(self._fetched) >= _FETCHED_MAX:
                self._fetched.clear()  # they are fetched again if they are still used
            self._fetched[schema_id] = parsed
        return self._fetched[schema_id]

    def _read_body(
        self, value: bytes, start: int, name: str, writer: dict[str, Json], *, current: bool
    ) -> Event | Record:
        format_ = format_by_name(name)
        if format_ is None:
            reason: types.RejectionReason = (
                "unknown_event_type" if name.startswith(EVENTS_NAMESPACE) else "unknown_schema"
            )
            raise DecodeError(reason, f"no class for {name}")
        source = BytesIO(value)
        source.seek(start)
        try:
            decoded: Any = schemaless_reader(source, writer, None if current else format_.schema)
        except Exception as error:  # noqa: BLE001 - any error that broken bytes provoke in fastavro
            # The detail goes into the audit trail, and a replay must give the same one. fastavro's
            # own text holds memory addresses.
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
    "encode_position",
    "encode_record",
    "event_schema_headers",
    "read_compiled",
    "read_identity",
    "record_headers",
    "write_generally",
]
