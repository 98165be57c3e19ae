"""Classes, .avsc files, codec and bytes hold together; an independent reader agrees."""

import io
import json
from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import avro.io
import avro.schema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessionary.schemas import events, types
from sessionary.schemas.codec import Decoder, Event, Record, encode_confluent, encode_event, encode_record
from sessionary.schemas.codec.catalogue import current_schemas
from sessionary.schemas.events import EVENT_TYPES, PAYLOADS, SessionCreated, StateUpdated
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

_OF_TYPES = (types.__name__, "sessionary.schemas.types")
COMMON = [cls for cls in vars(types).values() if is_record_class(cls) and cls.__module__.startswith(_OF_TYPES)]
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
    assert types.Limits() == (*[None] * 14, False)
    assert types.Limits(idle_ms=600_000) == types.Limits()._replace(idle_ms=600_000)
    event = example_event(SessionCreated)
    event = event._replace(payload=SessionCreated(types.Limits(idle_ms=600_000), example(types.Snapshot)))
    assert Decoder().decode_event(encode_event(event)) == event


def test_every_event_type_has_a_class_a_schema_and_a_place_in_the_union() -> None:
    schemas = {path.name.removesuffix(".avsc") for path in (AVRO / "events").iterdir()}
    assert len(PAYLOADS) == 60
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
