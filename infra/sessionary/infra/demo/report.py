"""The figures of a demo run. ClickHouse computes all but the clients' counters from rows."""

from collections.abc import Mapping
from typing import NamedTuple

from sessionary.infra.clickhouse_client import ClickHouseClient, Json, Row
from sessionary.infra.demo.plan_runner import DemoCounts

# The SQL behind the figures. Each statement but UNEXPECTED gives one row.
#
# `{demo:String}` is the id of the demo run. Its rows are those of its sessions, and those at the
# offsets of its journal, because a broken record may name no session. Its batches are those
# between its first and last offset in each partition. On a shared stack they contain the events of
# other senders too, which `events_applied`, `duplicates` and the bytes then include.


_SESSIONS = "(SELECT session_id FROM demo_sessions WHERE demo_id = {demo:String})"
_JOURNAL = """(
    SELECT assumeNotNull(partition) AS at_partition, assumeNotNull(offset) AS at_offset, event_id
    FROM demo_journal
    WHERE demo_id = {demo:String} AND error IS NULL AND offset IS NOT NULL
)"""
_BOUNDS = f"(SELECT at_partition, min(at_offset) AS low, max(at_offset) AS high FROM {_JOURNAL} GROUP BY at_partition)"
_BATCHES = f"""(
    SELECT b.* FROM (SELECT * FROM batches FINAL) AS b
    INNER JOIN {_BOUNDS} AS w ON b.partition = w.at_partition
    WHERE b.last_offset >= w.low AND b.first_offset <= w.high
)"""


def _between_bounds(table: str) -> str:
    return f"""(
    SELECT h.* FROM (SELECT * FROM {table} FINAL) AS h
    INNER JOIN {_BOUNDS} AS w ON h.source_partition = w.at_partition
    WHERE h.source_offset BETWEEN w.low AND w.high
)"""


# The progress of the pipeline. The demo run is done if finished = planned and uncleaned = 0.
PROGRESS = f"""
SELECT
    countIf(t.seen = s.expected) AS finished, count() AS planned, sum(t.transitions) AS transitions,
    (SELECT count() FROM v_uncleaned WHERE session_id IN {_SESSIONS}) AS uncleaned
FROM (SELECT session_id, expected FROM demo_sessions WHERE demo_id = {{demo:String}}) AS s
LEFT JOIN
(
    SELECT
        session_id, count() AS transitions,
        arrayMap(x -> x.2, arraySort(groupArrayIf((audit_seq, toString(assumeNotNull(transition))),
            transition NOT IN ('T08', 'T14')))) AS seen
    FROM v_transitions WHERE session_id IN {_SESSIONS}
    GROUP BY session_id
) AS t ON t.session_id = s.session_id"""

# Sessions that did not end as planned, for people; at most 20 rows.
UNEXPECTED = f"""
SELECT
    s.tenant_id AS tenant_id, s.session_id AS session_id, s.outcome AS outcome, s.expected AS expected, t.seen AS seen
FROM (SELECT * FROM demo_sessions WHERE demo_id = {{demo:String}}) AS s
LEFT JOIN
(
    SELECT
        session_id,
        arrayMap(x -> x.2, arraySort(groupArrayIf((audit_seq, toString(assumeNotNull(transition))),
            transition NOT IN ('T08', 'T14')))) AS seen
    FROM v_transitions WHERE session_id IN {_SESSIONS}
    GROUP BY session_id
) AS t ON t.session_id = s.session_id
WHERE t.seen != s.expected
ORDER BY session_id LIMIT 20"""

