"""Readers of today's schemas, compiled once into straight-line Python: two to three times as fast as a general one.

Processors and sinks spend most of their time in reading. A compiled reader knows one schema and the plain ways of
writing it; at anything else (an older schema, a registry's framing, a count in more than one byte, damage) it gives
up, and the general decoder reads the bytes from the start. So there is one authority on what bytes mean and on what is
wrong with them; a compiled reader either agrees with it or says nothing.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

from sessionary.schemas import types
from sessionary.schemas.codec.catalogue import Json
from sessionary.schemas.codec.codegen import Source
from sessionary.schemas.events import EVENT_TYPES

# (bytes, position) -> what stands from there to the end.
Reader = Callable[[bytes, int], Any]

# The longest number that is read here; what takes a tenth byte may lie beyond 64 bits.
_LAST_SHIFT: Final = 56
# What compiled code raises where the bytes are not as it expects: too few, no such symbol, no UTF-8, any `raise` of its
# own. (A negative length reads as an odd number, and is refused by hand.)
GAVE_UP: Final = (IndexError, KeyError, ValueError, struct.error)


def _long(data: bytes, place: int, first: int) -> tuple[int, int]:
    """Return a zigzag number of several bytes, still folded, and the place behind it; `first` was read already."""
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


class _Source(Source):
    """The text of one reader as it grows. In it `b` are the bytes, `p` is the place, `n` and `e` are scratch."""

    def __init__(self) -> None:
        # `_new` makes an instance of a NamedTuple as `_make` does, without its detour.
        known = {
            "_long": _long,
            "_new": tuple.__new__,
            "_double": struct.Struct("<d").unpack_from,
            "_bool": (False, True),
            "_eight": struct.Struct("<Q").unpack_from,
        }
        super().__init__(["def read(b, p):"], known)

    def record(self, schema: Mapping[str, Json], indent: int) -> dict[str, str]:
        """Read a record's fields, each into a name of its own; return those names by field."""
        names = {}
        for field in schema["fields"]:
            names[field["name"]] = name = self.name()
            self.value(field["type"], indent, name)
        return names

    def instance(self, cls: type[Any], names: Mapping[str, str]) -> str:
        """Return the expression for an instance of `cls` from names by field."""
        fields: tuple[str, ...] = cls._fields
        return f"_new({self.name(cls)}, ({''.join(f'{names[field]}, ' for field in fields)}))"

    def value(self, schema: Json, indent: int, target: str) -> None:
        """Read one value into `target`."""
        if isinstance(schema, str):
            schema = self.named.get(schema, schema)
        match schema:
            case ["null", branch]:
                self.add(indent, "n = b[p]", "p += 1", "if n == 2:")
                self.value(branch, indent + 1, target)
                self.add(indent, "elif n: raise ValueError", f"else: {target} = None")
            case {"type": "record", "name": name}:
                names = self.record(schema, indent)
                self.add(indent, f"{target} = {self.instance(getattr(types, name.rpartition('.')[2]), names)}")
            case {"type": "enum", "name": name, "symbols": symbols}:
                self.named[name] = schema
                places = self.name({2 * place: symbol for place, symbol in enumerate(symbols)})
                self.add(indent, f"{target} = {places}[b[p]]", "p += 1")
            case {"type": "array", "items": items}:
                item = self.name()
                self.add(indent, f"{target} = []")
                self._open_block(indent)
                self.value(items, indent + 2, item)
                self.add(indent + 2, f"{target}.append({item})")
                self.add(indent, "p += 1", f"{target} = tuple({target})")
            case {"type": "map", "values": values}:
                key, item = self.name(), self.name()
                self.add(indent, f"{target} = {{}}")
                self._open_block(indent)
                self._scalar("string", indent + 2, key)
                self.value(values, indent + 2, item)
                self.add(indent + 2, f"{target}[{key}] = {item}")
                self.add(indent, "p += 1")
            case {"type": "long", "logicalType": "timestamp-micros"}:
                self._time(indent, target)
            case {"type": inner}:
                self.value(inner, indent, target)
            case _:
                self._scalar(schema, indent, target)

    def _time(self, indent: int, target: str) -> None:
        """Read a time in µs: from 1979 to 3111 eight bytes, whose sevens of bits are joined two by two."""
        self.add(indent, "(n,) = _eight(b, p)", "if n & 0x8080808080808080 == 0x0080808080808080:")
        self.add(indent + 1, "n = n & 0x7F007F007F007F | n >> 1 & 0x3F803F803F803F80")
        self.add(indent + 1, "n = n & 0x3FFF00003FFF | n >> 2 & 0xFFFC0000FFFC000")
        self.add(indent + 1, "n = n & 0xFFFFFFF | n >> 4 & 0xFFFFFFF0000000")
        self.add(indent + 1, "p += 8", f"{target} = n >> 1 ^ -(n & 1)")
        self.add(indent, "else:")
        self._scalar("long", indent + 1, target)

    def _open_block(self, indent: int) -> None:
        """Open the loop over blocks of items, two levels deep: each a count, then its items; a count of 0 ends."""
        count = self.name()
        self.add(indent, f"while {count} := b[p]:", "    p += 1")
        self.add(indent, f"    if {count} > 127 or {count} & 1: raise ValueError", f"    for _ in range({count} >> 1):")

    def _scalar(self, schema: str, indent: int, target: str) -> None:
        number = ("n = b[p]", "p += 1", "if n > 127: n, p = _long(b, p, n)")
        match schema:
            case "string" | "bytes":
                decode = ".decode()" if schema == "string" else ""
                self.add(indent, *number, "if n & 1: raise ValueError", "e = p + (n >> 1)")
                self.add(indent, f"{target} = b[p:e]{decode}", "p = e")
            case "int" | "long":
                self.add(indent, *number, f"{target} = n >> 1 ^ -(n & 1)")
            case "boolean":
                self.add(indent, f"{target} = _bool[b[p]]", "p += 1")
            case "double":
                self.add(indent, f"({target},) = _double(b, p)", "p += 8")
            case _:
                raise NotImplementedError(schema)


def compiled_reader(schema: Mapping[str, Json], cls: type[Any], event: type[Any] | None = None) -> Reader:
    """Return the reader of instances of `cls`; of an `event`, a pair of envelope and payload, where that is given.

    What it does not know it leaves with one of `GAVE_UP`. Compiling takes some 2 ms.
    """
    source = _Source()
    names = source.record(schema, 1)
    made = source.instance(cls, names)
    if event is not None:
        envelope = names["envelope"]
        source.add(1, f"if {envelope}.event_type != {EVENT_TYPES[cls]!r}: raise ValueError")
        made = f"_new({source.name(event)}, ({envelope}, {made}))"
    # A slice beyond the end is short, and leaves the place beyond the end.
    source.add(1, "if p != len(b): raise ValueError", f"return {made}")
    reader: Reader = source.compiled("read")
    return reader


__all__ = ["GAVE_UP", "Reader", "compiled_reader"]
