"""Random Avro bytes of a schema, in every form that the specification allows, and in some that it
does not: long numbers, blocks with their size in bytes, symbols and branches that do not exist.
"""

import struct
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Final

from sessionary.schemas.codec.catalogue import Json

# Appends the bytes of one value.
Append = Callable[[bytearray], None]

_ITEMS_MAX: Final = 3
# Of the values that can be written in an unusual way: about one event in eight has such a value.
_ODD_SHARE: Final = 0.003
_EDGES: Final = (0, 1, 63, 64, 8_191, 8_192, (1 << 31) - 1, 1 << 31, (1 << 55) - 1, (1 << 62) - 1)
_NUMBERS: Final = (*_EDGES, *(-edge for edge in _EDGES), -(1 << 62))
_TEN_BYTES: Final = (1 << 62, (1 << 63) - 1, -(1 << 62) - 1, -(1 << 63))
_TEXTS: Final = ("", "a", "é", "\0", "\U0001f600", "text", "b" * 63, "c" * 64, "d" * 127, "e" * 128, "ü" * 150)
_NOT_UTF_8: Final = (b"\xff", b"\xed\xa0\x80", b"\xc3", b"a\x80b", b"\xf4\x90\x80\x80")
_DOUBLES: Final = (0.0, -0.0, 0.5, 1e300, float("inf"), float("nan"))


def encode_number(number: int, padding: int = 0) -> bytes:
    """Return a number as Avro's `long`; `padding`: bytes more than it needs."""
    rest = number << 1 ^ number >> 63
    out = bytearray()
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    out.append(rest)
    for _ in range(padding):
        out[-1] |= 128
        out.append(0)
    return bytes(out)


class AvroMaker:
    """Makes random values of a schema; each schema is looked at once."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._named: dict[str, Json] = {}
        texts = [text.encode() for text in _TEXTS]
        self._texts = [encode_number(len(text)) + text for text in texts]
        self._odd_texts = [
            *(encode_number(len(text)) + text for text in _NOT_UTF_8),
            *(encode_number(length) + b"abc" for length in (-1, -(1 << 63), 1 << 20, 1 << 40, (1 << 63) - 1)),
            *(encode_number(3, padding) + b"abc" for padding in (1, 7, 8, 9, 10)),
        ]
        self._longs = [encode_number(number) for number in _NUMBERS]
        self._odd_longs = [
            *(encode_number(5, padding) for padding in (1, 5, 7, 8, 9, 20)),
            *(encode_number(number) for number in _TEN_BYTES),
            *(b"\xff" * 9, b"\xff" * 11),
        ]
        self._doubles = [struct.pack("<d", number) for number in _DOUBLES]

    def make_bytes(self, append: Append) -> bytes:
        """Return the bytes of one value; `append` is what `appender_of` returned."""
        out = bytearray()
        append(out)
        return bytes(out)

    def appender_of(self, schema: Json, event_type: str = "") -> Append:
        """Return what appends a value of a schema. An event has `event_type` in its envelope."""
        match schema:
            case list():
                return partial(self._append_union, [self.appender_of(branch) for branch in schema])
            case {"type": "record", "fields": fields}:
                self._named[self._name_of(schema)] = schema
                return partial(_append_all, [self._appender_of_field(field, event_type) for field in fields])
            case {"type": "enum", "symbols": symbols}:
                self._named[self._name_of(schema)] = schema
                return partial(self._append_symbol, len(symbols))
            case {"type": "array", "items": items}:
                return partial(self._append_blocks, self.appender_of(items))
            case {"type": "map", "values": values}:
                pair = [self._append_text, self.appender_of(values)]
                return partial(self._append_blocks, partial(_append_all, pair))
            case {"type": inner}:
                return self.appender_of(inner)
            case str() if schema in self._named:
                return self.appender_of(self._named[schema])
        return self._scalars()[schema]

    def _appender_of_field(self, field: Json, event_type: str) -> Append:
        if event_type and field["name"] == "event_type":
            return partial(_append_bytes, encode_number(len(event_type)) + event_type.encode())
        return self.appender_of(field["type"], event_type if field["name"] == "envelope" else "")

    @staticmethod
    def _name_of(schema: Json) -> str:
        return f"{schema['name']}"

    def _scalars(self) -> dict[str, Append]:
        texts, longs = self._append_text, self._append_long
        scalars = {"string": texts, "bytes": texts, "int": longs, "long": longs}
        return {**scalars, "double": self._append_double, "boolean": self._append_boolean, "null": _append_nothing}

    def _is_odd(self) -> bool:
        return self._random.random() < _ODD_SHARE

    def _append_text(self, out: bytearray) -> None:
        out += self._random.choice(self._odd_texts if self._is_odd() else self._texts)

    def _append_long(self, out: bytearray) -> None:
        out += self._random.choice(self._odd_longs if self._is_odd() else self._longs)

    def _append_double(self, out: bytearray) -> None:
        out += self._random.randbytes(8) if self._random.random() < 0.5 else self._random.choice(self._doubles)

    def _append_boolean(self, out: bytearray) -> None:
        out.append(self._random.choice((2, 3, 0x80, 0xFF)) if self._is_odd() else self._random.randrange(2))

    def _append_symbol(self, symbols: int, out: bytearray) -> None:
        place = self._random.choice((-1, symbols, symbols + 1, 1 << 40)) if self._is_odd() else None
        out += encode_number(self._random.randrange(symbols) if place is None else place)

    def _append_union(self, branches: Sequence[Append], out: bytearray) -> None:
        if self._is_odd():
            out += encode_number(self._random.choice((-1, len(branches), 7, 1 << 40)))
            return
        place = self._random.randrange(len(branches))
        out += encode_number(place, 1 if self._is_odd() else 0)
        branches[place](out)

    def _append_blocks(self, append: Append, out: bytearray) -> None:
        items = self._random.randrange(_ITEMS_MAX + 1)
        if items and self._is_odd():
            block = bytearray()
            for _ in range(items):
                append(block)
            out += encode_number(-items) + encode_number(len(block)) + block
        elif items and self._is_odd():
            for _ in range(items):  # each in a block of its own
                out += encode_number(1)
                append(out)
        elif items:
            out += encode_number(items)
            for _ in range(items):
                append(out)
        out += encode_number(0, 1 if self._is_odd() else 0)


def _append_all(appends: Sequence[Append], out: bytearray) -> None:
    for append in appends:
        append(out)


def _append_bytes(value: bytes, out: bytearray) -> None:
    out += value


def _append_nothing(_out: bytearray) -> None:
    pass
