"""The ledger of a demo run in ClickHouse: the sessions that were planned, the events acknowledged.

The tables `demo_sessions` and `demo_journal` are in the pipeline's database. They hold the rows of
many demo runs by `demo_id`, for a week.
"""

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from sessionary.infra.clickhouse_client import ClickHouseClient, Row
from sessionary.infra.demo.plan import Plan
from sessionary.schemas.errors import Invalid, Unavailable

_BLOCK_ROWS = 10_000
_TABLES = (
    """CREATE TABLE IF NOT EXISTS demo_sessions
    (
        demo_id String, tenant_id LowCardinality(String), session_id String, service_id LowCardinality(String),
        run_name String, outcome LowCardinality(String), silent Bool, expected Array(String),
        written_at DateTime('UTC') DEFAULT now()
    )
    ENGINE = MergeTree ORDER BY (demo_id, session_id) TTL written_at + INTERVAL 7 DAY""",
    """CREATE TABLE IF NOT EXISTS demo_journal
    (
        demo_id String, event_id String, event_type LowCardinality(String), tenant_id LowCardinality(String),
        session_id String, producer_id String, producer_seq Int64, partition Nullable(UInt32),
        offset Nullable(UInt64), error Nullable(String), written_at DateTime('UTC') DEFAULT now()
    )
    ENGINE = MergeTree ORDER BY (demo_id, event_id) TTL written_at + INTERVAL 7 DAY""",
)


def record_plan(clickhouse: ClickHouseClient, plan: Plan) -> None:
    """Create missing tables and insert the plan. Blocks. Raises what `ClickHouseClient` raises."""
    for table in _TABLES:
        clickhouse.execute(table)
    clickhouse.insert_rows(
        "demo_sessions",
        (
            {
                "demo_id": plan.demo_id,
                "tenant_id": session.tenant_id,
                "session_id": session.session_id,
                "service_id": session.service_id,
                "run_name": session.run_name,
                "outcome": session.outcome,
                "silent": session.silent,
                "expected": session.expected,
            }
            for session in plan.sessions
        ),
    )


def _journal_lines(journals: Iterable[Path]) -> Iterator[Row]:
    for path in journals:
        with path.open() as lines:
            for number, line in enumerate(lines, 1):
                try:
                    yield json.loads(line)
                except ValueError:
                    raise Invalid("undecodable", f"{path}, line {number} is not JSON") from None


def load_journals(clickhouse: ClickHouseClient, demo_id: str, journals: Iterable[Path]) -> int:
    """Insert every line of the journals, return their number. Blocks.

    If ClickHouse goes away meanwhile, waits for it, and begins again. Raises `Invalid` for a broken
    line, and what `ClickHouseClient` raises.
    """
    paths = list(journals)
    try:
        return _insert_journals(clickhouse, demo_id, paths)
    except Unavailable:
        clickhouse.fetch_rows("SELECT 1")  # waits, if the client is a patient one
        clickhouse.execute(f"DELETE FROM demo_journal WHERE demo_id = '{demo_id}'")  # of a block in part
        return _insert_journals(clickhouse, demo_id, paths)


def _insert_journals(clickhouse: ClickHouseClient, demo_id: str, journals: Iterable[Path]) -> int:
    lines, count = _journal_lines(journals), 0
    while block := [{**line, "demo_id": demo_id} for line in islice(lines, _BLOCK_ROWS)]:
        clickhouse.insert_rows("demo_journal", block)
        count += len(block)
    return count