# Acknowledged events that are in no history row or no batch; outcomes that have no row.
# A transaction without records begins at the same offset as the next one, which has the records.
MISSING = f"""
SELECT
    (SELECT count() FROM {_JOURNAL} AS j LEFT ANTI JOIN history AS h
        ON h.source_partition = j.at_partition AND h.source_offset = j.at_offset AND h.event_id = j.event_id
    ) AS history,
    (SELECT countIf(j.at_offset > b.last_offset OR b.number = 0) FROM {_JOURNAL} AS j
        ASOF LEFT JOIN (SELECT partition, number, toUInt64(first_offset) AS first_offset, last_offset
            FROM batches FINAL WHERE last_offset >= first_offset
            ORDER BY last_offset DESC LIMIT 1 BY partition, first_offset) AS b
        ON b.partition = j.at_partition AND j.at_offset >= b.first_offset) AS batches,
    (SELECT sum(audited) FROM {_BATCHES}) -
        (SELECT count() FROM audit WHERE (source_partition, batch_number) IN
            (SELECT partition, number FROM {_BATCHES})) AS audit,
    (SELECT sum(rejected) FROM {_BATCHES}) -
        (SELECT count() FROM (SELECT * FROM rejected) AS r
            INNER JOIN (SELECT partition, min(first_offset) AS low, max(last_offset) AS high
                FROM {_BATCHES} GROUP BY partition) AS w ON r.source_partition = w.partition
            WHERE r.source_offset BETWEEN w.low AND w.high) AS rejected,
    (SELECT sum(rows) FROM v_integrity
        WHERE fault IN ('audit_missing', 'batch_missing') AND (partition IS NOT NULL OR session_id IN {_SESSIONS})
    ) AS sequence,
    (SELECT count() FROM v_transitions WHERE session_id IN {_SESSIONS}) -
        (SELECT count() FROM v_transition_latency WHERE session_id IN {_SESSIONS}) AS unacknowledged"""

# Without FINAL, so that a row that a merge would hide counts too.
DOUBLED = f"""
SELECT
    (SELECT sum(n - 1) FROM (SELECT count() AS n FROM history WHERE session_id IN {_SESSIONS}
        GROUP BY source_partition, source_offset)) AS history,
    (SELECT sum(toInt64(h.n) - greatest(toInt64(j.copies), 1)) FROM
        (SELECT event_id, uniqExact(source_partition, source_offset) AS n FROM history
            WHERE session_id IN {_SESSIONS} AND event_id != '' GROUP BY event_id HAVING n > 1) AS h
        LEFT JOIN (SELECT event_id, count() AS copies FROM {_JOURNAL} GROUP BY event_id) AS j ON j.event_id = h.event_id
    ) AS events,
    (SELECT sum(n - 1) FROM (SELECT count() AS n FROM audit WHERE session_id IN {_SESSIONS} GROUP BY audit_id)
    ) AS audit,
    (SELECT sum(n - 1) FROM (SELECT count() AS n FROM batches
        WHERE partition IN (SELECT partition FROM {_BATCHES}) GROUP BY partition, number)) AS batches,
    (SELECT sum(rows) FROM v_integrity
        WHERE fault IN ('audit_doubled', 'batch_doubled') AND (partition IS NOT NULL OR session_id IN {_SESSIONS})
    ) AS sequence,
    (SELECT sum(rows) FROM v_integrity WHERE fault = 'chain_broken' AND session_id IN {_SESSIONS}) AS broken_chains"""

COUNTS = f"""
SELECT
    (SELECT sum(applied) FROM {_BATCHES}) AS events_applied,
    (SELECT sum(duplicate) FROM {_BATCHES}) AS duplicates,
    (SELECT count() FROM rejected FINAL WHERE session_id IN {_SESSIONS} OR (source_partition, source_offset) IN
        (SELECT at_partition, at_offset FROM {_JOURNAL})) AS rejected,
    (SELECT countIf(kind = 'gap') FROM audit FINAL WHERE session_id IN {_SESSIONS}) AS gaps,
    (SELECT countIf(kind = 'transition') FROM audit FINAL WHERE session_id IN {_SESSIONS}) AS transitions,
    (SELECT count() FROM audit FINAL WHERE session_id IN {_SESSIONS}) AS audit_rows,
    (SELECT count() FROM history FINAL WHERE session_id IN {_SESSIONS} OR (source_partition, source_offset) IN
        (SELECT at_partition, at_offset FROM {_JOURNAL})) AS history_rows,
    (SELECT count() FROM v_deadlines WHERE transition != 'T08' AND session_id IN {_SESSIONS}) AS timeouts,
    (SELECT count() FROM v_deadlines WHERE transition != 'T08' AND session_id IN
        (SELECT session_id FROM demo_sessions WHERE demo_id = {{demo:String}} AND NOT silent)) AS false_timeouts,
    (SELECT count() FROM demo_sessions WHERE demo_id = {{demo:String}} AND silent) AS silent_sessions"""

