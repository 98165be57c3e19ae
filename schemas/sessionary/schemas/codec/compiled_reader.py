"""Readers of known schemas, compiled once into straight-line Python; pure.

Processors and sinks spend most of their time in reading, and a compiled reader is two to three
times as fast as fastavro. It knows one schema, and the usual way to write it. At anything else (a
registry's framing, a count of more than one byte, damage) it gives up, and fastavro reads the bytes
from the start. So fastavro alone decides what bytes mean and what is wrong with them: a compiled
reader agrees with it or gives up.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

from sessionary.schemas import types
from sessionary.schemas.codec.catalogue import Json
from sessionary.schemas.codec.codegen import CodeBuilder
from sessionary.schemas.events import EVENT_TYPES

# (bytes, position) -> the value that is encoded from there to the end.
Reader = Callable[[bytes, int], Any]

# Numbers of up to nine bytes are read here; one of ten may be beyond 64 bits.
_LAST_SHIFT: Final = 56
# What compiled code raises if the bytes are not as it expects: too few, no such symbol, no UTF-8,
# or a `raise` of its own. (A negative length is an odd number here, which the code checks for.)
READER_GAVE_UP: Final = (IndexError, KeyError, ValueError, struct.error)


def _long(data: bytes, place: int, first: int) -> tuple[int, int]:
    """Return a number of several bytes, still in zigzag form, and the position after it.

    `first` is its first byte, which was read already; `place` is the position of its second.
    """
    number, shift = first & 127, 7
    while True:
        byte = data[place]
        place += 1
        if byte < 128:
            return number | byte << shift, place
        if shift >= _LAST_SHIFT:
            raise ValueError("a number of more than nine bytes")
        number |= (byte & 127) << shift
        shift += 7


class _ReaderBuilder(CodeBuilder):
    """The text of one reader: `b` are the bytes, `p` is the position, `n` and `e` are scratch."""

    def __init__(self) -> None:
        # `_new` makes an instance of a NamedTuple as `_make` does, without its checks.
        namespace = {
            "_long": _long,
            "_new": tuple.__new__,
            "_double": struct.Struct("<d").unpack_from,
            "_bool": (False, True),
            "_eight": struct.Struct("<Q").unpack_from,
        }
        super().__init__(["def read(b, p):"], namespace)

    def read_fields(self, schema: Mapping[str, Json], indent: int) -> dict[str, str]:
        """Add the reading of a record's fields, each into a new name; return the names by field."""
        names = {}
        for field in schema["fields"]:
            names[field["name"]] = name = self.new_name()
            self.read_value(field["type"], indent, name)
        return names

    def instance_expression(self, cls: type[Any], names: Mapping[str, str]) -> str:
        """Return the expression that makes an instance of `cls` from the names of its fields.

        A field that an older schema has not gets its default.
        """
        values = [names.get(field) or self.new_constant(cls._field_defaults[field]) for field in cls._fields]
        return f"_new({self.new_name(cls)}, ({''.join(f'{value}, ' for value in values)}))"

    def read_value(self, schema: Json, indent: int, target: str) -> None:
        """Add the reading of one value into the name `target`."""
        if isinstance(schema, str):
            schema = self.enums.get(schema, schema)
        match schema:
            case ["null", branch]:
                self.add_lines(indent, "n = b[p]", "p += 1", "if n == 2:")
                self.read_value(branch, indent + 1, target)
                self.add_lines(indent, "elif n: raise ValueError", f"else: {target} = None")
            case {"type": "record", "name": name}:
                names = self.read_fields(schema, indent)
                self.add_lines(
                    indent, f"{target} = {self.instance_expression(getattr(types, name.rpartition('.')[2]), names)}"
                )
            case {"type": "enum", "name": name, "symbols": symbols}:
                self.enums[name] = schema
                places = self.new_name({2 * place: symbol for place, symbol in enumerate(symbols)})
                self.add_lines(indent, f"{target} = {places}[b[p]]", "p += 1")
            case {"type": "array", "items": items}:
                item = self.new_name()
                self.add_lines(indent, f"{target} = []")
                self._open_block(indent)
                self.read_value(items, indent + 2, item)
                self.add_lines(indent + 2, f"{target}.append({item})")
                self.add_lines(indent, "p += 1", f"{target} = tuple({target})")
            case {"type": "map", "values": values}:
                key, item = self.new_name(), self.new_name()
                self.add_lines(indent, f"{target} = {{}}")
                self._open_block(indent)
                self._read_scalar("string", indent + 2, key)
                self.read_value(values, indent + 2, item)
                self.add_lines(indent + 2, f"{target}[{key}] = {item}")
                self.add_lines(indent, "p += 1")
            case {"type": "long", "logicalType": "timestamp-micros"}:
                self._read_time(indent, target)
            case {"type": inner}:
                self.read_value(inner, indent, target)
            case _:
                self._read_scalar(schema, indent, target)

    def skip_value(self, schema: Json, indent: int) -> None:
        """Add the stepping over one value; a value that has parts is read."""
        match schema:
            case ["null", branch]:
                self.add_lines(indent, "n = b[p]", "p += 1", "if n == 2:")
                self.skip_value(branch, indent + 1)
                self.add_lines(indent, "elif n: raise ValueError")
            case "string" | "bytes":
                self.add_lines(indent, "n = b[p]", "p += 1", "if n > 127: n, p = _long(b, p, n)")
                self.add_lines(indent, "if n & 1: raise ValueError", "p += n >> 1")
            case {"type": "string" | "bytes" | "int" | "long" as inner}:
                self.skip_value(inner, indent)
            case _:
                self.read_value(schema, indent, self.new_name())

    def _read_time(self, indent: int, target: str) -> None:
        """Add the reading of a time in µs.

        From 1979 to 3111 it takes eight bytes of seven bits each, which are joined in three steps.
        """
        self.add_lines(indent, "(n,) = _eight(b, p)", "if n & 0x8080808080808080 == 0x0080808080808080:")
        self.add_lines(indent + 1, "n = n & 0x7F007F007F007F | n >> 1 & 0x3F803F803F803F80")
        self.add_lines(indent + 1, "n = n & 0x3FFF00003FFF | n >> 2 & 0xFFFC0000FFFC000")
        self.add_lines(indent + 1, "n = n & 0xFFFFFFF | n >> 4 & 0xFFFFFFF0000000")
        self.add_lines(indent + 1, "p += 8", f"{target} = n >> 1 ^ -(n & 1)")
        self.add_lines(indent, "else:")
        self._read_scalar("long", indent + 1, target)

    def _open_block(self, indent: int) -> None:
        """Add the loops over blocks and over a block's items; the body goes two levels deeper.

        A block is a count and its items; a count of 0 ends the blocks.
        """
        count = self.new_name()
        self.add_lines(indent, f"while {count} := b[p]:", "    p += 1")
        self.add_lines(
            indent, f"    if {count} > 127 or {count} & 1: raise ValueError", f"    for _ in range({count} >> 1):"
        )

    def _read_scalar(self, schema: str, indent: int, target: str) -> None:
        number = ("n = b[p]", "p += 1", "if n > 127: n, p = _long(b, p, n)")
        match schema:
            case "string" | "bytes":
                decode = ".decode()" if schema == "string" else ""
                self.add_lines(indent, *number, "if n & 1: raise ValueError", "e = p + (n >> 1)")
                self.add_lines(indent, f"{target} = b[p:e]{decode}", "p = e")
            case "int" | "long":
                self.add_lines(indent, *number, f"{target} = n >> 1 ^ -(n & 1)")
            case "boolean":
                self.add_lines(indent, f"{target} = _bool[b[p]]", "p += 1")
            case "double":
                self.add_lines(indent, f"({target},) = _double(b, p)", "p += 8")
            case _:
                raise NotImplementedError(schema)


