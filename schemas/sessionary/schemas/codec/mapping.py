"""Our classes to fastavro's dicts, and back.

The conversions of the fields are planned once per class, from its schema. fastavro checks few types
(it writes any object as a boolean, and any int as an `int`), so the types are checked here.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from reprlib import repr as brief_repr
from types import MappingProxyType, NoneType
from typing import Any, get_args

from sessionary.schemas import types
from sessionary.schemas.codec.catalogue import Json

# The Python types that a value of an Avro type may have; exactly these: True is no int.
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
    """Return the exact Python types that a value of `schema` may have."""
    match schema:
        case list():
            return frozenset[type[Any]]().union(*(types_of(branch) for branch in schema))
        case {"type": "record"}:
            return frozenset({_class_named(schema["name"])})
        case {"type": inner}:
            return types_of(inner)
        case str() if schema not in _TYPES:  # a named type, spelled out earlier in the same schema
            assert not isinstance(_class_named(schema), type), f"{schema}: a record may occur once only"
            return _TYPES["enum"]
    return _TYPES[schema]


def _checked_int32(value: int) -> int:
    """Return `value`. Raises `ValueError` beyond 32 bits, which fastavro writes all the same."""
    if not -_INT_MAX - 1 <= value <= _INT_MAX:
        raise ValueError(f"{value} does not fit an int")
    return value


def _for_each(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda values: tuple(map(convert, values)) if values else ()


def _checked_items(schema: Json) -> Callable[[Any], Any]:
    types, convert = types_of(schema), _value_writer(schema)

    def write_items(values: Any) -> list[Any]:
        for value in values:
            if type(value) not in types:
                raise TypeError(f"an item is a {type(value).__name__}")
        return list(values) if convert is None else [convert(value) for value in values]

    return write_items


def _unless_none(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


def _value_writer(schema: Json) -> Callable[[Any], Any] | None:
    """Return a function from our value to fastavro's; None if the two are the same."""
    match schema:
        case "int":
            return _checked_int32
        case {"type": "record"}:
            return record_writer(_class_named(schema["name"]), schema)
        case {"type": "array", "items": items}:
            return _checked_items(items)
        case {"type": "map"}:
            return dict
        case ["null", branch]:
            convert = _value_writer(branch)
            return None if convert is None else _unless_none(convert)
    return None


def _field_plan(
    cls: Any, schema: Mapping[str, Json], plan: Callable[[Json], Callable[[Any], Any] | None]
) -> tuple[list[Json], list[tuple[str, Callable[[Any], Any]]]]:
    """Return the Avro types of the fields of `cls`, in its order, and the conversions by field.

    The type of a field that an older schema has not is None. `plan` returns the conversion of an
    Avro type, or None if a value needs none.
    """
    types = {field["name"]: field["type"] for field in schema["fields"]}
    assert types.keys() - {"envelope"} <= set(cls._fields), f"{cls.__name__} and its schema differ"
    assert set(cls._fields) - types.keys() <= cls._field_defaults.keys(), f"{cls.__name__} and its schema differ"
    planned = ((name, plan(types[name])) for name in cls._fields if name in types)
    conversions = [(name, convert) for name, convert in planned if convert is not None]
    return [types.get(name) for name in cls._fields], conversions


def absent_fields(cls: Any, schema: Mapping[str, Json]) -> dict[str, Any]:
    """Return the fields of `cls` that an older `schema` has not, with their defaults."""
    there = {field["name"] for field in schema["fields"]}
    return {name: cls._field_defaults[name] for name in cls._fields if name not in there}


def field_types(cls: Any, schema: Mapping[str, Json]) -> tuple[frozenset[type[Any]] | None, ...]:
    """Return the exact types of each field of `cls`; None for a field that is not written."""
    avro_types, _ = _field_plan(cls, schema, lambda _schema: None)
    return tuple(None if avro_type is None else types_of(avro_type) for avro_type in avro_types)


def check_types(
    cls: Any, types: Sequence[frozenset[type[Any]] | None]
) -> tuple[set[tuple[type[Any], ...]], Callable[[tuple[Any, ...]], None]]:
    """Return a set of combinations of field types, and a check that adds a right one to it.

    `types` are the `field_types`. Records have few combinations, so most are found in the set,
    without a call. The check raises `TypeError` if a field of an instance of `cls` is not exactly
    of its type.
    """
    right: set[tuple[type[Any], ...]] = set()

    def check_record(record: tuple[Any, ...]) -> None:
        found = tuple(map(type, record))
        for name, type_, allowed in zip(cls._fields, found, types, strict=True):
            if allowed is not None and type_ not in allowed:
                raise TypeError(f"{name} is a {type_.__name__}")
        if len(right) < _COMBINATIONS_MAX:
            right.add(found)

    return right, check_record


