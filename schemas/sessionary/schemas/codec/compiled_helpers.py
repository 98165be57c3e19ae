"""Helpers of the readers and writers of known schemas, and how these give up; pure.

Processors and sinks spend much of their time in reading and writing. Straight-line Python that the
build makes of a schema (`generation`) does it two to three times as fast as fastavro. It knows one
schema, the usual way to write it, and the exact types of a class's fields. At anything else (a
registry's framing, a count of more than one byte, damage, a wrong type) it gives up, and fastavro
reads the bytes from the start, or writes the value. So fastavro alone decides what bytes mean, what
may be written, and what is wrong: a compiled function agrees with fastavro or gives up.
"""

import struct
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from importlib import import_module
from typing import Any, Final, Literal

# Finds the readers and writers that the build made from the schemas.
#
# They lie in the package `generated`, one module for each schema, and load when they are first
# needed. A module is named after its schema's fingerprint, and lists the fields of the classes for
# which it was made. So a function of another schema, or for another class, is never found; without
# a function, fastavro is used.


_PACKAGE = "sessionary.schemas.codec.generated"

# Checks of values (`value_bounds`) are made in a native build only.
Kind = Literal["read", "read_identity", "write", "write_payload", "check", "check_envelope"]


def module_name(full_name: str, fingerprint: bytes) -> str:
    """Return the name of the module that has the functions of a schema."""
    return f"{full_name.rpartition('.')[2].lower()}_{fingerprint.hex()}"


def _import_generated(name: str) -> Any:
    """Return a generated module; None if it was not made."""
    try:
        return import_module(f"{_PACKAGE}.{name}")
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith(_PACKAGE):
            raise
        return None


@cache
def generated_functions() -> Any:
    """Return the module that finds all functions, an extension in a native build; None without."""
    return _import_generated("functions")


def fits(layouts: Mapping[Any, tuple[str, ...]]) -> bool:
    """Return True if classes have the fields for which functions were made."""
    return all(cls._fields == fields for cls, fields in layouts.items())


def find_in_modules(module: str, kind: str) -> Any:
    """Return a function of a generated module of Python; None if there is none that fits."""
    made = _import_generated(module)
    return made.FUNCTIONS.get(kind) if made is not None and fits(made.LAYOUTS) else None


def find_function(kind: Kind, full_name: str, fingerprint: bytes) -> Any:
    """Return the function for values of a schema; None if the build did not make it."""
    made = generated_functions()
    return None if made is None else made.find_function(module_name(full_name, fingerprint), kind)


# (bytes, position) -> the value that is encoded from there to the end.
Reader = Callable[[bytes, int], Any]
# (header, value) -> the header and the encoded value.
Writer = Callable[[bytes, Any], bytes]

# The errors of a reader if the bytes are not as expected.
READER_GAVE_UP: Final = (IndexError, KeyError, ValueError, struct.error)
# The errors of a writer if a value is not as expected.
WRITER_GAVE_UP: Final = (TypeError, ValueError, KeyError, AttributeError, OverflowError, struct.error)
_LONG_MAX: Final = (1 << 63) - 1
# Numbers of up to nine bytes are read here; one of ten may be beyond 64 bits.
_LAST_SHIFT: Final = 56

# Makes an instance of a NamedTuple as `_make` does, without its checks.
new_instance: Final = tuple.__new__
read_double: Final = struct.Struct("<d").unpack_from
read_eight: Final = struct.Struct("<Q").unpack_from
bools: Final = (False, True)


def read_long(data: bytes, place: int, first: int) -> tuple[int, int]:
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


def encode_long(value: int) -> bytes:
    """Return a `long` in zigzag form. Raises `OverflowError` beyond 64 bits."""
    if not -_LONG_MAX - 1 <= value <= _LONG_MAX:
        raise OverflowError(value)
    return encode_varint(value << 1 ^ value >> 63)


def encode_varint(rest: int) -> bytes:
    """Return a number, not below 0, in groups of seven bits, the lowest first."""
    if rest < 1 << 14:
        return bytes((rest & 127 | 128, rest >> 7)) if rest > 127 else bytes((rest,))
    out = bytearray()
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    out.append(rest)
    return bytes(out)


recurring_long: Final = lru_cache(maxsize=1 << 14)(encode_long)  # lengths, counts and times of the same moment
write_double: Final = struct.Struct("<d").pack
