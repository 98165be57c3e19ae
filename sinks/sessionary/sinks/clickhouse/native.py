"""Blocks in ClickHouse's Native format: all of one column, then all of the next; pure.

Rows come in portions of a few hundred, each of which is turned into pieces of columns at once, while what it was made
from is still in the processor's caches: the same rows, gathered by the ten thousand first, take half as long again.
The encoders of single types are the driver's; its own way through them begins with the import of pandas, a second of
work, and goes through every element of a list three times.

Source: ClickHouse's documentation of the format; columns of lists and nulls as its servers write them, in planes: where
each list ends, then the elements; which values are null, then the values.
"""

import struct
from array import array
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any, Final, NamedTuple

from clickhouse_connect.datatypes.base import ClickHouseType
from clickhouse_connect.datatypes.container import Array, Map, Tuple
from clickhouse_connect.driver.common import write_leb128
from clickhouse_connect.driver.exceptions import DataError
from clickhouse_connect.driver.insert import InsertContext

from sessionary.sinks.core.rows.history import Row

PORTION: Final = 500  # rows

# What the driver's encoders raise at values that do not fit their column: seen for null, range, length, lone
# surrogates, bytes in text, wrong types in arrays.
_ENCODE_ERRORS: Final = (
    DataError,
    TypeError,
    ValueError,
    AttributeError,
    OverflowError,
    struct.error,
    KeyError,
    IndexError,
)
_Pieces = list[bytearray | bytes]


class BadValue(NamedTuple):
    """A row that fits no block: its place among the rows given, and why."""

    row: int
    detail: str


class _EncodeFailed(Exception):
    """The driver could not encode a column."""


class _Column:
    """One column: what its planes hold so far."""

    def __init__(self, name: str, kind: ClickHouseType) -> None:
        self.name = name
        self._kind = kind
        self._elements: Sequence[ClickHouseType] | None = None
        if isinstance(kind, Map):
            self._elements = (kind.key_type, kind.value_type)
        elif isinstance(kind, Array):
            inner = kind.element_type
            self._elements = inner.element_types if isinstance(inner, Tuple) else (inner,)
        self._planes: list[_Pieces] = []
        self._nulls: tuple[int, _Pieces] = 0, []  # so many, as pieces

    def encoded(self, values: Sequence[Any], context: InsertContext) -> _Pieces:
        """Return a portion's piece of each plane. Raises what the driver raises."""
        if self._elements is None:
            if not self._kind.nullable or values.count(None) < len(values):
                return _values(self._kind, values, context)
            # Many columns are for few records: nothing but nulls is the same bytes each time.
            if self._nulls[0] != len(values):
                self._nulls = len(values), _values(self._kind, values, context)
            return self._nulls[1]
        pieces: _Pieces = [array("Q", map(len, values)).tobytes()]
        if isinstance(self._kind, Map):
            values = [entries.items() for entries in values]
        flat = list(chain.from_iterable(values))
        if len(self._elements) == 1:
            return pieces + _values(self._elements[0], flat, context)
        parts = list(zip(*flat, strict=True)) or [()] * len(self._elements)
        for kind, part in zip(self._elements, parts, strict=True):
            # Kafka's headers may have a name and no value; a part of a pair cannot be null.
            filled = [value or b"" for value in part] if None in part else part
            pieces += _values(kind, filled, context)
        return pieces

    def take(self, pieces: _Pieces) -> None:
        """Put a portion's pieces behind those before."""
        if not self._planes:
            self._planes = [[] for _ in pieces]
        for plane, piece in zip(self._planes, pieces, strict=True):
            plane.append(piece)

    def whole(self) -> _Pieces:
        """Return name, type and all values."""
        head = bytearray()
        for text in (self.name, self._kind.insert_name):
            encoded = text.encode()
            write_leb128(len(encoded), head)
            head += encoded
        self._kind.write_column_prefix(head)
        planes = self._planes
        if self._elements is not None:
            lengths = array("Q", b"".join(planes[0]))
            planes = [[array("Q", accumulate(lengths)).tobytes()], *planes[1:]]
        return [head, *chain.from_iterable(planes)]


def _values(kind: ClickHouseType, values: Sequence[Any], context: InsertContext) -> _Pieces:
    """Return the planes of values that are no lists."""
    data, count = bytearray(), len(values)
    kind.write_column_data(values, data, context)
    return [data[:count], data[count:]] if kind.nullable else [data]


class Block:
    """Rows on their way into one table, and then one block, whatever its size: a token covers all of it."""

    def __init__(self, context: InsertContext) -> None:
        """`context`: of an insert of columns, with no type of low cardinality."""
        self._context = context
        self._columns = [_Column(*column) for column in zip(context.column_names, context.column_types, strict=True)]
        self.rows = 0

    def add(self, rows: Sequence[Row]) -> list[BadValue]:
        """Take rows; those that do not fit are left out and named. Best in portions of `PORTION`."""
        try:
            self._add(rows)
        except _EncodeFailed as error:
            if len(rows) == 1:
                return [BadValue(0, str(error))]
            middle = len(rows) // 2
            bad = self.add(rows[:middle])
            return bad + [BadValue(middle + row, detail) for row, detail in self.add(rows[middle:])]
        return []

    def _add(self, rows: Sequence[Row]) -> None:
        """Take all of the rows, or none: raises `_EncodeFailed`."""
        if not rows:
            return
        pieces = []
        for column, values in zip(self._columns, zip(*rows, strict=True), strict=True):
            self._context.start_column(column.name)
            try:
                pieces.append(column.encoded(values, self._context))
            except _ENCODE_ERRORS as error:
                raise _EncodeFailed(f"{column.name}: {type(error).__name__}: {error}") from error
        for column, found in zip(self._columns, pieces, strict=True):
            column.take(found)
        self.rows += len(rows)

    def encoded(self) -> bytes:
        """Return the block's bytes; none where it has no rows."""
        if not self.rows:
            return b""
        head = bytearray()
        for count in (len(self._columns), self.rows):
            write_leb128(count, head)
        return b"".join([head, *chain.from_iterable(column.whole() for column in self._columns)])


__all__ = ["PORTION", "BadValue", "Block"]
