"""The readers and writers of all known schemas as the text of one Cython module.

The counterpart of `generation`: each function knows the same form of bytes or values, and gives up
at anything else. Functions of equal parts of schemas are made once.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from generation.schemas import KnownSchema, known_schemas
from generation.source import class_named
from native.check_text import CHECK_IMPORTS, CheckText
from sessionary.schemas.codec.catalogue import EVENTS_NAMESPACE, Json, current_schemas, schema_fingerprint
from sessionary.schemas.codec.compiled_helpers import module_name
from sessionary.schemas.codec.formats import Event
from sessionary.schemas.codec.mapping import absent_fields
from sessionary.schemas.events import EVENT_TYPES, SessionCreated
from sessionary.schemas.headers import EventIdentity
from sessionary.schemas.types import Envelope

_HEADS = [Path(__file__).with_name(name) for name in ("avro_reading.pyx", "codec_head.pyx")]
_SCALARS = frozenset({"string", "bytes", "int", "long", "boolean", "double"})


def _spelled_out(schema: Json, enums: dict[str, Json]) -> Json:
    """Return a schema with all that decides its bytes: no names of enums, no texts for people."""
    match schema:
        case str():
            return enums.get(schema, schema)
        case list():
            return [_spelled_out(branch, enums) for branch in schema]
        case {"type": "enum", "name": name, "symbols": symbols}:
            enums[name] = {"type": "enum", "symbols": symbols}
            return enums[name]
        case {"type": "record", "name": name, "fields": fields}:
            parts = [{"name": field["name"], "type": _spelled_out(field["type"], enums)} for field in fields]
            return {"type": "record", "name": name, "fields": parts}
        case {"type": "array", "items": items}:
            return {"type": "array", "items": _spelled_out(items, enums)}
        case {"type": "map", "values": values}:
            return {"type": "map", "values": _spelled_out(values, enums)}
    return _spelled_out(schema["type"], enums)


def _is_of_today(event: KnownSchema) -> bool:
    full_name = f"{EVENTS_NAMESPACE}.{event.cls.__name__}"
    return event.module == module_name(full_name, schema_fingerprint(current_schemas()[full_name]))


class CodecText:
    """The text as it grows. A value is read by an expression, and written by a statement."""

    def __init__(self) -> None:
        self._imports: set[tuple[str, str]] = set()
        self._constants: dict[str, tuple[str, str]] = {}
        self._layouts: dict[str, tuple[str, ...]] = {}
        self._parts: dict[str, str] = {}
        self._lines: list[str] = []
        self._found: list[str] = []

    def add_functions(self, known: KnownSchema) -> None:
        """Add the functions of a schema."""
        schema = _spelled_out(known.schema, {})
        self._add_reader(known, schema)
        self._add_writer(known, schema, "write", event=known.is_event)
        if known.is_event:
            self._add_identity_reader(known, schema)
            fields = [field for field in schema["fields"] if field["name"] != "envelope"]
            self._add_writer(known, {**schema, "fields": fields}, "write_payload", event=False)
            if _is_of_today(known):
                self._add_checks(known, schema["fields"][0]["type"], fields)

    def module_text(self, digest: str) -> str:
        """Return the whole text. `digest` identifies the Python source."""
        imports = (f"from {module} import {name}" for module, name in sorted(self._imports))
        constants = (f"cdef {kind} {name} = {value}" for value, (kind, name) in self._constants.items())
        layouts = (f"    {name}: {fields!r}," for name, fields in sorted(self._layouts.items()))
        end = (
            *("DIGEST = " + repr(digest), "_FITS = fits({", *layouts, "})"),
            *("_FOUND = {", *self._found, "}"),
            *("def find_function(module, kind):", "    return _FOUND.get((module, kind)) if _FITS else None"),
        )
        heads = (path.read_text("utf-8") for path in _HEADS)
        return "\n".join([*heads, *imports, *constants, *self._lines, *end]) + "\n"

    def _constant(self, value: str, kind: str = "object") -> str:
        return self._constants.setdefault(value, (kind, f"c{len(self._constants)}"))[1]

    def _class(self, cls: type[Any]) -> str:
        self._imports.add((cls.__module__, cls.__name__))
        self._layouts[cls.__name__] = cls._fields
        return self._constant(cls.__name__)

    def _default(self, cls: type[Any], field: str) -> str:
        self._class(cls)
        return self._constant(f"{cls.__name__}._field_defaults[{field!r}]")

    def _event_type(self, cls: type[Any]) -> str:
        self._imports.add(("sessionary.schemas.events", "EVENT_TYPES"))
        assert cls in EVENT_TYPES
        self._class(cls)
        return self._constant(f"EVENT_TYPES[{cls.__name__}]")

    def _part(self, kind: str, schema: Json, body: Callable[[str], Iterable[str]]) -> str:
        """Return the name of the function of a part of schemas; `body` makes it, once."""
        key = f"{kind} {json.dumps(schema, sort_keys=True)}"
        if key not in self._parts:
            self._parts[key] = name = f"{kind}_{len(self._parts)}"
            self._lines += body(name)
        return self._parts[key]

    def _def(self, known: KnownSchema, kind: str, arguments: str, lines: Iterable[str]) -> None:
        name = f"{kind}_{known.module}"
        self._lines += [f"def {name}({arguments}):", *(f"    {line}" for line in lines)]
        self._found.append(f"    ({known.module!r}, {kind!r}): {name},")

    def _reading(self, schema: Json) -> str:
        """Return the expression that reads a value."""
        match schema:
            case ["null", branch]:
                return f"({self._reading(branch)} if is_there(i) else None)"
            case {"type": "record", "name": name}:
                cls = class_named(name)
                return f"{self._part('read_record', schema, lambda own: self._record_reader(own, cls, schema))}(i)"
            case {"type": "enum", "symbols": symbols}:
                return f"read_symbol(i, {self._constant(repr(tuple(symbols)), 'tuple')})"
            case {"type": "array", "items": items}:
                return f"{self._part('read_array', schema, lambda own: self._array_reader(own, items))}(i)"
            case {"type": "map", "values": values}:
                return f"{self._part('read_map', schema, lambda own: self._map_reader(own, values))}(i)"
            case "int":
                return "read_long(i)"
        if schema not in _SCALARS:
            raise NotImplementedError(schema)
        return f"read_{schema}(i)"

    def _fill(self, cls: type[Any], fields: Iterable[Json]) -> list[str]:
        """Return the lines that make `r`, a `cls`; a field that is not read gets its default."""
        lines = [f"r = new_instance({self._class(cls)}, {len(cls._fields)})"]
        left = list(cls._fields)
        for field in fields:
            left.remove(field["name"])
            lines.append(f"put(r, {cls._fields.index(field['name'])}, {self._reading(field['type'])})")
        return [*lines, *(f"put(r, {cls._fields.index(name)}, {self._default(cls, name)})" for name in left)]

    def _record_reader(self, name: str, cls: type[Any], schema: Json) -> list[str]:
        lines = self._fill(cls, schema["fields"])
        return [f"cdef object {name}(In *i):", *(f"    {line}" for line in lines), "    return r"]

    def _array_reader(self, name: str, items: Json) -> list[str]:
        return [
            f"cdef object {name}(In *i):",
            *("    cdef int n", "    cdef int count = read_count(i)", "    if not count: return ()"),
            *("    cdef list items = []", "    while count:", "        for n in range(count):"),
            f"            items.append({self._reading(items)})",
            *("        count = read_count(i)", "    return tuple(items)"),
        ]

    def _map_reader(self, name: str, values: Json) -> list[str]:
        return [
            f"cdef object {name}(In *i):",
            *("    cdef int n", "    cdef int count = read_count(i)", "    cdef dict items = {}"),
            *("    while count:", "        for n in range(count):", "            key = read_string(i)"),
            f"            items[key] = {self._reading(values)}",
            *("        count = read_count(i)", "    return items"),
        ]

    def _add_reader(self, known: KnownSchema, schema: Json) -> None:
        lines = ["cdef In input", "cdef In *i = &input", "open_bytes(i, b, p)"]
        fields = schema["fields"]
        if known.is_event:
            lines.append(f"e = {self._reading(fields[0]['type'])}")
            place = Envelope._fields.index("event_type")
            lines.append(f"if item(e, {place}) != {self._event_type(known.cls)}: raise ValueError")
            fields = fields[1:]
        lines += [*self._fill(known.cls, fields), "if i.at != i.end: raise ValueError"]
        if known.is_event:
            lines += [f"pair = new_instance({self._class(Event)}, 2)", "put(pair, 0, e)", "put(pair, 1, r)"]
        lines.append("return pair" if known.is_event else "return r")
        self._def(known, "read", "b, Py_ssize_t p", lines)

    def _add_identity_reader(self, known: KnownSchema, schema: Json) -> None:
        envelope = schema["fields"][0]["type"]
        own = self._part("read_identity", envelope, lambda name: self._identity_reader(name, envelope))
        self._def(
            known,
            "read_identity",
            "b, Py_ssize_t p",
            ["cdef In input", "open_bytes(&input, b, p)", f"return {own}(&input)"],
        )

    def _identity_reader(self, name: str, envelope: Json) -> list[str]:
        wanted = list(EventIdentity._fields)
        lines = [f"r = new_instance({self._class(EventIdentity)}, {len(wanted)})"]
        left = set(wanted)
        for field in envelope["fields"]:
            if field["name"] in left:
                left.remove(field["name"])
                lines.append(f"put(r, {wanted.index(field['name'])}, {self._reading(field['type'])})")
            else:
                lines.append(self._skipping(field["type"]))
            if not left:
                break
        lines += [f"put(r, {wanted.index(each)}, {self._default(EventIdentity, each)})" for each in sorted(left)]
        return [f"cdef object {name}(In *i):", *(f"    {line}" for line in lines), "    return r"]

    def _skipping(self, schema: Json) -> str:
        """Return the statement that steps over a value; a value that has parts is read."""
        match schema:
            case ["null", branch]:
                return f"if is_there(i): {self._skipping(branch)}"
            case "string" | "bytes":
                return "skip_string(i)"
            case "int" | "long":
                return "skip_long(i)"
        return self._reading(schema)

    def _writing(self, schema: Json, value: str) -> str:
        """Return the statement that writes a value."""
        match schema:
            case ["null", branch]:
                return f"if write_branch(o, {value}): {self._writing(branch, value)}"
            case {"type": "record", "name": name}:
                cls = class_named(name)
                own = self._part("write_record", schema, lambda own: self._record_writer(own, cls, schema))
                return f"{own}(o, {value})"
            case {"type": "enum", "symbols": symbols}:
                places = {symbol: place for place, symbol in enumerate(symbols)}
                return f"write_symbol(o, {value}, {self._constant(repr(places), 'dict')})"
            case {"type": "array", "items": items}:
                return f"{self._part('write_array', schema, lambda own: self._array_writer(own, items))}(o, {value})"
            case {"type": "map", "values": values}:
                return f"{self._part('write_map', schema, lambda own: self._map_writer(own, values))}(o, {value})"
        if schema not in _SCALARS:
            raise NotImplementedError(schema)
        return f"write_{schema}(o, {value})"

    def _record_lines(self, cls: type[Any], schema: Mapping[str, Json]) -> list[str]:
        lines = [f"check_record(r, {self._class(cls)}, {len(cls._fields)})"]
        lines += (
            f"if item(r, {cls._fields.index(name)}) != {self._default(cls, name)}: raise ValueError"
            for name in absent_fields(cls, schema)
        )
        for field in schema["fields"]:
            lines += [f"v = item(r, {cls._fields.index(field['name'])})", self._writing(field["type"], "v")]
        return lines

    def _record_writer(self, name: str, cls: type[Any], schema: Json) -> list[str]:
        lines = self._record_lines(cls, schema)
        return [f"cdef int {name}(Out *o, object r) except -1:", *(f"    {line}" for line in lines), "    return 0"]

    def _array_writer(self, name: str, items: Json) -> list[str]:
        return [
            f"cdef int {name}(Out *o, object values) except -1:",
            *("    cdef tuple items = listed(values)", "    if items:", "        write_number(o, len(items))"),
            *("        for v in items:", f"            {self._writing(items, 'v')}", "    return write_byte(o, 0)"),
        ]

    def _map_writer(self, name: str, values: Json) -> list[str]:
        return [
            f"cdef int {name}(Out *o, object values) except -1:",
            *("    cdef list pairs = paired(values)", "    if pairs:", "        write_number(o, len(pairs))"),
            *("        for key, v in pairs:", "            write_string(o, key)"),
            *(f"            {self._writing(values, 'v')}", "    return write_byte(o, 0)"),
        ]

    def _add_checks(self, known: KnownSchema, envelope: Json, fields: list[Json]) -> None:
        """Add the checks of an event's values, and of the envelope, which all events share."""
        self._imports |= {("sessionary.schemas.codec.value_bounds", name) for name in CHECK_IMPORTS}
        self._def(known, "check", "r", CheckText(self._class).event_lines(known.cls, envelope, fields))
        if known.cls is SessionCreated:
            self._def(known, "check_envelope", "r", CheckText(self._class).envelope_lines(envelope))

    def _add_writer(self, known: KnownSchema, schema: Json, kind: str, *, event: bool) -> None:
        lines = ["cdef Out output", "cdef Out *o = &output", "open_output(o, h)", "try:"]
        inner, fields = [], schema["fields"]
        if event:
            inner += [f"check_record(r, {self._class(Event)}, 2)", "e, r = item(r, 0), item(r, 1)"]
            inner.append(self._writing(fields[0]["type"], "e"))
            fields = fields[1:]
        inner += [*self._record_lines(known.cls, {**schema, "fields": fields}), "return written(o)"]
        lines += [*(f"    {line}" for line in inner), "finally:", "    close_output(o)"]
        self._def(known, kind, "h, r", lines)


def make_codec_text(digest: str) -> str:
    """Return the text of the Cython module."""
    text = CodecText()
    for known in known_schemas():
        text.add_functions(known)
    return text.module_text(digest)
