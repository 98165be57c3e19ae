"""(w) Views of one day over ten days of rows: usage, sessions, and the integrity check.

The rows are made in the engine, as sinks write them: transactions of 100 records in four
partitions, twelve audit records each, sessions of 100 events. All is well with them, so the
integrity check must find nothing; it must find the row that is deleted at the end.
"""

import time
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from benchmarks.bench import Bench
from benchmarks.harness.proc_stats import cpu_seconds
from benchmarks.harness.stack import PARTITIONS, running_stack
from benchmarks.results import Result, Target
from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.schemas.settings import ClickHouseSettings
from sessionary.sinks.clickhouse import migrate

ROWS, ROWS_QUICK = 10_000_000, 200_000
DAYS = 10
LATE_S = 120
RECORDS, AUDITED = 100, 12  # of a transaction
MILLISECONDS_MAX = 1_000.0
_TRANSACTIONS_A_GROUP = 50  # a group of transactions has as many sessions
_QUERY_S_MAX = 600.0
_NEVER: Final = (
    "toDateTime64('2090-01-01 00:00:00', 6, 'UTC') AS retain_until, toDateTime('2105-01-01') AS personal_expires"
)
# The transaction n: its partition, its number there, its time, and its group.
_TRANSACTION: Final = (
    f"n % {PARTITIONS} AS p, intDiv(n, {PARTITIONS}) AS k, "
    "toDateTime64('{began}', 6, 'UTC') + toIntervalMillisecond(intDiv(n * {days} * 86400000, {transactions})) AS at, "
    f"intDiv(n, {_TRANSACTIONS_A_GROUP}) AS g"
)
_UUID: Final = "toString(reinterpretAsUUID(sipHash128(g, s)))"
_FILL: Final = {
    "batches": "INSERT INTO batches (partition, number, first_offset, last_offset, applied, audited, started_at, "
    f"previous_acknowledged_at, instance, landed_at) WITH number AS n, {_TRANSACTION} "
    f"SELECT p, k, k * {RECORDS}, k * {RECORDS} + {RECORDS - 1}, {RECORDS}, {AUDITED}, at, at, 'w1', at "
    "FROM numbers({transactions})",
    "history": "INSERT INTO history (source_partition, source_offset, appended_at, occurred_at, event_id, event_type, "
    "tenant_id, session_id, user_id, agent_id, service_id, producer_id, producer_seq, payload_json, retention_class, "
    f"retain_until, personal_expires) WITH intDiv(number, {RECORDS}) AS n, number % {RECORDS} AS r, {_TRANSACTION}, "
    f"r % {_TRANSACTIONS_A_GROUP} AS s "
    f"SELECT p, k * {RECORDS} + r, at, at, toString(number), if(r % 5 = 0, 'usage_recorded', 'session_activity'), "
    f"concat('tenant-', toString(g % 3)), {_UUID}, concat('user-', toString(s)), 'agent', 'service', {_UUID}, number, "
    'if(r % 5 = 0, \'{{"model":"small","tokens_in":120,"tokens_out":30,"model_cost_usd_nanos":900000}}\', '
    "'{{\"kind\":\"message\"}}'), 'default', "
    f"{_NEVER} FROM numbers({{rows}})",
    "audit": "INSERT INTO audit (audit_id, tenant_id, session_id, audit_seq, kind, transition, event_type, from_state, "
    "to_state, service_id, occurred_at, appended_at, source_partition, source_offset, source_n, batch_number, "
    f"retention_class, retain_until, personal_expires) WITH intDiv(number, {AUDITED}) AS n, number % {AUDITED} AS a, "
    f"{_TRANSACTION}, (n % {_TRANSACTIONS_A_GROUP}) * {AUDITED} + a AS u, u % {_TRANSACTIONS_A_GROUP} AS s "
    f"SELECT toString(number), concat('tenant-', toString(g % 3)), {_UUID}, "
    f"intDiv(u, {_TRANSACTIONS_A_GROUP}) + 1, 'transition', 'T05', 'session_resumed', 'Active', 'Active', 'service', "
    f"at, at, p, k * {RECORDS} + a, 0, k, 'default', {_NEVER} FROM numbers({{audits}})",
}
_QUERIES: Final = {
    "v_usage, a day": "SELECT count() AS n, sum(tokens_in) AS tokens FROM {between}.v_usage_between({day})",
    "v_usage_by, a day": "SELECT count() AS n FROM {between}.v_usage_by_between({day})",
    "v_sessions, a day": "SELECT count() AS n FROM {between}.v_sessions_between({day})",
    "v_activity, a day": "SELECT count() AS n FROM {between}.v_activity_between({day})",
    "v_integrity, a day": "SELECT count() AS n FROM {between}.v_integrity_between({day}, late_s = {late_s})",
}


