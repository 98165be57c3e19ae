"""The lag exporter's Prometheus metrics.

`HELP` lists every metric with the sentence that explains it and names its unit. A series exists
only while its value is known: without an answer of Kafka there is no lag, and no zero either.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Literal, NamedTuple

from prometheus_client.core import GaugeMetricFamily

from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.infra.kpi.question_watch import QuestionWatch
from sessionary.infra.lag.lag_monitor import LagReport
from sessionary.infra.lag.lag_tracker import PartitionLag
from sessionary.schemas.settings import ClickHouseSettings

# Asks ClickHouse for the delays of events' rows: from the log's stamp to the insert.


_TIMEOUT_S = 2.0
_EVERY_S = 10.0
# Rows of the last minute, found by the time of their event: parts without any of the last hour are
# not opened. Events that landed even later show in the time lag.
_QUERY = """
SELECT name AS `table`, found AS rows, delays[1] AS p50, delays[2] AS p95, delays[3] AS p100
FROM ({selects})
WHERE found > 0
ORDER BY name
"""
_SELECT = """
SELECT '{table}' AS name, count() AS found,
    quantilesExact(0.5, 0.95, 1)(greatest(0, dateDiff('millisecond', appended_at, landed_at)) / 1e3) AS delays
FROM {table}
WHERE appended_at > now() - INTERVAL 1 HOUR AND landed_at > now() - INTERVAL 1 MINUTE
"""
_TABLES = ("audit", "history", "rejected")


class RowDelay(NamedTuple):
    """The delays of the rows of a table that landed within the last minute, in seconds."""

    table: str
    rows: int
    p50_s: float
    p95_s: float
    max_s: float


def ask_row_delays(settings: ClickHouseSettings) -> tuple[RowDelay, ...]:
    """Return the delays by table; a table in which no row landed has none. Blocks for up to 2 s.

    Raises as `ClickHouseClient` does.
    """
    selects = "UNION ALL".join(_SELECT.format(table=table) for table in _TABLES)
    rows = ClickHouseClient(settings, _TIMEOUT_S).fetch_rows(_QUERY.format(selects=selects))
    return tuple(RowDelay(row["table"], row["rows"], row["p50"], row["p95"], row["p100"]) for row in rows)


class RowDelayWatch(QuestionWatch[tuple[RowDelay, ...]]):
    """Asks every 10 s on a dedicated thread."""

    def __init__(
        self, settings: ClickHouseSettings, on_fault: Callable[[Exception], None] = lambda _error: None
    ) -> None:
        """Ask nothing yet. `on_fault` is called on the thread, once per outage."""
        super().__init__("row-delays", lambda: ask_row_delays(settings), _EVERY_S, on_fault)


MetricName = Literal[
    "sessionary_lag_records",
    "sessionary_lag_seconds",
    "sessionary_lag_committed_offset",
    "sessionary_lag_records_per_second",
    "sessionary_lag_catch_up_seconds",
    "sessionary_lag_partition_state",
    "sessionary_lag_group_state",
    "sessionary_lag_log_end_offset",
    "sessionary_lag_newest_record_age_seconds",
    "sessionary_lag_row_delay_seconds",
    "sessionary_lag_broker_up",
    "sessionary_lag_clickhouse_up",
    "sessionary_lag_sample_seconds",
    "sessionary_lag_sample_timestamp_seconds",
]

HELP: Final[Mapping[MetricName, str]] = {
    "sessionary_lag_records": "Offsets from the group's committed offset to the log's end, by partition; the whole "
    "log without a commit, 0 if no record is left.",
    "sessionary_lag_seconds": "Seconds since the oldest record that the group has not committed was appended, by "
    "partition; 0 without a lag. A tick or heartbeat that a sink delays counts from the end of its delay.",
    "sessionary_lag_committed_offset": "Offset that the group has committed, by partition.",
    "sessionary_lag_records_per_second": "Offsets that the group commits per second, by partition.",
    "sessionary_lag_catch_up_seconds": "Seconds until the lag ends at the present rates, by partition; absent if "
    "the lag does not shrink.",
    "sessionary_lag_partition_state": "1 for the state of a partition of a group: ok, observing, warn, unknown, "
    "rewind, stall, stop, log_truncated, log_gap, or no_topic (with an empty partition).",
    "sessionary_lag_group_state": "1 for the state of a group: stable, rebalancing, empty, absent or unknown.",
    "sessionary_lag_log_end_offset": "Offset that the next record will have, by partition; committed records only.",
    "sessionary_lag_newest_record_age_seconds": "Seconds since the newest record was appended, by partition; ticks "
    "are records too.",
    "sessionary_lag_row_delay_seconds": "Seconds from an event's stamp in the log to its row in ClickHouse, by table "
    "and quantile (0.5, 0.95, 1), of the rows of the last minute.",
    "sessionary_lag_broker_up": "1 if Kafka answered the last sample, else 0.",
    "sessionary_lag_clickhouse_up": "1 if ClickHouse answered the last query, else 0.",
    "sessionary_lag_sample_seconds": "Seconds that the last sample took.",
    "sessionary_lag_sample_timestamp_seconds": "Time of the last sample, in seconds since the epoch.",
}

_PLACE = ("group", "topic", "partition")


class ExporterState(NamedTuple):
    """The exporter's knowledge. None: Kafka or ClickHouse is away."""

    report: LagReport | None
    row_delays: tuple[RowDelay, ...] | None


