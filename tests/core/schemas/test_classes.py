"""Classes, .avsc files, codec and bytes hold together; an independent reader agrees."""

import io
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import avro.io
import avro.schema
import pytest
from cloudevents.core.bindings.kafka import KafkaMessage, from_binary
from cloudevents.core.formats.json import JSONFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from sessionary.schemas import events, types
from sessionary.schemas.codec import Decoder, Event, Record, encode_confluent, encode_event, encode_record
from sessionary.schemas.codec.catalogue import current_schemas
from sessionary.schemas.events import EVENT_TYPES, PAYLOADS, SessionCreated, StateUpdated
from sessionary.schemas.headers import event_headers, headers_beyond_envelope
from sessionary.schemas.ids import SessionKey
from sessionary.schemas.types import Envelope
from tests.support.values import (
    AVRO,
    RAW,
    RECORDS,
    UNIONS,
    as_json,
    events_of,
    every_example,
    example,
    example_event,
    field_types,
    is_record_class,
    values,
)

COMMON = [cls for cls in vars(types).values() if is_record_class(cls) and cls.__module__ == types.__name__]
CLASSES: list[Any] = [*PAYLOADS.values(), *RECORDS, *COMMON]
PRIMITIVES = {str: "string", bool: "boolean", float: "double", bytes: "bytes"}


class MemoryRegistry:
    """A registry in a list."""

    def __init__(self, *schemas: str) -> None:
        self.schemas = list(schemas)

    def get_schema(self, schema_id: int) -> str:
        try:
            return self.schemas[schema_id]
        except IndexError:
            raise KeyError(schema_id) from None

    def register_schema(self, full_name: str, schema: str) -> int:
        assert full_name in schema or json.loads(schema)["name"] in full_name
        if schema not in self.schemas:
            self.schemas.append(schema)
        return self.schemas.index(schema)


def encoded(value: Event | Record) -> bytes:
    return encode_event(value) if isinstance(value, Event) else encode_record(value)


def agrees(hint: Any, avro_type: Any) -> bool:  # one line per kind of type
    origin = get_origin(hint)
    if isinstance(avro_type, dict) and "logicalType" in avro_type:
        return hint is int and avro_type == {"type": "long", "logicalType": "timestamp-micros"}
    if origin in UNIONS:
        (inner,) = (part for part in get_args(hint) if part is not NoneType)
        return isinstance(avro_type, list) and avro_type[0] == "null" and agrees(inner, avro_type[1])
    if origin is Literal:
        return tuple(RAW[avro_type.rpartition(".")[2]]["symbols"]) == get_args(hint)
    if origin is not None and issubclass(origin, Mapping):
        return bool(avro_type["type"] == "map") and agrees(get_args(hint)[1], avro_type["values"])
    if origin is not None and issubclass(origin, Sequence):
        return bool(avro_type["type"] == "array") and agrees(get_args(hint)[0], avro_type["items"])
    if is_record_class(hint):
        return bool(avro_type == f"sessionary.common.{hint.__name__}")
    return avro_type in ("int", "long") if hint is int else bool(PRIMITIVES[hint] == avro_type)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_class_has_the_fields_of_its_schema_in_order_and_type(cls: Any) -> None:
    in_schema = [field for field in RAW[cls.__name__]["fields"] if field["name"] != "envelope"]
    assert [field["name"] for field in in_schema] == list(cls._fields)
    for name, hint, avro_type in field_types(cls):
        assert agrees(hint, avro_type), f"{cls.__name__}.{name}: {hint} is not {avro_type}"


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_class_default_is_the_schemas_default(cls: Any) -> None:
    defaults = {f["name"]: f["default"] for f in RAW[cls.__name__]["fields"] if "default" in f}
    if cls is types.Limits:  # 0.1.0's schema has no default for it, and a released schema never changes
        assert "override" not in defaults
        defaults["override"] = False
    for name, default in cls._field_defaults.items():
        assert as_json(default) == defaults.get(name, "none given")


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_schema_says_what_the_first_line_of_its_class_says(cls: Any) -> None:
    assert RAW[cls.__name__]["doc"] == cls.__doc__.splitlines()[0]


def test_limits_are_built_from_what_differs() -> None:
    assert types.Limits() == (*[None] * 13, False)
    assert types.Limits(idle_ms=600_000) == types.Limits()._replace(idle_ms=600_000)
    event = example_event(SessionCreated)
    event = event._replace(payload=SessionCreated(types.Limits(idle_ms=600_000), example(types.Snapshot)))
    assert Decoder().decode_event(encode_event(event)) == event


def test_every_event_type_has_a_class_a_schema_and_a_place_in_the_union() -> None:
    schemas = {path.name.removesuffix(".avsc") for path in (AVRO / "events").iterdir()}
    assert len(PAYLOADS) == 59
    assert set(PAYLOADS) == schemas
    assert set(PAYLOADS.values()) == set(get_args(events.Payload))
    assert {cls: name for name, cls in PAYLOADS.items()} == EVENT_TYPES
    assert {RAW[cls.__name__]["namespace"] for cls in PAYLOADS.values()} == {"sessionary.events"}
    assert all(RAW[cls.__name__]["fields"][0]["name"] == "envelope" for cls in PAYLOADS.values())
    assert {cls.__name__ for cls in CLASSES} | {"ENUMS"} >= {n for n, s in RAW.items() if s["type"] == "record"}