class Cost(NamedTuple):
    """The time of a query and of the engine's processor, ms, and the query's answer."""

    elapsed_ms: float
    cpu_ms: float
    answer: dict[str, object]


def fill_tables(clickhouse: ClickHouseSettings, rows: int, today: datetime) -> str:
    """Fill migrated tables with `rows` of history of the ten days before `today`.

    Return the condition of the views' functions for the fifth of these days.
    """
    client = ClickHouseClient(clickhouse, _QUERY_S_MAX)
    transactions = rows // RECORDS
    began = today.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=DAYS)
    for statement in _FILL.values():
        client.execute(
            statement.format(
                began=f"{began:%F %T}", days=DAYS, transactions=transactions, rows=rows, audits=transactions * AUDITED
            )
        )
    first = began + timedelta(days=DAYS // 2)
    return f"from = '{first:%F %T}', to = '{first + timedelta(days=1):%F %T}'"


def ask_views(clickhouse: ClickHouseSettings, day: str, engine_pid: int) -> dict[str, Cost]:
    """Ask each view once for the rows of a day."""
    client = ClickHouseClient(clickhouse, _QUERY_S_MAX)
    found: dict[str, Cost] = {}
    for name, query in _QUERIES.items():
        began_s, cpu_s = time.perf_counter(), cpu_seconds(engine_pid)
        answer = client.fetch_one(query.format(between=client.between, day=day, late_s=LATE_S))
        elapsed_s = time.perf_counter() - began_s
        found[name] = Cost(elapsed_s * 1e3, (cpu_seconds(engine_pid) - cpu_s) * 1e3, answer)
    return found


def delete_record(clickhouse: ClickHouseSettings, day: str) -> None:
    """Delete one row of history of the day."""
    first = day.partition("'")[2].partition("'")[0]
    ClickHouseClient(clickhouse, _QUERY_S_MAX).execute(
        "ALTER TABLE history DELETE WHERE (source_partition, source_offset) IN (SELECT source_partition, source_offset "
        f"FROM history WHERE appended_at >= '{first}' ORDER BY appended_at, source_partition, source_offset LIMIT 1) "
        "SETTINGS mutations_sync = 1"
    )


def run(bench: Bench) -> list[Result]:
    """Measure the views over one filled database."""
    rows = bench.event_count(ROWS, ROWS_QUICK)
    with running_stack(bench) as stack:
        clickhouse = stack.new_database()
        migrate.apply_migrations(clickhouse)
        bench.print_progress(f"making {rows:,} rows")
        day = fill_tables(clickhouse, rows, datetime.now(UTC))
        ask_views(clickhouse, day, stack.clickhouse_pid)  # what is read first comes from the disk; not counted
        runs = bench.repeat("views of a day", lambda _n: ask_views(clickhouse, day, stack.clickhouse_pid))
        check_answers(clickhouse, runs, day, rows, stack.clickhouse_pid)
    months = len({(datetime.now(UTC) - timedelta(days=n)).month for n in range(1, DAYS + 1)})
    notes = (
        f"{rows:,} rows of history, {rows // RECORDS * AUDITED:,} of the audit trail and {rows // RECORDS:,} "
        f"transactions of {DAYS} days, in {months} monthly partition(s); the day has a tenth of them",
        "the engine runs in one process on all cores; what the views read is in the page cache",
    )
    results: list[Result] = []
    for name in _QUERIES:
        costs = [one[name] for one in runs]
        target = Target("<=", MILLISECONDS_MAX)
        results.append(Result(name, "ms", [cost.elapsed_ms for cost in costs], target, notes))
        results.append(Result(f"{name}, the engine's processor time", "ms", [cost.cpu_ms for cost in costs]))
    return results


def check_answers(
    clickhouse: ClickHouseSettings, runs: list[dict[str, Cost]], day: str, rows: int, engine_pid: int
) -> None:
    """Raise `RuntimeError` if a view differs from the stored rows."""
    wanted = {"v_usage, a day": rows // DAYS // 5 * 120, "v_integrity, a day": 0}
    for one in runs:
        reported = {
            "v_usage, a day": one["v_usage, a day"].answer["tokens"],
            "v_integrity, a day": one["v_integrity, a day"].answer["n"],
        }
        if reported != wanted:
            raise RuntimeError(f"the views reported {reported}, the rows are {wanted}")
    delete_record(clickhouse, day)
    if ask_views(clickhouse, day, engine_pid)["v_integrity, a day"].answer["n"] != 1:
        raise RuntimeError("v_integrity reported nothing of a deleted row")