def record_writer(cls: Any, schema: Mapping[str, Json]) -> Callable[[Any], dict[str, Any]]:
    """Return a function from instances of `cls` to fastavro's dicts.

    It raises `TypeError` if a field is not exactly of its type, `ValueError` for an `int` beyond 32
    bits, and for a value, other than the default, of a field that an older `schema` has not.
    """
    _, writers = _field_plan(cls, schema, _value_writer)
    names: tuple[str, ...] = cls._fields
    right, check = check_types(cls, field_types(cls, schema))
    absent = absent_fields(cls, schema)

    def write_record(record: Any) -> dict[str, Any]:
        if tuple(map(type, record)) not in right:
            check(record)
        fields = dict(zip(names, record, strict=True))
        for name, default in absent.items():
            if fields.pop(name) != default:
                raise ValueError(f"{name} has no place in this older schema")
        for name, convert in writers:
            fields[name] = convert(fields[name])
        return fields

    return write_record


def find_misfit(value: Any, schema: Json, path: str) -> str:
    """Return which part of a value does not fit its schema, and the types that fit, or ''.

    Names the part by `path` and by the fields that lead to it. For people; slow.
    """
    if type(value) not in types_of(schema):
        return f"{path} is {brief_repr(value)}, {_with_article(type(value))}; allowed: {_type_names(schema)}"
    match schema:
        case ["null", branch]:
            return "" if value is None else find_misfit(value, branch, path)
        case {"type": "record", "fields": fields}:
            return find_wrong_field(value, fields, f"{path}.")
        case {"type": "array", "items": items}:
            return _first(find_misfit(item, items, f"{path}[{n}]") for n, item in enumerate(value))
        case {"type": "map", "values": values}:
            wrong_key = _first(find_misfit(key, "string", f"a key of {path}") for key in value)
            return wrong_key or _first(find_misfit(item, values, f"{path}[{key!r}]") for key, item in value.items())
        case {"type": "enum", "symbols": symbols}:
            return _find_foreign_symbol(value, symbols, path)
        case {"type": inner}:
            return find_misfit(value, inner, path)
        case "int" | "long":
            bits = 32 if schema == "int" else 64
            return "" if -(1 << bits - 1) <= value < 1 << bits - 1 else f"{path} is beyond {bits} bits"
        case str() if schema not in _TYPES:
            return _find_foreign_symbol(value, get_args(_class_named(schema)), path)
    return ""


def find_wrong_field(record: Any, fields: Sequence[Mapping[str, Json]], prefix: str = "") -> str:
    """Return the result of `find_misfit` for the first misfitting field of a record, or ''."""
    named = [field for field in fields if field["name"] in record._fields]
    return _first(find_misfit(getattr(record, f["name"]), f["type"], f"{prefix}{f['name']}") for f in named)


def _first(findings: Iterable[str]) -> str:
    return next((found for found in findings if found), "")


def _find_foreign_symbol(value: str, symbols: Sequence[str], path: str) -> str:
    if value in symbols:
        return ""
    allowed = ", ".join(symbol for symbol in symbols if symbol != "UNKNOWN")
    return f"{path} is {brief_repr(value)}; allowed: {allowed}"


def _type_names(schema: Json) -> str:
    return ", ".join(sorted("None" if cls is NoneType else cls.__name__ for cls in types_of(schema)))


def _with_article(cls: type[Any]) -> str:
    return f"{'an' if cls.__name__[0] in 'aeiou' else 'a'} {cls.__name__}"


def _value_reader(schema: Json) -> Callable[[Any], Any] | None:
    """Return a function from fastavro's value to ours; None if the two are the same."""
    match schema:
        case {"type": "record"}:
            return record_reader(_class_named(schema["name"]), schema)
        case {"type": "array", "items": items}:
            read = _value_reader(items)
            return tuple if read is None else _for_each(read)
        case ["null", branch]:
            read = _value_reader(branch)
            return None if read is None else _unless_none(read)
    return None


def record_reader(cls: Any, schema: Mapping[str, Json]) -> Callable[[dict[str, Any]], Any]:
    """Return a function from fastavro's dicts to instances of `cls`.

    A dict that an older schema wrote may have its fields in another order.
    """
    _, readers = _field_plan(cls, schema, _value_reader)
    # With one name, itemgetter returns no tuple.
    values = itemgetter(*cls._fields) if len(cls._fields) > 1 else lambda decoded: [decoded[n] for n in cls._fields]
    make = cls._make

    def read_record(decoded: dict[str, Any]) -> Any:
        for name, convert in readers:
            decoded[name] = convert(decoded[name])
        return make(values(decoded))

    return read_record
