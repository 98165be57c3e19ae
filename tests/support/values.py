"""Examples and Hypothesis strategies of every event and record, built from the class annotations
and the raw .avsc.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.resources import files
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from sessionary.schemas import events, records, types
from sessionary.schemas.codec import Event, Record
from sessionary.schemas.events import EVENT_TYPES, PAYLOADS, Payload
from sessionary.schemas.types import Envelope

AVRO = files("sessionary.schemas") / "avro"
RECORDS: list[type[Any]] = [getattr(records, name) for name in records.__all__]
UNIONS = (UnionType, Union)
INT = st.integers(-(1 << 31), (1 << 31) - 1)
LONG = st.integers(-(1 << 63), (1 << 63) - 1)


def raw_schemas() -> dict[str, dict[str, Any]]:
    """Every .avsc by its short name, as the file has it."""
    found: dict[str, dict[str, Any]] = {}
    for folder in ("common", "events", "records"):
        for path in (AVRO / folder).iterdir():
            schema = json.loads(path.read_text("utf-8"))
            found[schema["name"]] = schema
    return found


RAW = raw_schemas()


def is_record_class(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields")


def field_types(cls: type[Any]) -> Iterator[tuple[str, Any, Any]]:
    """(name, annotation, Avro type as written) of each field of a class."""
    hints = get_type_hints(cls)
    avro = {field["name"]: field["type"] for field in RAW[cls.__name__]["fields"]}
    return ((name, hints[name], avro[name]) for name in getattr(cls, "_fields"))  # noqa: B009


def _branch(avro: Any) -> Any:
    return avro[1] if isinstance(avro, list) else avro


def _strategy(hint: Any, avro: Any) -> st.SearchStrategy[Any]:
    origin = get_origin(hint)
    if origin in UNIONS:
        inner = next(part for part in get_args(hint) if part is not NoneType)
        return st.none() | _strategy(inner, _branch(avro))
    if origin is Literal:
        return st.sampled_from(get_args(hint))
    if origin is not None and issubclass(origin, Mapping):
        return st.dictionaries(st.text(max_size=5), _strategy(get_args(hint)[1], avro["values"]), max_size=3)
    if origin is not None and issubclass(origin, Sequence):
        return st.lists(_strategy(get_args(hint)[0], avro["items"]), max_size=3).map(tuple)
    if is_record_class(hint):
        return values(hint)
    if hint is int:
        return INT if avro == "int" else LONG
    scalars: dict[Any, st.SearchStrategy[Any]] = {
        str: st.text(max_size=20),
        bool: st.booleans(),
        float: st.floats(allow_nan=False),
        bytes: st.binary(max_size=20),
    }
    return scalars[hint]


def values(cls: type[Any]) -> st.SearchStrategy[Any]:
    """Any instance of an event, record or common class."""
    return st.builds(cls, **{name: _strategy(hint, avro) for name, hint, avro in field_types(cls)})


def events_of(event_type: str) -> st.SearchStrategy[Event]:
    envelope = values(Envelope).map(lambda envelope: envelope._replace(event_type=event_type))
    return st.builds(Event, envelope, values(PAYLOADS[event_type]))


def _example(hint: Any, name: str) -> Any:
    origin = get_origin(hint)
    if origin in UNIONS:
        return _example(next(part for part in get_args(hint) if part is not NoneType), name)
    if origin is Literal:
        return get_args(hint)[1]
    if origin is not None and issubclass(origin, Mapping):
        return {name: _example(get_args(hint)[1], name)}
    if origin is not None and issubclass(origin, Sequence):
        return (_example(get_args(hint)[0], name),)
    if is_record_class(hint):
        return example(hint)
    number = sum(name.encode())
    return {str: f"{name} ü", int: number, float: number / 8, bool: True, bytes: name.encode()}[hint]


def example(cls: type[Any]) -> Any:
    """One fixed instance, every field filled with something that tells the field."""
    return cls(**{name: _example(hint, name) for name, hint, _ in field_types(cls)})


def example_event(payload: type[Payload]) -> Event:
    return Event(example(Envelope)._replace(event_type=EVENT_TYPES[payload]), example(payload))


def every_example() -> Iterator[Event | Record]:
    for payload in PAYLOADS.values():
        yield example_event(payload)
    for record in RECORDS:
        yield example(record)


def as_json(value: Any, bytes_as: Callable[[bytes], Any] = bytes.hex) -> Any:
    """A value as JSON has it: classes as objects, bytes as `bytes_as` makes them."""
    if is_record_class(type(value)):
        return {name: as_json(part, bytes_as) for name, part in zip(value._fields, value, strict=True)}
    if isinstance(value, list | tuple):
        return [as_json(part, bytes_as) for part in value]
    if isinstance(value, dict | MappingProxyType):
        return {name: as_json(part, bytes_as) for name, part in value.items()}
    return bytes_as(value) if isinstance(value, bytes) else value


__all__ = [
    "RAW",
    "RECORDS",
    "as_json",
    "events",
    "events_of",
    "every_example",
    "example",
    "example_event",
    "field_types",
    "is_record_class",
    "raw_schemas",
    "types",
    "values",
]
