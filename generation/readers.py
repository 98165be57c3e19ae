"""The text of readers: straight lines of Python.

In it `b` are the bytes, `p` is the position, `n` and `e` are scratch. A reader knows one schema,
and the usual way to write it. At anything else it raises one of `READER_GAVE_UP`: too few bytes, no
such symbol, no UTF-8, or a `raise` of its own for a count of more than one byte or a negative
length, which is an odd number here.
"""

from collections.abc import Mapping
from typing import Any

from generation.schemas import KnownSchema
from generation.source import SourceText, class_named
from sessionary.schemas.codec.catalogue import Json
from sessionary.schemas.codec.formats import Event
from sessionary.schemas.headers import EventIdentity

_HELPERS = "sessionary.schemas.codec.compiled_helpers"
_EVENTS = "sessionary.schemas.events"
_ONE_BYTE_MAX = 127


class ReaderText:
    """Adds readers to the text of a module."""

    def __init__(self, source: SourceText) -> None:
        self._source = source
        self._add = source.add_lines
        for name in ("bools", "new_instance", "read_double", "read_long"):
            source.import_name(_HELPERS, name)

    def add_reader(self, known: KnownSchema) -> str:
        """Add the reader of a schema; return its name."""
        source = self._source
        self._add(0, "def read(b, p):")
        source.enums.clear()
        names = self._read_fields(known.schema, 1)
        made = self._instance(known.cls, names)
        if known.is_event:
            event_types = source.import_name(_EVENTS, "EVENT_TYPES")
            event_type = source.new_constant(f"{event_types}[{source.import_class(known.cls)}]")
            self._add(1, f"if {names['envelope']}.event_type != {event_type}: raise ValueError")
            made = f"new_instance({source.import_class(Event)}, ({names['envelope']}, {made}))"
        # A slice beyond the end is too short, and moves the position beyond the end.
        self._add(1, "if p != len(b): raise ValueError", f"return {made}")
        return "read"

    def add_identity_reader(self, known: KnownSchema) -> str:
        """Add the reader of an event's identity; return its name.

        It reads the fields of the envelope that the identity has too, steps over the others, and
        does not look at the rest of the event.
        """
        envelope, wanted = known.schema["fields"][0], EventIdentity._fields
        assert envelope["name"] == "envelope"
        self._add(0, "def read_identity(b, p):")
        self._source.enums.clear()
        names: dict[str, str] = {}
        for field in envelope["type"]["fields"]:
            if field["name"] in wanted:
                names[field["name"]] = name = self._source.new_name()
                self._read_value(field["type"], 1, name)
            else:
                self._skip_value(field["type"], 1)
            if len(names) == len(wanted):
                break
        self._add(1, "if p > len(b): raise ValueError", f"return {self._instance(EventIdentity, names)}")
        return "read_identity"

    def _read_fields(self, schema: Mapping[str, Json], indent: int) -> dict[str, str]:
        """Add the reading of a record's fields, each into a new name; return the names by field."""
        names = {}
        for field in schema["fields"]:
            names[field["name"]] = name = self._source.new_name()
            self._read_value(field["type"], indent, name)
        return names

    def _instance(self, cls: type[Any], names: Mapping[str, str]) -> str:
        """Return the expression that makes an instance of `cls` from the names of its fields.

        A field that an older schema has not gets its default.
        """
        values = (names.get(field) or self._source.default_of(cls, field) for field in cls._fields)
        return f"new_instance({self._source.import_class(cls)}, ({''.join(f'{value}, ' for value in values)}))"

    def _read_value(self, schema: Json, indent: int, target: str) -> None:
        """Add the reading of one value into the name `target`."""
        source = self._source
        if isinstance(schema, str):
            schema = source.enums.get(schema, schema)
        match schema:
            case ["null", branch]:
                self._add(indent, "n = b[p]", "p += 1", "if n == 2:")
                self._read_value(branch, indent + 1, target)
                self._add(indent, "elif n: raise ValueError", f"else: {target} = None")
            case {"type": "record", "name": name}:
                names = self._read_fields(schema, indent)
                self._add(indent, f"{target} = {self._instance(class_named(name), names)}")
            case {"type": "enum", "name": name, "symbols": symbols}:
                source.enums[name] = schema
                places = {2 * place: symbol for place, symbol in enumerate(symbols) if 2 * place <= _ONE_BYTE_MAX}
                self._add(indent, f"{target} = {source.new_constant(repr(places))}[b[p]]", "p += 1")
            case {"type": "array", "items": items}:
                item = source.new_name()
                self._add(indent, f"{target} = []")
                self._open_block(indent)
                self._read_value(items, indent + 2, item)
                self._add(indent + 2, f"{target}.append({item})")
                self._add(indent, "p += 1", f"{target} = tuple({target})")
            case {"type": "map", "values": values}:
                key, item = source.new_name(), source.new_name()
                self._add(indent, f"{target} = {{}}")
                self._open_block(indent)
                self._read_scalar("string", indent + 2, key)
                self._read_value(values, indent + 2, item)
                self._add(indent + 2, f"{target}[{key}] = {item}")
                self._add(indent, "p += 1")
            case {"type": "long"}:
                self._read_time(indent, target)
            case {"type": inner}:
                self._read_value(inner, indent, target)
            case _:
                self._read_scalar(schema, indent, target)

    def _read_time(self, indent: int, target: str) -> None:
        """Add the reading of a time in µs: the schemas write a number that way, as an object.

        From 1979 to 3111 it takes eight bytes of seven bits each, which are joined in three steps.
        """
        self._source.import_name(_HELPERS, "read_eight")
        self._add(indent, "(n,) = read_eight(b, p) if p + 8 <= len(b) else (0,)")
        self._add(indent, "if n & 0x8080808080808080 == 0x0080808080808080:")
        self._add(indent + 1, "n = n & 0x7F007F007F007F | n >> 1 & 0x3F803F803F803F80")
        self._add(indent + 1, "n = n & 0x3FFF00003FFF | n >> 2 & 0xFFFC0000FFFC000")
        self._add(indent + 1, "n = n & 0xFFFFFFF | n >> 4 & 0xFFFFFFF0000000")
        self._add(indent + 1, "p += 8", f"{target} = n >> 1 ^ -(n & 1)")
        self._add(indent, "else:")
        self._read_scalar("long", indent + 1, target)

    def _skip_value(self, schema: Json, indent: int) -> None:
        """Add the stepping over one value; a value that has parts is read."""
        match schema:
            case ["null", branch]:
                self._add(indent, "n = b[p]", "p += 1", "if n == 2:")
                self._skip_value(branch, indent + 1)
                self._add(indent, "elif n: raise ValueError")
            case "string" | "bytes":
                self._add(indent, "n = b[p]", "p += 1", "if n > 127: n, p = read_long(b, p, n)")
                self._add(indent, "if n & 1: raise ValueError", "p += n >> 1")
            case {"type": "string" | "bytes" | "int" | "long" as inner}:
                self._skip_value(inner, indent)
            case _:
                self._read_value(schema, indent, self._source.new_name())

    def _open_block(self, indent: int) -> None:
        """Add the loops over blocks and over a block's items; the body goes two levels deeper.

        A block is a count and its items; a count of 0 ends the blocks.
        """
        count = self._source.new_name()
        self._add(indent, f"while {count} := b[p]:", "    p += 1")
        self._add(indent, f"    if {count} > 127 or {count} & 1: raise ValueError")
        self._add(indent, f"    for _ in range({count} >> 1):")

    def _read_scalar(self, schema: str, indent: int, target: str) -> None:
        number = ("n = b[p]", "p += 1", "if n > 127: n, p = read_long(b, p, n)")
        match schema:
            case "string" | "bytes":
                decode = ".decode()" if schema == "string" else ""
                self._add(indent, *number, "if n & 1: raise ValueError", "e = p + (n >> 1)")
                self._add(indent, f"{target} = b[p:e]{decode}", "p = e")
            case "int" | "long":
                self._add(indent, *number, f"{target} = n >> 1 ^ -(n & 1)")
            case "boolean":
                self._add(indent, f"{target} = bools[b[p]]", "p += 1")
            case "double":
                self._add(indent, f"({target},) = read_double(b, p)", "p += 8")
            case _:
                raise NotImplementedError(schema)