def test_every_enum_begins_with_unknown_and_falls_back_to_it() -> None:
    enums = {name: schema for name, schema in RAW.items() if schema["type"] == "enum"}
    assert enums
    for name, schema in enums.items():
        assert schema["symbols"][0] == schema["default"] == "UNKNOWN"
        assert tuple(schema["symbols"]) == get_args(getattr(types, name))


@pytest.mark.parametrize("event_type", PAYLOADS)
@settings(max_examples=15)
@given(data=st.data())
def test_every_event_comes_back_as_it_went(event_type: str, data: st.DataObject) -> None:
    event = data.draw(events_of(event_type))
    registry = MemoryRegistry()
    assert Decoder().decode_event(encode_event(event)) == event
    assert Decoder(registry).decode_event(encode_confluent(event, registry)) == event


@pytest.mark.parametrize("cls", RECORDS, ids=lambda cls: cls.__name__)
@settings(max_examples=30)
@given(data=st.data())
def test_every_record_comes_back_as_it_went(cls: Any, data: st.DataObject) -> None:
    record = data.draw(values(cls))
    registry = MemoryRegistry()
    assert Decoder().decode_record(encode_record(record)) == record
    assert Decoder(registry).decode_record(encode_confluent(record, registry)) == record


def test_apaches_own_reader_reads_our_bytes() -> None:
    for value in every_example():
        name = type(value.payload if isinstance(value, Event) else value).__name__
        (full_name,) = (known for known in current_schemas() if known.endswith("." + name))
        schema = avro.schema.parse(json.dumps(current_schemas()[full_name]))
        body = io.BytesIO(encoded(value)[10:])
        read: Any = avro.io.DatumReader(schema).read(avro.io.BinaryDecoder(body))
        assert body.read() == b""
        expected = as_json(value)
        if isinstance(value, Event):
            expected = {"envelope": expected["envelope"], **expected["payload"]}
        assert as_json(read) == expected


def test_tuples_and_lists_are_written_alike() -> None:
    event = example_event(StateUpdated)
    as_tuple = event._replace(envelope=event.envelope._replace(data_classes=("personal", "medical")))
    as_list = event._replace(envelope=event.envelope._replace(data_classes=["personal", "medical"]))
    assert encode_event(as_tuple) == encode_event(as_list)


def test_the_cloudevents_library_reads_our_headers() -> None:
    occurred = datetime(2026, 3, 1, 12, 30, 15, 123456, UTC)
    micros = (occurred - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    key = SessionKey("acme", "0198f1c2-7d9a-7000-8000-000000000001")
    envelope = example(Envelope)._replace(
        event_id="7f8b2f2e-4c1b-4b60-9a55-0a2f2bb7a001",
        event_type="state_updated",
        tenant_id=key.tenant_id,
        session_id=key.session_id,
        service_id="billing",
        occurred_at=micros,
    )
    event = Event(envelope, StateUpdated(1, 2, "{}"))
    headers = event_headers(envelope, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    assert len(dict(headers)) == len(headers)
    message = KafkaMessage(dict(headers), key.encoded(), encode_event(event))
    read = from_binary(message, JSONFormat())
    assert read.get_specversion() == "1.0"
    assert read.get_id() == envelope.event_id
    assert read.get_source() == "/acme/billing"
    assert read.get_type() == "sessionary.state_updated"
    assert read.get_subject() == key.session_id
    assert read.get_time() == occurred
    assert read.get_datacontenttype() == "application/avro"
    data = read.get_data()
    assert isinstance(data, bytes)
    assert Decoder().decode_event(data) == event


@given(st.integers(-60_000_000_000_000_000, 250_000_000_000_000_000) | st.sampled_from([0, -1, 999_999, 1_000_000]))
def test_the_time_of_an_event_is_exact_to_the_microsecond(occurred_at: int) -> None:
    exact = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=occurred_at)
    headers = dict(event_headers(example(Envelope)._replace(occurred_at=occurred_at)))
    assert headers["ce_time"] == exact.isoformat().encode()


def test_only_headers_that_repeat_the_envelope_exactly_are_told() -> None:
    envelope = example(Envelope)._replace(occurred_at=1_790_000_000_000_001)
    own = event_headers(envelope)
    more: list[tuple[str, bytes | None]] = [("traceparent", b"00-1-2-01"), ("x", None)]
    assert list(headers_beyond_envelope(envelope, own)) == []
    assert list(headers_beyond_envelope(envelope, [*own, *more])) == more
    for place, (name, value) in enumerate(own):
        other: list[tuple[str, bytes | None]] = [*own[:place], (name, value + b"!"), *own[place + 1 :]]
        for headers in (other, [*other, *more], [*own[:place], *own[place + 1 :]]):
            assert headers_beyond_envelope(envelope, headers) == headers
    assert headers_beyond_envelope(envelope, [*more, *own]) == [*more, *own]
    assert headers_beyond_envelope(envelope._replace(occurred_at=1 << 62), own) == own


@pytest.mark.parametrize("traceparent", [None, "", "00-xyz", "00-" + "A" * 32 + "-" + "b" * 16 + "-01", "a\r\nb"])
def test_a_malformed_traceparent_is_left_out(traceparent: str | None) -> None:
    names = [name for name, _ in event_headers(example(Envelope)._replace(occurred_at=0), traceparent)]
    assert "traceparent" not in names
    assert "ce_id" in names
