"""Rows into ClickHouse, one block per insert, with everything pinned on which its exactness rests.

A block is encoded wholly before any of it is sent: what fails in encoding is a property of one row (found by
bisecting), what fails in sending is trouble of the server or the way to it.
"""

import re
from typing import Final, cast

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.insert import InsertContext

from sessionary.sinks.clickhouse.connection import classified, connect
from sessionary.sinks.clickhouse.migrate import check_client
from sessionary.sinks.clickhouse.native import Block
from sessionary.sinks.core.sink_kinds import DEAD_LETTERS, TableSpec
from sessionary.sinks.errors import OperatorError
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

    def block(self, table: str | None = None) -> Block:
        """Return an empty block for the table, or its dead letters. Call after `open`."""
        return Block(self._contexts[table or self._table])

    def insert(self, block: Block, token: str, *, first_try: bool, table: str | None = None) -> None:
        """Send a block under its token; harmless if it was sent before. Nothing is sent where it has no rows.

        `first_try`: nobody can have written it yet, so the server must report every row. Raises `Transient`,
        `OperatorError`.
        """
        if not block.rows:
            return
        self.open()
        assert self._client is not None
        name = table or self._table
        try:
            summary = self._client.raw_insert(
                f"{self._settings.clickhouse_database}.{name}",
                column_names=self._tables[name].columns,
                # Before bytes the driver would put the statement: one more copy here, and one at the other end.
                insert_block=cast(bytes, memoryview(block.encoded())),
                settings={**_PINNED, "insert_deduplication_token": token},
                fmt="Native",
            )
        except Exception as error:  # the driver's errors are classified, never swallowed
            self.close()
            raise classified(error) from error
        # Dependent views count too, hence "fewer"; a block that the server knows already may count as none.
        if first_try and summary.written_rows < block.rows:
            raise OperatorError("short_write", f"{block.rows} rows sent, {summary.written_rows} written ({token})")


__all__ = ["Writer"]
