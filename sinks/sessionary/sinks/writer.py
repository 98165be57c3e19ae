"""Rows into ClickHouse, one block per insert, with everything pinned on which its exactness rests.

A block is encoded wholly before any of it is sent: what fails in encoding is a property of one row (found by
bisecting), what fails in sending is trouble of the server or the way to it.
"""

import re
import struct
from array import array
from collections.abc import Sequence
from itertools import accumulate, chain
from operator import itemgetter
from typing import Any, Final, NamedTuple

from clickhouse_connect.datatypes.base import ClickHouseType
from clickhouse_connect.datatypes.container import Array, Tuple
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.common import write_leb128
from clickhouse_connect.driver.exceptions import DataError
from clickhouse_connect.driver.insert import InsertContext

from sessionary.sinks.connection import classified, connect
from sessionary.sinks.definitions import DEAD_LETTERS, TableSpec
from sessionary.sinks.errors import OperatorError
from sessionary.sinks.migrate import check_client
from sessionary.sinks.rows import Row
from sessionary.sinks.settings import SinkSettings

# Newer servers changed the defaults of the first four. The fifth keeps a long replay from a block over many months. The
# last two leave work to the merges: rows of one identity (readers ask FINAL, as rows of two blocks need it anyway) and
# the indexes that skip, which say little of parts as small as those that are not merged yet.
_PINNED: Final = {
    "async_insert": 0,
    "wait_end_of_query": 1,
    "insert_deduplicate": 1,
    "deduplicate_blocks_in_dependent_materialized_views": 1,
    "max_partitions_per_insert_block": 0,
    "optimize_on_insert": 0,
    "materialize_skip_indexes_on_insert": 0,
}

_LOW_CARDINALITY: Final = re.compile(r"LowCardinality\((String|Nullable\(String\))\)")

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


class BadValue(NamedTuple):
    """A row that fits no block: its place among the rows given, and why."""

    row: int
    detail: str


class Encoded(NamedTuple):
    """A block ready to be sent, and the rows that are not in it."""

    block: bytes
    rows: int
    bad: Sequence[BadValue]


class _EncodeFailed(Exception):
    """The driver could not encode a column."""


class Writer:
    """Writes one table and its dead letters. Blocks; not thread-safe; connects when first needed and after trouble."""

    def __init__(self, settings: SinkSettings, table: TableSpec) -> None:
        self._settings = settings
        self._tables = {table.name: table, DEAD_LETTERS.name: DEAD_LETTERS}
        self._table = table.name
        self._client: Client | None = None
        self._contexts: dict[str, InsertContext] = {}

    def open(self) -> None:
        """Connect, check the migrations, learn the columns' types; nothing where that is done.

        Raises `Transient`, `OperatorError`.
        """
        if self._client is not None:
            return
        client = connect(self._settings, self._settings.sink_insert_timeout_s)
        try:
            check_client(client, self._settings.clickhouse_database)
            self._contexts = {name: self._context(client, table) for name, table in self._tables.items()}
        except Exception as error:  # the driver's errors are classified, never swallowed
            client.close()
            raise classified(error) from error
        self._client = client

    def _context(self, client: Client, table: TableSpec) -> InsertContext:
        database = self._settings.clickhouse_database
        found = client.create_insert_context(table.name, table.columns, database)
        # The server makes its own dictionaries from plain columns; the driver's are built in a Python loop per value.
        types = [_LOW_CARDINALITY.sub(r"\1", column.name) for column in found.column_types]
        return client.create_insert_context(
            table.name, table.columns, database, column_type_names=types, column_oriented=True
        )

    def close(self) -> None:
        """Let go of the connection; `open` makes a new one."""
        if self._client is not None:
            self._client.close()
        self._client = None

    def encode(self, rows: Sequence[Row], table: str | None = None) -> Encoded:
        """Encode `rows` as one block; those that do not fit are left out and named. Call after `open`."""
        context = self._contexts[table or self._table]
        try:
            return Encoded(_block(context, rows), len(rows), ())
        except _EncodeFailed as error:
            bad = list(_bisect(context, rows, 0, str(error)))
        left_out = {value.row for value in bad}
        good = [row for index, row in enumerate(rows) if index not in left_out]
        return Encoded(_block(context, good), len(good), bad)

    def insert(self, encoded: Encoded, token: str, *, first_try: bool, table: str | None = None) -> None:
        """Send a block under its token; harmless if it was sent before. Nothing is sent where it has no rows.

        `first_try`: nobody can have written it yet, so the server must report every row. Raises `Transient`,
        `OperatorError`.
        """
        if not encoded.rows:
            return
        self.open()
        assert self._client is not None
        name = table or self._table
        try:
            summary = self._client.raw_insert(
                f"{self._settings.clickhouse_database}.{name}",
                column_names=self._tables[name].columns,
                insert_block=encoded.block,
                settings={**_PINNED, "insert_deduplication_token": token},
                fmt="Native",
            )
        except Exception as error:  # the driver's errors are classified, never swallowed
            self.close()
            raise classified(error) from error
        # Dependent views count too, hence "fewer"; a block that the server knows already may count as none.
        if first_try and summary.written_rows < encoded.rows:
            raise OperatorError("short_write", f"{encoded.rows} rows sent, {summary.written_rows} written ({token})")


def _block(context: InsertContext, rows: Sequence[Row]) -> bytes:
    """Return one Native block, whatever its size: the token covers all of it. Raises `_EncodeFailed`.

    The types' encoders are the driver's; its own way through them begins with the import of pandas, a second of work,
    and copies the block as it grows.
    """
    if not rows:
        return b""
    names, types = context.column_names, context.column_types
    head = bytearray()
    for count in (len(names), len(rows)):
        write_leb128(count, head)
    pieces = [head]
    for name, kind, values in zip(names, types, zip(*rows, strict=True), strict=True):
        column = bytearray()
        for text in (name, kind.insert_name):
            encoded = text.encode()
            write_leb128(len(encoded), column)
            column += encoded
        context.start_column(name)
        try:
            if isinstance(kind, Array) and isinstance(kind.element_type, Tuple):
                _write_pairs(kind.element_type.element_types, values, column, context)
            else:
                kind.write_column(values, column, context)
        except _ENCODE_ERRORS as error:
            raise _EncodeFailed(f"{name}: {type(error).__name__}: {error}") from error
        pieces.append(column)
    return b"".join(pieces)


def _write_pairs(
    types: Sequence[ClickHouseType], values: Sequence[Any], column: bytearray, context: InsertContext
) -> None:
    """Write lists of pairs of texts: where each list ends, then all first parts, then all second ones; null is empty.

    The driver goes through every pair three times.
    """
    column += array("Q", accumulate(map(len, values))).tobytes()
    pairs = list(chain.from_iterable(values))
    for place, kind in enumerate(types):
        parts = list(map(itemgetter(place), pairs))
        if None in parts:
            parts = [part or b"" for part in parts]
        kind.write_column(parts, column, context)


def _bisect(context: InsertContext, rows: Sequence[Row], start: int, detail: str) -> list[BadValue]:
    """Return every row of a block that failed which fails by itself; halves that encode are not looked into."""
    if len(rows) == 1:
        return [BadValue(start, detail)]
    bad: list[BadValue] = []
    middle = len(rows) // 2
    for offset, half in ((0, rows[:middle]), (middle, rows[middle:])):
        try:
            _block(context, half)
        except _EncodeFailed as error:
            bad += _bisect(context, half, start + offset, str(error))
    return bad


__all__ = ["BadValue", "Encoded", "Writer"]
