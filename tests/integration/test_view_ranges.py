"""Views of a time read the partitions of that time, and no others."""

import json
import re
from collections.abc import Iterator

import pytest

from sessionary.schemas.settings import ClickHouseSettings
from tests.support.pipelines import run_sql

MONTHS, ROWS = 10, 2_000  # rows of a month and table
DAY = "from = '2026-03-03 00:00:00', to = '2026-03-04 00:00:00'"
_AT = "addMonths(toDateTime64('2026-01-03 00:00:00', 6, 'UTC'), number % 10)"
_EXPIRY = "toDateTime64('2090-01-01 00:00:00', 6, 'UTC') AS retain_until, toDateTime('2105-01-01') AS personal_expires"
_FILL = (
    f"INSERT INTO {{db}}.history (source_partition, source_offset, appended_at, event_type, tenant_id, session_id, "
    "producer_id, producer_seq, payload_json, retention_class, retain_until, personal_expires) "
    f"SELECT 0, number, {_AT}, 'usage_recorded', 'acme', toString(number % 100), 'p', number, "
    f"'{{{{\"tokens_in\":1}}}}', 'default', {_EXPIRY} FROM numbers({MONTHS * ROWS})",
    f"INSERT INTO {{db}}.audit (tenant_id, session_id, audit_seq, kind, transition, to_state, appended_at, due_at, "
    "fired_at, cleanup_id, batch_number, retention_class, retain_until, personal_expires) "
    f"SELECT 'acme', toString(number % 100), number, 'transition', 'T06', 'Timeout', {_AT}, {_AT}, {_AT}, 'c', number, "
    f"'default', {_EXPIRY} FROM numbers({MONTHS * ROWS})",
    f"INSERT INTO {{db}}.rejected (reason, source_offset, appended_at, retain_until, personal_expires) "
    f"SELECT 'stale_epoch', 1000000 + number, {_AT}, {_EXPIRY} FROM numbers({MONTHS * ROWS})",
    f"INSERT INTO {{db}}.batches (partition, number, audited, started_at, previous_acknowledged_at) "
    f"SELECT 0, number, 1, {_AT}, {_AT} FROM numbers({MONTHS * ROWS})",
)

# Views that group rows take the time; the others, a condition on `time`.
GROUPED = {
    "v_usage_calls_between": 1,
    "v_usage_between": 1,
    "v_usage_by_between": 1,
    "v_usage_by_tenant_between": 1,
    "v_calls_per_minute_between": 1,
    "v_activity_between": 1,
    "v_sessions_between": 1,
    "v_tool_calls_between": 1,
    "v_cleanups_between": MONTHS - 2,  # a confirmation may come at any time after the request
    "v_acknowledgements_between": 1,
    "v_transition_latency_between": 1,
    "v_audit_write_latency_between": 1,
    "v_kpi_between": MONTHS - 2,
}
ROW_VIEWS = ("v_transitions", "v_timeouts", "v_deadlines", "v_rejected", "v_audit_json")


@pytest.fixture
def months(tables: ClickHouseSettings) -> ClickHouseSettings:
    """A database with rows of ten months; those of a month are one part of each table."""
    for statement in _FILL:
        run_sql(tables, statement.format(db=tables.clickhouse_database))
    return tables


def parts_read(clickhouse: ClickHouseSettings, query: str) -> Iterator[tuple[str, int]]:
    """Yield the tables that a query reads, and how many of their parts."""
    plan = run_sql(clickhouse, f"EXPLAIN indexes = 1 {query}")
    for read in plan.split("ReadFromMergeTree (")[1:]:
        parts = re.search(r"Parts: (\d+)\b", read)
        # Of a branch whose condition is constant and false, the plan names none.
        yield read.partition(")")[0].partition(".")[2], int(parts[1]) if parts else 0


def rows_read(clickhouse: ClickHouseSettings, query: str) -> int:
    return int(json.loads(run_sql(clickhouse, f"{query} FORMAT JSON"))["statistics"]["rows_read"])


def test_a_view_of_a_day_reads_the_partitions_of_that_day_only(months: ClickHouseSettings) -> None:
    database = months.clickhouse_database
    queries = {view: f"SELECT * FROM {months.between_database}.{view}({DAY})" for view in GROUPED}
    queries["v_kpi_between"] = f"SELECT * FROM {months.between_database}.v_kpi_between({DAY}, late_s = 30)"
    queries |= {
        view: f"SELECT * FROM {database}.{view} WHERE time >= '2026-03-03 00:00:00' AND time < '2026-03-04 00:00:00'"
        for view in ROW_VIEWS
    }
    found = {view: max(parts for _, parts in parts_read(months, query)) for view, query in queries.items()}
    assert found == GROUPED | dict.fromkeys(ROW_VIEWS, 1)


def test_rows_of_other_months_are_not_read(months: ClickHouseSettings) -> None:
    database = months.clickhouse_database
    for view in ("v_usage", "v_usage_by", "v_activity", "v_sessions", "v_transition_latency"):
        day = rows_read(months, f"SELECT count() FROM {months.between_database}.{view}_between({DAY})")
        assert ROWS <= day <= rows_read(months, f"SELECT count() FROM {database}.{view}") / (MONTHS - 2), view


def test_a_filter_by_session_reads_the_rows_of_that_session_alone(months: ClickHouseSettings) -> None:
    """The joins and groups of a view let a condition on the session through to the tables' keys."""
    for view in ("v_activity", "v_sessions", "v_cleanups", "v_tool_calls"):
        query = f"SELECT * FROM {months.clickhouse_database}.{view} WHERE tenant_id = 'acme' AND session_id = '7'"
        plan = run_sql(months, f"EXPLAIN indexes = 1 {query}")
        reads = plan.split("ReadFromMergeTree (")[1:]
        keyed = [read for read in reads if ".rejected" not in read.partition(")")[0]]
        assert keyed, view
        assert all("session_id in ['7', '7']" in read.replace("\\'", "'") for read in keyed), view