def collect_families(state: ExporterState) -> Iterator[GaugeMetricFamily]:
    """Yield all metrics, each with the series whose value is known."""
    yield _single("sessionary_lag_broker_up", float(state.report is not None))
    yield _single("sessionary_lag_clickhouse_up", float(state.row_delays is not None))
    delays = _family("sessionary_lag_row_delay_seconds", "table", "quantile")
    for delay in state.row_delays or ():
        for quantile, delay_s in (("0.5", delay.p50_s), ("0.95", delay.p95_s), ("1", delay.max_s)):
            delays.add_metric((delay.table, quantile), delay_s)
    yield delays
    if state.report is not None:
        yield _single("sessionary_lag_sample_seconds", state.report.took_s)
        yield _single("sessionary_lag_sample_timestamp_seconds", state.report.at_s)
        yield from _lag_families(state.report.partitions)


def _lag_families(lags: Iterable[PartitionLag]) -> Iterator[GaugeMetricFamily]:
    records, seconds = _family("sessionary_lag_records", *_PLACE), _family("sessionary_lag_seconds", *_PLACE)
    committed = _family("sessionary_lag_committed_offset", *_PLACE)
    rates = _family("sessionary_lag_records_per_second", *_PLACE)
    catch_up = _family("sessionary_lag_catch_up_seconds", *_PLACE)
    states = _family("sessionary_lag_partition_state", *_PLACE, "state")
    group_states = _family("sessionary_lag_group_state", "group", "state")
    ends = _family("sessionary_lag_log_end_offset", "topic", "partition")
    ages = _family("sessionary_lag_newest_record_age_seconds", "topic", "partition")
    seen: set[tuple[str, ...]] = set()
    for lag in lags:
        partition = "" if lag.partition is None else str(lag.partition)
        labels = (lag.group, lag.topic, partition)
        states.add_metric((*labels, lag.state), 1.0)
        for family, value in (
            (records, lag.lag),
            (seconds, lag.lag_s),
            (committed, lag.committed),
            (rates, lag.records_per_s),
            (catch_up, lag.catch_up_s),
        ):
            if value is not None:
                family.add_metric(labels, value)
        if (lag.group,) not in seen:
            seen.add((lag.group,))
            group_states.add_metric((lag.group, lag.group_state), 1.0)
        if labels[1:] not in seen:
            seen.add(labels[1:])
            for family, value in ((ends, lag.log_end), (ages, lag.newest_record_age_s)):
                if value is not None:
                    family.add_metric(labels[1:], value)
    yield from (records, seconds, committed, rates, catch_up, states, group_states, ends, ages)


def _family(name: MetricName, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, HELP[name], labels=labels)


def _single(name: MetricName, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, HELP[name], value=value)
