"""Inserts blocks into ClickHouse, one per statement, with the settings pinned that exactness needs.

A block is encoded whole before any of it is sent: an encoding error is the fault of one row (found
by bisecting), a sending error is the fault of the server or the network.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, cast

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.insert import InsertContext

from sessionary.sinks.clickhouse.connection import classify_error, connect, query_rows, run_statement
from sessionary.sinks.clickhouse.migrate import check_client_database
from sessionary.sinks.clickhouse.native import NativeBlock
from sessionary.sinks.core.sink_kinds import DEAD_LETTERS, TableSpec
from sessionary.sinks.errors import OperatorError, Transient
from sessionary.sinks.settings import SinkSettings

# The first four are pinned because newer servers changed their defaults. The fifth lets a long
# replay be one block even if it covers many months. The last two leave work to the merges: rows of
# one identity collapse there (readers use FINAL anyway, because two blocks may hold one row), and
# skip indexes say little about parts that are too small to be merged yet.
_PINNED: Final[dict[str, str | int]] = {
    "async_insert": 0,
    "wait_end_of_query": 1,
    "insert_deduplicate": 1,
    "deduplicate_blocks_in_dependent_materialized_views": 1,
    "max_partitions_per_insert_block": 0,
    "optimize_on_insert": 0,
    "materialize_skip_indexes_on_insert": 0,
}
# Newer servers have a setting that rules over `insert_deduplicate`; older ones refuse its name.
_PINNED_IF_KNOWN: Final = {"deduplicate_insert": "enable"}

_FIND_SKIP: Final = """
SELECT max(gap_last) FROM {database}.audit
WHERE tenant_id = '' AND event_type = 'records_skipped' AND source_partition = {{partition:UInt32}}
    AND gap_first <= {{offset:Int64}} AND gap_last >= {{offset:Int64}}