_QUANTILES = (
    "quantileExactOrNull(0.5)({0}) AS p50, quantileExactOrNull(0.95)({0}) AS p95, quantileExactOrNull(0.99)({0}) AS p99"
)

TRANSITION_LATENCY = (
    f"SELECT {_QUANTILES.format('latency_ms')} FROM v_transition_latency WHERE session_id IN {_SESSIONS}"
)
AUDIT_WRITE_LATENCY = (
    f"SELECT {_QUANTILES.format('latency_ms')} FROM v_audit_write_latency "
    f"WHERE (partition, number) IN (SELECT partition, number FROM {_BATCHES})"
)
TIMEOUT_LATENESS = (
    "SELECT quantileExactOrNull(0.95)(lateness_s) AS p95, maxOrNull(lateness_s) AS max "
    f"FROM v_deadlines WHERE transition != 'T08' AND session_id IN {_SESSIONS}"
)
# Clean-ups of timed-out sessions: from the timeout to the confirmed release. Sessions whose host
# was lost are no part of the reclaim rate.
CLEANUP = f"""
SELECT
    avgOrNullIf(assumeNotNull(latency_s), confirmed) AS avg,
    quantileExactOrNullIf(0.95)(assumeNotNull(latency_s), confirmed) AS p95,
    if(countIf(NOT host_lost) = 0, NULL, countIf(confirmed) / countIf(NOT host_lost)) AS reclaim_rate
FROM v_cleanups WHERE transition = 'T06' AND session_id IN {_SESSIONS}"""

BYTES = f"""
SELECT
    (SELECT sum(toUInt64(value_size)) FROM {_between_bounds("history")}) AS events,
    (SELECT sum(toUInt64(value_size)) FROM audit FINAL
        WHERE (source_partition, batch_number) IN (SELECT partition, number FROM {_BATCHES})) AS audit,
    (SELECT sum(toUInt64(value_size)) FROM {_between_bounds("rejected")}) AS rejected,
    (SELECT sum(toUInt64(value_size)) FROM {_BATCHES}) AS batches"""


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
    """Compute the figures. Blocks. Raises as `ClickHouseClient` does.

    `other_bytes`: bytes of topics that no sink reads, by name; None if they are unknown, and then
    the audit trail's share is too. `elapsed_s`: of the demo run.
    """

    def fetch_one(sql: str) -> Row:
        return clickhouse.fetch_one(sql, demo=demo_id)

    progress = fetch_one(PROGRESS)
    missing = fetch_one(MISSING)
    unacknowledged = missing.pop("unacknowledged")
    doubled = fetch_one(DOUBLED)
    # A negative number of missing rows means more rows than the batches wrote.
    doubled |= {f"{name}_rows": -min(int(missing[name] or 0), 0) for name in ("audit", "rejected")}
    broken_chains = doubled.pop("broken_chains")
    cleanup = fetch_one(CLEANUP)
    reclaim_rate = cleanup.pop("reclaim_rate")
    size = {name: int(count or 0) for name, count in (fetch_one(BYTES) | dict(other_bytes or {})).items()}
    total = 0 if other_bytes is None else sum(size.values())
    counted = fetch_one(COUNTS)
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
        "transition_latency_ms": _round_values(fetch_one(TRANSITION_LATENCY), 1),
        "audit_write_latency_ms": _round_values(fetch_one(AUDIT_WRITE_LATENCY), 1),
        "timeout_lateness_s": _round_values(fetch_one(TIMEOUT_LATENESS), 3),
        "cleanup_latency_s": _round_values(cleanup, 3),
        "reclaim_rate": None if reclaim_rate is None else round(reclaim_rate, 4),
        "audit_io_share": round(size["audit"] / total, 4) if total else None,
        "bytes_by_topic": size,
        "actions_late_s_max": counts.actions_late_s_max,
        "elapsed_s": round(elapsed_s, 1),
    }
    return Report(figures, clickhouse.fetch_rows(UNEXPECTED, demo=demo_id))
