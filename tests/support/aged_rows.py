"""A migrated database whose rows are as old as a test wants."""

import uuid
from collections.abc import Sequence
from typing import Any

from sessionary.infra.clickhouse_client import ClickHouseClient, Row
from sessionary.schemas.codec import encode_record
from sessionary.schemas.records import RejectedEvent
from sessionary.schemas.settings import ClickHouseSettings
from sessionary.sinks.core.sink_kinds import SinkKind
from tests.support.clickhouse_rows import insert_records
from tests.support.pipelines import run_sql
from tests.support.sink_records import DAY_US, session_id

_QUERY_S = 300.0


class AgedRows:
    """Inserts rows as sinks do, with a log time of some days ago, and lets retention pass."""

    def __init__(self, clickhouse: ClickHouseSettings) -> None:
        """The tables are there already."""
        self.clickhouse = clickhouse
        self.now_us = 1_000_000 * int(run_sql(clickhouse, "SELECT toUnixTimestamp(now())"))

    def at_us(self, age_days: float) -> int:
        """Return the log time of a row of that age."""
        return self.now_us - round(age_days * DAY_US)

    def insert_rows(self, kind: SinkKind, age_days: float, values: Sequence[bytes], first_offset: int = 0) -> None:
        """Insert encoded records of partition 0 as one block of a sink."""
        insert_records(self.clickhouse, kind, values, self.at_us(age_days), f"block {uuid.uuid4()}", first_offset)

    def reject_rows(self, age_days: float, *offsets: int) -> None:
        """Insert the rejections of records of that age."""
        values = [
            encode_record(
                RejectedEvent(
                    *("stale_epoch", "said by bob", True, "acme", session_id(1), f"event-{offset}", "usage_recorded"),
                    *("billing", "t", 0, offset, self.at_us(age_days) // 1_000 * 1_000, b"key", b"value"),
                    {"name": b"bob"},
                )
            )
            for offset in offsets
        ]
        self.insert_rows("rejected", age_days, values, offsets[0])

    def let_retention_pass(self) -> None:
        """Merge all tables: what has expired goes."""
        database = self.clickhouse.clickhouse_database
        found = f"FROM system.tables WHERE database = '{database}' AND endsWith(engine, 'MergeTree')"
        for (table,) in self.fetch_values(f"SELECT name {found} ORDER BY name"):
            run_sql(self.clickhouse, f"OPTIMIZE TABLE {database}.{table} FINAL")

    def fetch_rows(self, sql: str) -> list[Row]:
        """Return a query's rows; tables need no database."""
        return ClickHouseClient(self.clickhouse, _QUERY_S).fetch_rows(sql)

    def fetch_values(self, sql: str) -> list[tuple[Any, ...]]:
        """Return a query's rows as tuples."""
        return [tuple(row.values()) for row in self.fetch_rows(sql)]