"""
_TOPIC_ID: Final = "topic_id"  # the last column of every table that a sink writes
_RECORDS: Final = "uniqExact(src_partition, src_offset)"  # a row may be there twice until it is merged
_LOW_CARDINALITY: Final = re.compile(r"LowCardinality\((String|Nullable\(String\))\)")


class TableInserter:
    """Inserts into the tables of one sink and into the table of dead letters.

    Connects at the first use and again after an error. Every method may block; not thread-safe.
    """

    def __init__(self, settings: SinkSettings, table: TableSpec, *others: TableSpec) -> None:
        self._settings = settings
        self._tables = {one.name: one for one in (table, DEAD_LETTERS, *others)}
        self._table = table.name
        self._client: Client | None = None
        self._contexts: dict[str, InsertContext] = {}
        self._pinned: dict[str, str | int] = {}

    def open(self) -> None:
        """Connect, check migrations and rights, and read the columns' types, unless that is done.

        The rights are tried by inserts of no row. Raises `Transient`, `OperatorError`.
        """
        if self._client is not None:
            return
        client = connect(self._settings, self._settings.sink_insert_timeout_s)
        try:
            check_client_database(client, self._settings.clickhouse_database)
            names = ", ".join(f"'{name}'" for name in _PINNED_IF_KNOWN)
            known = query_rows(client, f"SELECT name FROM system.settings WHERE name IN ({names})")
            self._pinned = _PINNED | {str(name): _PINNED_IF_KNOWN[str(name)] for (name,) in known}
            self._contexts = {name: self._insert_context(client, table) for name, table in self._tables.items()}
            for name, table in self._tables.items():
                columns = ", ".join([*table.columns, _TOPIC_ID])
                place = f"{self._settings.clickhouse_database}.{name}"
                run_statement(client, f"INSERT INTO {place} ({columns}) SELECT {columns} FROM {place} WHERE 0")
        except Exception as error:  # every error of the driver is classified and raised
            client.close()
            raise classify_error(error) from error
        self._client = client

    def _insert_context(self, client: Client, table: TableSpec) -> InsertContext:
        database = self._settings.clickhouse_database
        columns = [*table.columns, _TOPIC_ID]
        found = client.create_insert_context(table.name, columns, database)
        # The server builds dictionaries from plain columns; the driver would build them in a Python
        # loop over all values.
        types = [_LOW_CARDINALITY.sub(r"\1", column.name) for column in found.column_types]
        return client.create_insert_context(
            table.name, columns, database, column_type_names=types, column_oriented=True
        )

    def close(self) -> None:
        """Close the connection; `open` makes a new one."""
        if self._client is not None:
            self._client.close()
        self._client = None

    def find_skip(self, partition: int, offset: int) -> int | None:
        """Return the last offset of a range of skipped events that has `offset`, or None.

        Raises `Transient`, `OperatorError`.
        """
        self.open()
        assert self._client is not None
        sql = _FIND_SKIP.format(database=self._settings.clickhouse_database)
        try:
            ((last,),) = query_rows(self._client, sql, {"partition": partition, "offset": offset})
        except (Transient, OperatorError):
            self.close()
            raise
        return last or None

    def new_block(self, table: str | None = None, *, topic_id: str | None = None) -> NativeBlock:
        """Return an empty block for `table`, by default the sink's. Call after `open`.

        `topic_id`: of the topic that its rows come from; None if it has none.
        """
        return NativeBlock(self._contexts[table or self._table], topic_id or "")

    def read_topic_ids(self, topic: str) -> set[str]:
        """Return the topic's ids in the rows of the sink's table.

        Raises `Transient`, `OperatorError`.
        """
        rows = self._query_rows(f"DISTINCT {_TOPIC_ID}", f"src_topic = '{topic}' AND {_TOPIC_ID} != ''")
        return {str(topic_id) for (topic_id,) in rows}

    def read_next_offsets(self, topic: str, topic_id: str, tables: Iterable[tuple[str, str]]) -> dict[int, int]:
        """Return, by partition, the offset after the topic's last record in `tables`.

        Each table has a condition of SQL, which may be empty. Raises `Transient`, `OperatorError`.
        """
        found: dict[int, int] = {}
        for table, condition in tables:
            place = f"src_topic = '{topic}' AND {_TOPIC_ID} = '{topic_id}'{condition} GROUP BY src_partition"
            for partition, last in self._query_rows("src_partition, max(src_offset)", place, table):
                found[int(partition)] = max(found.get(int(partition), 0), int(last) + 1)
        return found

    def insert_block(self, block: NativeBlock, token: str, *, first_try: bool, table: str | None = None) -> None:
        """Send a block under its token; harmless if it was sent before. An empty block is not sent.

        `first_try`: the block cannot be stored yet, so the server must report every row. Raises
        `Transient`, `OperatorError`.
        """
        if not block.rows:
            return
        self.open()
        assert self._client is not None
        name = table or self._table
        try:
            summary = self._client.raw_insert(
                f"{self._settings.clickhouse_database}.{name}",
                column_names=[*self._tables[name].columns, _TOPIC_ID],
                # Given bytes, the driver would put the statement before them: one more copy here,
                # and one on the server.
                insert_block=cast(bytes, memoryview(block.to_bytes())),
                settings={**self._pinned, "insert_deduplication_token": token},
                fmt="Native",
            )
        except Exception as error:  # every error of the driver is classified and raised
            self.close()
            raise classify_error(error) from error
        # These are rows received: a block whose token is known is dropped after they were counted.
        # Dependent views count too, hence "fewer". A known block may count as 0.
        if first_try and summary.written_rows < block.rows:
            raise OperatorError("short_write", f"{block.rows} rows sent, {summary.written_rows} written ({token})")

    def count_rows(self, ranges: Sequence[tuple[int, int, int]], wanted: int) -> int:
        """Return how many records in ranges (partition, first and last offset) have rows.

        Looks at parts of the last ten minutes, and at all parts if those have fewer rows than
        `wanted`. Raises `Transient`, `OperatorError`.
        """
        condition = _within(ranges)
        # The table's parts and this list are read one after the other. A part that was merged in
        # between is no longer active; it is listed nevertheless.
        recent = (
            f"SELECT name FROM system.parts WHERE database = '{self._settings.clickhouse_database}' "
            f"AND table = '{self._table}' AND modification_time > now() - 600"
        )
        (count,) = self._query_rows(_RECORDS, f"({condition}) AND _part IN ({recent})")
        if count[0] < wanted:
            (count,) = self._query_rows(_RECORDS, condition)
        return int(count[0])

    def read_places(self, ranges: Sequence[tuple[int, int, int]]) -> set[tuple[int, int]]:
        """Return the places (partition, offset) in ranges for which the sink's table has rows.

        Raises `Transient`, `OperatorError`.
        """
        rows = self._query_rows("DISTINCT src_partition, src_offset", _within(ranges))
        return {(int(partition), int(offset)) for partition, offset in rows}

    def count_blocks(self, since_ms: int) -> int:
        """Return about how many blocks the sink's table has got since a time in ms since the epoch.

        A block's rows have one arrival time, whatever partitions they are of; several blocks of one
        millisecond count as one. Raises `Transient`, `OperatorError`.
        """
        condition = f"landed_at > fromUnixTimestamp64Milli({since_ms}, 'UTC')"
        (count,) = self._query_rows("uniqExact(landed_at, _partition_id)", condition)
        return int(count[0])

    def _query_rows(self, columns: str, condition: str, table: str | None = None) -> list[tuple[Any, ...]]:
        self.open()
        assert self._client is not None
        place = f"{self._settings.clickhouse_database}.{table or self._table}"
        try:
            return query_rows(self._client, f"SELECT {columns} FROM {place} WHERE {condition}")
        except (Transient, OperatorError):
            self.close()
            raise


def _within(ranges: Sequence[tuple[int, int, int]]) -> str:
    return " OR ".join(
        f"src_partition = {partition} AND src_offset BETWEEN {first} AND {last}" for partition, first, last in ranges
    )