def compiled_reader(schema: Mapping[str, Json], cls: type[Any], event: type[Any] | None = None) -> Reader:
    """Return a reader of instances of `cls`.

    With `event`, the class of pairs of envelope and payload, it reads such pairs, whose payload is
    a `cls`. The reader raises one of `READER_GAVE_UP` for bytes that it does not know. Compiling
    takes about 2 ms.
    """
    builder = _ReaderBuilder()
    names = builder.read_fields(schema, 1)
    made = builder.instance_expression(cls, names)
    if event is not None:
        envelope = names["envelope"]
        builder.add_lines(1, f"if {envelope}.event_type != {EVENT_TYPES[cls]!r}: raise ValueError")
        made = f"_new({builder.new_name(event)}, ({envelope}, {made}))"
    # A slice beyond the end is too short, and moves the position beyond the end.
    builder.add_lines(1, "if p != len(b): raise ValueError", f"return {made}")
    reader: Reader = builder.compile_function("read")
    return reader


def compiled_identity_reader(schema: Mapping[str, Json], cls: type[Any]) -> Reader:
    """Return a reader of those fields of an event's envelope that `cls` has too.

    It steps over the others, and does not look at the rest of the event. It raises as a
    `compiled_reader` does.
    """
    envelope = schema["fields"][0]
    assert envelope["name"] == "envelope"
    builder, names = _ReaderBuilder(), dict[str, str]()
    for field in envelope["type"]["fields"]:
        if field["name"] in cls._fields:
            names[field["name"]] = name = builder.new_name()
            builder.read_value(field["type"], 1, name)
        else:
            builder.skip_value(field["type"], 1)
        if len(names) == len(cls._fields):
            break
    # A slice beyond the end is too short, and moves the position beyond the end.
    builder.add_lines(1, "if p > len(b): raise ValueError", f"return {builder.instance_expression(cls, names)}")
    reader: Reader = builder.compile_function("read")
    return reader


__all__ = ["READER_GAVE_UP", "Reader", "compiled_identity_reader", "compiled_reader"]
