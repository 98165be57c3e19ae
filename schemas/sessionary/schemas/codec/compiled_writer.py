"""Writers of today's schemas, compiled once into straight-line Python: twice as fast as a general one; pure.

The counterpart of `compiled_reader.py`: a compiled writer knows the exact types of a class. At anything else it gives
up, and the general writer is asked, which knows what is wrong, or that nothing is.
"""

import struct
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from sessionary.schemas import types
from sessionary.schemas.codec.catalogue import Json
from sessionary.schemas.codec.codegen import Source
from sessionary.schemas.codec.mapping import type_check, types_of

Writer = Callable[[bytes, Any], bytes]

# What compiled code raises where a value is not as it expects.
REFUSED: Final = (TypeError, ValueError, KeyError, AttributeError, OverflowError, struct.error)
_INT_MAX: Final = (1 << 31) - 1
_LONG_MAX: Final = (1 << 63) - 1


@lru_cache(maxsize=1 << 14)  # lengths, counts, and times of the same moment come again and again
def _number(value: int) -> bytes:
    """Return a zigzag number."""
    if not -_LONG_MAX - 1 <= value <= _LONG_MAX:
        raise OverflowError(value)
    rest, out = value << 1 ^ value >> 63, bytearray()
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    out.append(rest)
    return bytes(out)


class _Source(Source):
    """The text of one writer as it grows. In it `r` is the record, `a` appends bytes."""

    def __init__(self) -> None:
        known = {"_number": _number, "_double": struct.Struct("<d").pack, "Envelope": types.Envelope}
        super().__init__(["def write(h, r):", "    out = [h]", "    a = out.append"], known)

    def record(self, cls: type[Any], schema: Mapping[str, Json], indent: int, source: str, known: str = "") -> None:
        """Write an instance of `cls`; `known` is the name of an envelope that stands beside it."""
        names = {field: self.name() for field in cls._fields}
        right, check = type_check(cls, schema)
        seen, checked = self.name(right), self.name(check)
        self.known[seen] = right  # empty yet, and `name` takes nothing for no value
        self.add(indent, f"if tuple(map(type, {source})) not in {seen}: {checked}({source})")
        self.add(indent, f"({''.join(f'{name}, ' for name in names.values())}) = {source}")
        for field in schema["fields"]:
            if field["name"] == "envelope":
                self.record(types.Envelope, field["type"], indent, known)
            else:
                self.value(field["type"], indent, names[field["name"]])

    def value(self, schema: Json, indent: int, source: str) -> None:
        """Write one value, whose type was checked."""
        if isinstance(schema, str):
            schema = self.named.get(schema, schema)
        match schema:
            case ["null", branch]:
                self.add(indent, f"if {source} is None: a(b'\\0')", "else:", "    a(b'\\2')")
                self.value(branch, indent + 1, source)
            case {"type": "record", "name": name}:
                self.record(getattr(types, name.rpartition(".")[2]), schema, indent, source)
            case {"type": "enum", "name": name, "symbols": symbols}:
                self.named[name] = schema
                self.add(indent, f"a({self.name({symbol: _number(n) for n, symbol in enumerate(symbols)})}[{source}])")
            case {"type": "array", "items": items}:
                item, allowed = self.name(), self.name(types_of(items))
                self.add(indent, f"if {source}:", f"    a(_number(len({source})))", f"    for {item} in {source}:")
                self.add(indent + 2, f"if type({item}) not in {allowed}: raise TypeError")
                self.value(items, indent + 2, item)
                self.add(indent, "a(b'\\0')")
            case {"type": "map", "values": values}:
                key, item, allowed = self.name(), self.name(), self.name(types_of(values))
                self.add(indent, f"if {source}:", f"    a(_number(len({source})))")
                self.add(indent, f"    for {key}, {item} in {source}.items():")
                self.add(indent + 2, f"if type({key}) is not str or type({item}) not in {allowed}: raise TypeError")
                self._scalar("string", indent + 2, key)
                self.value(values, indent + 2, item)
                self.add(indent, "a(b'\\0')")
            case {"type": inner}:
                self.value(inner, indent, source)
            case _:
                self._scalar(schema, indent, source)

    def _scalar(self, schema: str, indent: int, source: str) -> None:
        match schema:
            case "string":
                self.add(indent, f"e = {source}.encode()", "a(_number(len(e)))", "a(e)")
            case "bytes":
                self.add(indent, f"a(_number(len({source})))", f"a({source})")
            case "int":
                self.add(indent, f"if not {-_INT_MAX - 1} <= {source} <= {_INT_MAX}: raise ValueError")
                self.add(indent, f"a(_number({source}))")
            case "long":
                self.add(indent, f"a(_number({source}))")
            case "boolean":
                self.add(indent, f"a(b'\\1' if {source} else b'\\0')")
            case "double":
                self.add(indent, f"a(_double({source}))")
            case _:
                raise NotImplementedError(schema)


def compiled_writer(schema: Mapping[str, Json], cls: type[Any], *, event: bool) -> Writer:
    """Return what writes a header and an instance of `cls`, or the pair of an envelope and one.

    It raises one of `REFUSED`. Compiling takes some 2 ms.
    """
    source = _Source()
    if event:
        source.add(1, "envelope, r = r", "if type(envelope) is not Envelope: raise TypeError")
    source.record(cls, schema, 1, "r", "envelope")
    source.add(1, "return b''.join(out)")
    writer: Writer = source.compiled("write")
    return writer


__all__ = ["REFUSED", "Writer", "compiled_writer"]
