"""The figures of a demo run. ClickHouse computes all but the clients' counters from rows."""

from collections.abc import Mapping
from typing import NamedTuple

from sessionary.infra.clickhouse_client import ClickHouseClient, Json, Row
from sessionary.infra.demo import queries
from sessionary.infra.demo.plan_runner import DemoCounts

# The figures that must be 0; otherwise the command's exit code is 1.
FAULTS = ("missing", "doubled", "false_timeouts", "unexpected")


class Report(NamedTuple):
    """The figures, and up to 20 sessions that did not end as planned."""

    figures: dict[str, Json]
    unexpected: list[Row]

    @property
    def faults(self) -> dict[str, int]:
        """The figures of `FAULTS` that are above 0."""
        return {name: int(self.figures[name]) for name in FAULTS if self.figures[name]}


def _round_values(row: Mapping[str, Json], digits: int) -> Row:
    return {name: None if value is None else round(value, digits) for name, value in row.items()}


def _sum_positive(row: Mapping[str, Json]) -> int:
    return sum(max(int(count or 0), 0) for count in row.values())


def make_report(
    clickhouse: ClickHouseClient,
    demo_id: str,
    counts: DemoCounts,
    other_bytes: Mapping[str, int] | None,
    elapsed_s: float,
) -> Report:
    """Compute the figures. Blocks. Raises what `ClickHouseClient` raises.

    `other_bytes`: bytes of topics that no sink reads, by name; None if they are unknown, and then
    the audit trail's share is too. `elapsed_s`: of the demo run.
    """

    def fetch_one(sql: str) -> Row:
        return clickhouse.fetch_one(sql, demo=demo_id)

    progress = fetch_one(queries.PROGRESS)
    missing = fetch_one(queries.MISSING)
    unacknowledged = missing.pop("unacknowledged")
    doubled = fetch_one(queries.DOUBLED)
    # A negative number of missing rows means more rows than the batches wrote.
    doubled |= {f"{name}_rows": -min(int(missing[name] or 0), 0) for name in ("audit", "rejected")}
    broken_chains = doubled.pop("broken_chains")
    cleanup = fetch_one(queries.CLEANUP)
    reclaim_rate = cleanup.pop("reclaim_rate")
    size = {name: int(count or 0) for name, count in (fetch_one(queries.BYTES) | dict(other_bytes or {})).items()}
    total = 0 if other_bytes is None else sum(size.values())
    counted = fetch_one(queries.COUNTS)
    figures: dict[str, Json] = {
        "sessions": progress["planned"],
        "events_sent": counts.sent,
        "events_acknowledged": counts.delivered,
        "heartbeats": counts.heartbeats,
        **{name: int(count or 0) for name, count in counted.items()},
        "missing": _sum_positive(missing),
        "doubled": _sum_positive(doubled),
        "dropped": counts.dropped + counts.failed,
        "unexpected": progress["planned"] - progress["finished"],
        "broken_chains": int(broken_chains or 0),
        "unacknowledged_transitions": max(int(unacknowledged), 0),
        "transition_latency_ms": _round_values(fetch_one(queries.TRANSITION_LATENCY), 1),
        "audit_write_latency_ms": _round_values(fetch_one(queries.AUDIT_WRITE_LATENCY), 1),
        "timeout_lateness_s": _round_values(fetch_one(queries.TIMEOUT_LATENESS), 3),
        "cleanup_latency_s": _round_values(cleanup, 3),
        "reclaim_rate": None if reclaim_rate is None else round(reclaim_rate, 4),
        "audit_io_share": round(size["audit"] / total, 4) if total else None,
        "bytes_by_topic": size,
        "actions_late_s_max": counts.actions_late_s_max,
        "elapsed_s": round(elapsed_s, 1),
    }
    return Report(figures, clickhouse.fetch_rows(queries.UNEXPECTED, demo=demo_id))
