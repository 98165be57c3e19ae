"""Small damages: of bytes, and of values that are to be written."""

import math
from collections.abc import Mapping
from random import Random
from types import MappingProxyType
from typing import Any, Final

from tests.fuzz.avro_bytes import encode_number

_BYTES: Final = (0, 1, 2, 3, 4, 0x7E, 0x7F, 0x80, 0x81, 0xC3, 0xFE, 0xFF)
_NUMBERS: Final = tuple(encode_number(number, more) for number in (-1, 0, 1, 1 << 33, -(1 << 63)) for more in (0, 1, 9))
_DEEPER_SHARE: Final = 0.6


class _Text(str):
    """A text that is not exactly a `str`."""


class _Number(int):
    """A number that is not exactly an `int`."""


ODD_VALUES: Final[tuple[Any, ...]] = (
    *(None, True, False, 7, -1, 1 << 31, (1 << 63) - 1, 1 << 63, -(1 << 63) - 1, _Number(5)),
    *(1.5, math.nan, math.inf, "text", "", "é", "\ud800", _Text("text"), b"bytes", b"", bytearray(b"x")),
    *((), ("x",), [], ["x"], [7], {}, {"a": "b"}, {1: 2}, MappingProxyType({"a": 1}), {"x"}, object()),
)


def damage_bytes(random: Random, value: bytes, start: int, other: bytes) -> bytes:
    """Return bytes with some damage from `start` on; `other`: bytes of which a part may follow."""
    size = len(value)
    if size <= start:
        return value + random.randbytes(random.randint(1, 12))
    place = random.randrange(start, size)
    match random.randrange(9):
        case 0:
            return value[:place]
        case 1:
            return value[:place] + bytes((value[place] ^ 1 << random.randrange(8),)) + value[place + 1 :]
        case 2:
            return value[:place] + bytes((random.choice(_BYTES),)) + value[place + 1 :]
        case 3:
            return value[:place] + random.randbytes(random.randint(1, 4)) + value[place:]
        case 4:
            return value[:place] + value[place + random.randint(1, 4) :]
        case 5:
            return value + random.randbytes(random.randint(1, 12))
        case 6:
            return value[:place] + other[random.randrange(start, max(len(other), start + 1)) :]
        case 7:
            return value[:place] + random.choice(_NUMBERS) + value[place + 1 :]
        case _:
            end = random.randrange(place, size + 1)
            return value[:end] + value[place:end] + value[end:]


def damage_value(random: Random, value: Any) -> Any:
    """Return a value with an odd part somewhere."""
    if random.random() < _DEEPER_SHARE:
        match value:
            case tuple() if value:
                place = random.randrange(len(value))
                parts = list(value)
                parts[place] = damage_value(random, parts[place])
                return tuple.__new__(type(value), parts)
            case Mapping() if value:
                key = random.choice(list(value))
                if random.random() < 0.5:
                    return {**value, key: damage_value(random, value[key])}
                return {**{name: part for name, part in value.items() if name != key}, 7: value[key]}
    return list(value) if type(value) is tuple and random.random() < 0.3 else random.choice(ODD_VALUES)
