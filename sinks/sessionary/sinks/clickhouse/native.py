"""Blocks in ClickHouse's Native format: all of one column, then all of the next; pure.

Rows come in portions of a few hundred. Each portion is encoded into pieces of columns at once,
while its rows are still in the processor's caches: encoding ten thousand rows at a time takes half
as long again. The encoders of single types are the driver's. The driver's own insert path is not
used: it imports pandas, which takes a second, and walks over every list three times.

Source: ClickHouse's documentation of the format. Columns of lists and nulls consist of planes, as
ClickHouse servers write them: the end of each list, then the elements; which values are null,
then the values.
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

from sessionary.sinks.core.rows.shared import TableRow

PORTION: Final = 500  # rows

# Errors of the driver's encoders for values that do not fit their column: seen for null, range,
# length, lone surrogates, bytes in text, wrong types in arrays.
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
    """A row that cannot be encoded: its index among the rows given, and why."""

    row_index: int
    detail: str


class _EncodeFailed(Exception):
    """The driver could not encode a column."""


class _Column:
    """One column: the pieces of its planes so far."""

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
        self._nulls: tuple[int, _Pieces] = 0, []  # a number of nulls, and their encoding

    @property
    def type_name(self) -> str:
        """The type as the server names it."""
        return str(self._kind.name)

    def encode_values(self, values: Sequence[Any], context: InsertContext) -> _Pieces:
        """Return a portion's piece of each plane. Raises `_ENCODE_ERRORS`."""
        if self._elements is None:
            if not self._kind.nullable or values.count(None) < len(values):
                return _encode_planes(self._kind, values, context)
            # Many columns are null in most portions; their encoding is kept.
            if self._nulls[0] != len(values):
                self._nulls = len(values), _encode_planes(self._kind, values, context)
            return self._nulls[1]
        pieces: _Pieces = [array("Q", map(len, values)).tobytes()]
        if isinstance(self._kind, Map):
            values = [entries.items() for entries in values]
        flat = list(chain.from_iterable(values))
        if len(self._elements) == 1:
            return pieces + _encode_planes(self._elements[0], flat, context)
        parts = list(zip(*flat, strict=True)) or [()] * len(self._elements)
        for kind, part in zip(self._elements, parts, strict=True):
            # A Kafka header may have no value, but an element of a tuple cannot be null.
            filled = [value or b"" for value in part] if None in part else part
            pieces += _encode_planes(kind, filled, context)
        return pieces

    def append_pieces(self, pieces: Sequence[bytearray | bytes]) -> None:
        """Append a portion's pieces to the planes."""
        if not self._planes:
            self._planes = [[] for _ in pieces]
        for plane, piece in zip(self._planes, pieces, strict=True):
            plane.append(piece)

    def column_pieces(self) -> _Pieces:
        """Return the column's name, type and values, encoded."""
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


def _encode_planes(kind: ClickHouseType, values: Sequence[Any], context: InsertContext) -> _Pieces:
    """Return the planes of values that are not lists."""
    data, count = bytearray(), len(values)
    kind.write_column_data(values, data, context)
    return [data[:count], data[count:]] if kind.nullable else [data]


class NativeBlock:
    """The rows of one insert into one table, of any number, so that one token covers all."""

    def __init__(self, context: InsertContext, last_value: str | None = None) -> None:
        """`context`: of a column-oriented insert without LowCardinality types.

        `last_value`: of the last column, in all rows; rows are then added without it.
        """
        self._context = context
        self._last_value = last_value
        self._last_pieces: tuple[int, _Pieces] = 0, []  # a number of rows, and their encoding
        self._columns = [_Column(*column) for column in zip(context.column_names, context.column_types, strict=True)]
        self.rows = 0

    @property
    def given_columns(self) -> list[tuple[str, str]]:
        """Name and type of each column whose values are given; types as the server names them."""
        given = self._columns if self._last_value is None else self._columns[:-1]
        return [(column.name, column.type_name) for column in given]

    def add_pieces(self, rows: int, pieces: Sequence[Sequence[bytearray | bytes]]) -> None:
        """Append encoded rows: for each given column, a piece of each plane."""
        if self._last_value is not None:
            pieces = [*pieces, self._encode_last(rows)]
        for column, found in zip(self._columns, pieces, strict=True):
            column.append_pieces(found)
        self.rows += rows

    def add_rows(self, rows: Sequence[TableRow]) -> list[BadValue]:
        """Append rows; leave out and return those that cannot be encoded.

        Fastest with `PORTION` rows at a time.
        """
        try:
            self._add_all(rows)
        except _EncodeFailed as error:
            if len(rows) == 1:
                return [BadValue(0, str(error))]
            middle = len(rows) // 2
            bad = self.add_rows(rows[:middle])
            return bad + [BadValue(middle + row, detail) for row, detail in self.add_rows(rows[middle:])]
        return []

    def _add_all(self, rows: Sequence[TableRow]) -> None:
        """Append all of the rows, or none: then raises `_EncodeFailed`."""
        if rows:
            self.add_pieces(len(rows), self.encode_rows(rows))

    def encode_rows(self, rows: Sequence[TableRow]) -> list[_Pieces]:
        """Return a piece of each plane, for each given column. Raises `_EncodeFailed`."""
        pieces = []
        given = self._columns if self._last_value is None else self._columns[:-1]
        for column, values in zip(given, zip(*rows, strict=True), strict=True):
            self._context.start_column(column.name)
            try:
                pieces.append(column.encode_values(values, self._context))
            except _ENCODE_ERRORS as error:
                raise _EncodeFailed(f"{column.name}: {type(error).__name__}: {error}") from error
        return pieces

    def _encode_last(self, rows: int) -> _Pieces:
        if self._last_pieces[0] != rows:
            column = self._columns[-1]
            self._context.start_column(column.name)
            self._last_pieces = rows, column.encode_values([self._last_value] * rows, self._context)
        return self._last_pieces[1]

    def to_bytes(self) -> bytes:
        """Return the block's bytes; empty if it has no rows."""
        if not self.rows:
            return b""
        head = bytearray()
        for count in (len(self._columns), self.rows):
            write_leb128(count, head)
        return b"".join([head, *chain.from_iterable(column.column_pieces() for column in self._columns)])
