"""Our classes as fastavro's plain dicts, and back: planned once per class from its schema, so that it costs little.

fastavro itself checks few types (it writes any object as a boolean, and any int as an `int`), so writing checks them.
"""

from collections.abc import Callable, Mapping
from operator import itemgetter
from types import MappingProxyType, NoneType
from typing import Any

from sessionary.schemas import types
from sessionary.schemas.codec.catalogue import Json

# The Python types that a value of an Avro type may have; exactly these, so that True is no int.
_TYPES: dict[str, frozenset[type[Any]]] = {
    "null": frozenset({NoneType}),
    "boolean": frozenset({bool}),
    "int": frozenset({int}),
    "long": frozenset({int}),
    "double": frozenset({float, int}),
    "string": frozenset({str}),
    "enum": frozenset({str}),
    "bytes": frozenset({bytes}),
    "array": frozenset({list, tuple}),
    "map": frozenset({dict, MappingProxyType}),
}
_INT_MAX = (1 << 31) - 1
_COMBINATIONS_MAX = 1_000


def _class_named(full_name: str) -> Any:
    return getattr(types, full_name.rpartition(".")[2])


def types_of(schema: Json) -> frozenset[type[Any]]:
    """Return the exact Python types that may stand for `schema`."""
    match schema:
        case list():
            return frozenset[type[Any]]().union(*(types_of(branch) for branch in schema))
        case {"type": "record"}:
            return frozenset({_class_named(schema["name"])})
        case {"type": inner}:
            return types_of(inner)
        case str() if schema not in _TYPES:  # a named type that was spelled out earlier in the same schema
            assert not isinstance(_class_named(schema), type), f"{schema}: a record may stand once only"
            return _TYPES["enum"]
    return _TYPES[schema]


def _int32(value: int) -> int:
    """Return `value`; fastavro itself would write an `int` beyond 32 bits, which other readers refuse."""
    if not -_INT_MAX - 1 <= value <= _INT_MAX:
        raise ValueError(f"{value} does not fit an int")
    return value


def _mapped(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda values: tuple(map(convert, values)) if values else ()


def _checked_items(schema: Json) -> Callable[[Any], Any]:
    types, convert = types_of(schema), _writer(schema)

    def write(values: Any) -> list[Any]:
        for value in values:
            if type(value) not in types:
                raise TypeError(f"an item is a {type(value).__name__}")
        return list(values) if convert is None else [convert(value) for value in values]

    return write


def _optional(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


def _writer(schema: Json) -> Callable[[Any], Any] | None:
    """Return what turns a value of ours into fastavro's, or None where it is right as it stands."""
    match schema:
        case "int":
            return _int32
        case {"type": "record"}:
            return record_writer(_class_named(schema["name"]), schema)
        case {"type": "array", "items": items}:
            return _checked_items(items)
        case {"type": "map"}:
            return dict
        case ["null", branch]:
            convert = _writer(branch)
            return None if convert is None else _optional(convert)
    return None


def _planned(
    cls: Any, schema: Mapping[str, Json], plan: Callable[[Json], Callable[[Any], Any] | None]
) -> tuple[list[Json], list[tuple[str, Callable[[Any], Any]]]]:
    """Return the Avro types of the fields of `cls` in its order, and the conversions of those that need one."""
    types = {field["name"]: field["type"] for field in schema["fields"]}
    assert types.keys() - {"envelope"} == set(cls._fields), f"{cls.__name__} and its schema differ"
    planned = ((name, plan(types[name])) for name in cls._fields)
    return [types[name] for name in cls._fields], [(name, convert) for name, convert in planned if convert is not None]


def type_check(
    cls: Any, schema: Mapping[str, Json]
) -> tuple[set[tuple[type[Any], ...]], Callable[[tuple[Any, ...]], None]]:
    """Return which combinations of field types were found right, and what checks an instance of `cls` and adds its own.

    Records have few such combinations, so most are known at a look. The check raises `TypeError`.
    """
    avro_types, _ = _planned(cls, schema, lambda _schema: None)
    types = tuple(types_of(avro_type) for avro_type in avro_types)
    right: set[tuple[type[Any], ...]] = set()

    def check(record: tuple[Any, ...]) -> None:
        found = tuple(map(type, record))
        for name, type_, allowed in zip(cls._fields, found, types, strict=True):
            if type_ not in allowed:
                raise TypeError(f"{name} is a {type_.__name__}")
        if len(right) < _COMBINATIONS_MAX:
            right.add(found)

    return right, check


def record_writer(cls: Any, schema: Mapping[str, Json]) -> Callable[[Any], dict[str, Any]]:
    """Plan once how instances of `cls` become fastavro's dicts.

    The plan raises `TypeError` where a field is not exactly of its type, `ValueError` for an int beyond 32 bits.
    """
    _, writers = _planned(cls, schema, _writer)
    names: tuple[str, ...] = cls._fields
    right, check = type_check(cls, schema)

    def write(record: Any) -> dict[str, Any]:
        if tuple(map(type, record)) not in right:
            check(record)
        plain = dict(zip(names, record, strict=True))
        for name, convert in writers:
            plain[name] = convert(plain[name])
        return plain

    return write


def _reader(schema: Json) -> Callable[[Any], Any] | None:
    """Return what turns a decoded value into our class, or None where the value is right as it comes."""
    match schema:
        case {"type": "record"}:
            return record_reader(_class_named(schema["name"]), schema)
        case {"type": "array", "items": items}:
            read = _reader(items)
            return tuple if read is None else _mapped(read)
        case ["null", branch]:
            read = _reader(branch)
            return None if read is None else _optional(read)
    return None


def record_reader(cls: Any, schema: Mapping[str, Json]) -> Callable[[dict[str, Any]], Any]:
    """Plan once how decoded dicts become instances of `cls`; a dict of an older writer may have another order."""
    _, readers = _planned(cls, schema, _reader)
    # itemgetter gives a tuple from two names on only.
    values = itemgetter(*cls._fields) if len(cls._fields) > 1 else lambda decoded: [decoded[n] for n in cls._fields]
    make = cls._make

    def read(decoded: dict[str, Any]) -> Any:
        for name, convert in readers:
            decoded[name] = convert(decoded[name])
        return make(values(decoded))

    return read


__all__ = ["record_reader", "record_writer", "type_check", "types_of"]
