"""The text of writers: straight lines of Python.

In it `h` is the header, `r` the record, and `a` appends bytes. A writer knows the exact types of a
class's fields. At anything else it raises one of `WRITER_GAVE_UP`.
"""

from collections.abc import Mapping
from types import MappingProxyType, NoneType
from typing import Any

from generation.schemas import KnownSchema
from generation.source import SourceText, class_named
from sessionary.schemas.codec.catalogue import Json
from sessionary.schemas.codec.compiled_helpers import encode_long
from sessionary.schemas.codec.mapping import absent_fields, field_types, types_of
from sessionary.schemas.types import Envelope

_HELPERS = "sessionary.schemas.codec.compiled_helpers"
_INT_MAX = (1 << 31) - 1
_NAMES_IN_TYPES = {NoneType: "NoneType", MappingProxyType: "MappingProxyType"}


class WriterText:
    """Adds writers to the text of a module."""

    def __init__(self, source: SourceText) -> None:
        self._source = source
        self._add = source.add_lines
        for name in ("recurring_long", "write_double"):
            source.import_name(_HELPERS, name)
        source.import_name("sessionary.schemas.codec.mapping", "check_types")

    def add_writer(self, known: KnownSchema) -> str:
        """Add the writer of a header and an instance, of an event with its envelope."""
        self._open_function("write")
        if known.is_event:
            self._add(1, "envelope, r = r")
            self._add(1, f"if type(envelope) is not {self._source.import_class(Envelope)}: raise TypeError")
        self._write_fields(known.cls, known.schema, 1, "r", "envelope")
        self._add(1, "return b''.join(out)")
        return "write"

    def add_payload_writer(self, known: KnownSchema) -> str:
        """Add the writer of a header and the payload of an event, without its envelope."""
        fields = [field for field in known.schema["fields"] if field["name"] != "envelope"]
        self._open_function("write_payload")
        self._write_fields(known.cls, {**known.schema, "fields": fields}, 1, "r")
        self._add(1, "return b''.join(out)")
        return "write_payload"

    def _open_function(self, name: str) -> None:
        self._add(0, f"def {name}(h, r):", "    out = [h]", "    a = out.append")
        self._source.enums.clear()

    def _types(self, types: frozenset[type[Any]]) -> str:
        """Return the expression of a set of types."""
        names = []
        for type_ in sorted(types, key=lambda each: each.__name__):
            if hasattr(type_, "_fields"):
                names.append(self._source.import_class(type_))
            elif type_ in _NAMES_IN_TYPES:
                names.append(self._source.import_name("types", _NAMES_IN_TYPES[type_]))
            else:
                names.append(type_.__name__)
        return self._source.new_constant(f"frozenset(({''.join(f'{name}, ' for name in names)}))")

    def _write_fields(
        self, cls: type[Any], schema: Mapping[str, Json], indent: int, record: str, envelope: str = ""
    ) -> None:
        """Add the writing of the instance of `cls` that the name `record` refers to.

        `envelope` names the envelope that an event's schema has as a field, and the class has not.
        """
        source = self._source
        names = {field: source.new_name() for field in cls._fields}
        allowed = ("None" if types is None else self._types(types) for types in field_types(cls, schema))
        check = source.new_constant(f"check_types({source.import_class(cls)}, ({''.join(f'{a}, ' for a in allowed)}))")
        seen, checked = source.new_constant(f"{check}[0]"), source.new_constant(f"{check}[1]")
        self._add(indent, f"if tuple(map(type, {record})) not in {seen}: {checked}({record})")
        self._add(indent, f"({''.join(f'{name}, ' for name in names.values())}) = {record}")
        for field in absent_fields(cls, schema):
            self._add(indent, f"if {names[field]} != {source.default_of(cls, field)}: raise ValueError")
        for field in schema["fields"]:
            if field["name"] == "envelope":
                self._write_fields(Envelope, field["type"], indent, envelope)
            else:
                self._write_value(field["type"], indent, names[field["name"]])

    def _write_value(self, schema: Json, indent: int, operand: str) -> None:
        """Add the writing of the value that the name `operand` refers to; its type was checked."""
        source = self._source
        if isinstance(schema, str):
            schema = source.enums.get(schema, schema)
        match schema:
            case ["null", branch]:
                self._add(indent, f"if {operand} is None: a(b'\\0')", "else:", "    a(b'\\2')")
                self._write_value(branch, indent + 1, operand)
            case {"type": "record", "name": name}:
                self._write_fields(class_named(name), schema, indent, operand)
            case {"type": "enum", "name": name, "symbols": symbols}:
                source.enums[name] = schema
                places = source.new_constant(repr({symbol: encode_long(n) for n, symbol in enumerate(symbols)}))
                self._add(indent, f"a({places}[{operand}])")
            case {"type": "array", "items": items}:
                item, allowed = source.new_name(), self._types(types_of(items))
                self._add(indent, f"if {operand}:", f"    a(recurring_long(len({operand})))")
                self._add(indent, f"    for {item} in {operand}:")
                self._add(indent + 2, f"if type({item}) not in {allowed}: raise TypeError")
                self._write_value(items, indent + 2, item)
                self._add(indent, "a(b'\\0')")
            case {"type": "map", "values": values}:
                key, item, allowed = source.new_name(), source.new_name(), self._types(types_of(values))
                self._add(indent, f"if {operand}:", f"    a(recurring_long(len({operand})))")
                self._add(indent, f"    for {key}, {item} in {operand}.items():")
                self._add(indent + 2, f"if type({key}) is not str or type({item}) not in {allowed}: raise TypeError")
                self._write_scalar("string", indent + 2, key)
                self._write_value(values, indent + 2, item)
                self._add(indent, "a(b'\\0')")
            case {"type": inner}:
                self._write_value(inner, indent, operand)
            case _:
                self._write_scalar(schema, indent, operand)

    def _write_scalar(self, schema: str, indent: int, operand: str) -> None:
        match schema:
            case "string":
                self._add(indent, f"e = {operand}.encode()", "a(recurring_long(len(e)))", "a(e)")
            case "bytes":
                self._add(indent, f"a(recurring_long(len({operand})))", f"a({operand})")
            case "int":
                self._add(indent, f"if not {-_INT_MAX - 1} <= {operand} <= {_INT_MAX}: raise ValueError")
                self._add(indent, f"a(recurring_long({operand}))")
            case "long":
                self._add(indent, f"a(recurring_long({operand}))")
            case "boolean":
                self._add(indent, f"a(b'\\1' if {operand} else b'\\0')")
            case "double":
                self._add(indent, f"a(write_double({operand}))")
            case _:
                raise NotImplementedError(schema)
