"""A processor's Prometheus metrics.

`HELP` lists every metric with the sentence that explains it and names its unit.
"""

from collections.abc import Mapping
from typing import Final, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from sessionary.stream_processors.core.model import Outcome

MetricName = Literal[
    "sessionary_processor_records_total",
    "sessionary_processor_refused_total",
    "sessionary_processor_batches_total",
    "sessionary_processor_commit_seconds",
    "sessionary_processor_timers_fired_total",
    "sessionary_processor_timer_lateness_seconds",
    "sessionary_processor_partition_open_seconds",
    "sessionary_processor_partitions_owned",
    "sessionary_processor_partitions_halted",
    "sessionary_processor_next_offset",
    "sessionary_processor_held_records",
    "sessionary_processor_clock_ahead_seconds",
    "sessionary_processor_rebalances_total",
    "sessionary_processor_ticks_sent_total",
    "sessionary_processor_errors_total",
    "sessionary_processor_token_file_failures_total",
]

HELP: Final[Mapping[MetricName, str]] = {
    "sessionary_processor_records_total": "Records of committed transactions by outcome: applied, duplicate, "
    "refused, tick.",
    "sessionary_processor_refused_total": "Refused records of committed transactions, by reason.",
    "sessionary_processor_batches_total": "Committed transactions.",
    "sessionary_processor_commit_seconds": "Seconds from the start of a transaction to its acknowledgement.",
    "sessionary_processor_timers_fired_total": "Deadlines that fired.",
    "sessionary_processor_timer_lateness_seconds": "Seconds of log time from a deadline's due time until it fired.",
    "sessionary_processor_partition_open_seconds": "Seconds that a partition took to open: fence, recover, seek.",
    "sessionary_processor_partitions_owned": "Partitions that this worker owns, open or not.",
    "sessionary_processor_partitions_halted": "Owned partitions that are halted, by reason, until its cause is gone.",
    "sessionary_processor_next_offset": "Offset of the next record to be folded, by partition; all before it is "
    "committed, but for ticks that changed nothing.",
    "sessionary_processor_held_records": "Records that an open transaction of another producer keeps from being read, "
    "by partition; only partitions that are held up.",
    "sessionary_processor_clock_ahead_seconds": "Seconds by which the log clock of an open partition is ahead of "
    "this worker's clock, by partition; negative in a silence and while old records are folded.",
    "sessionary_processor_rebalances_total": "Assignments that the group gave this worker.",
    "sessionary_processor_ticks_sent_total": "Ticks that the broker acknowledged.",
    "sessionary_processor_errors_total": "Faults by kind: aborted, reopened, hung, halted, sought, stuck, tick, "
    "registry, fetcher_renewed, judge (records that it failed to judge: alert on them).",
    "sessionary_processor_token_file_failures_total": "Attempts to read the token file that failed; one a second until "
    "the file can be used.",
}

_COMMIT_BUCKETS = (0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0)
_LATENESS_BUCKETS = (0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_OPEN_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Metrics:
    """One worker's metrics, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.records = self._counter("sessionary_processor_records_total", "outcome")
        self.refused = self._counter("sessionary_processor_refused_total", "reason")
        self.batches = self._counter("sessionary_processor_batches_total")
        self.commit_s = self._histogram("sessionary_processor_commit_seconds", _COMMIT_BUCKETS)
        self.timers = self._counter("sessionary_processor_timers_fired_total")
        self.lateness_s = self._histogram("sessionary_processor_timer_lateness_seconds", _LATENESS_BUCKETS)
        self.open_s = self._histogram("sessionary_processor_partition_open_seconds", _OPEN_BUCKETS)
        self.owned = self._gauge("sessionary_processor_partitions_owned")
        self.halted = self._gauge("sessionary_processor_partitions_halted", "reason")
        self.position = self._gauge("sessionary_processor_next_offset", "partition")
        self.held_records = self._gauge("sessionary_processor_held_records", "partition")
        self.clock_ahead_s = self._gauge("sessionary_processor_clock_ahead_seconds", "partition")
        self.rebalances = self._counter("sessionary_processor_rebalances_total")
        self.ticks_sent = self._counter("sessionary_processor_ticks_sent_total")
        self.errors = self._counter("sessionary_processor_errors_total", "kind")
        self.token_file_failures = self._counter("sessionary_processor_token_file_failures_total")

    def report_clocks(self, clocks_ms: Mapping[int, int], wall_s: float) -> None:
        """Set how far each partition's log clock is ahead of `wall_s`; forget other partitions.

        A clock is in ms since the epoch; 0 is that of a partition that never had a record.
        """
        self.clock_ahead_s.clear()
        for partition, clock_ms in clocks_ms.items():
            if clock_ms:
                self.clock_ahead_s.labels(str(partition)).set(clock_ms / 1_000 - wall_s)

    def count_outcome(self, outcome: Outcome, commit_s: float) -> None:
        """Count a committed transaction, which took `commit_s`."""
        counts = outcome.counts
        for name, number in (
            ("applied", counts.applied),
            ("duplicate", counts.duplicate),
            ("refused", counts.refused),
            ("tick", counts.ticks),
        ):
            self.records.labels(name).inc(number)
        for reason in outcome.refusals:
            self.refused.labels(reason).inc()
        if failed := sum(reason == "internal_error" for reason in outcome.refusals):
            self.errors.labels("judge").inc(failed)
        self.batches.inc()
        self.commit_s.observe(commit_s)
        if counts.timers:
            self.timers.inc(counts.timers)
            for lateness_ms in outcome.timer_lateness_ms:
                self.lateness_s.observe(lateness_ms / 1_000)

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format, UTF-8."""
        return generate_latest(self.registry)

    def _counter(self, name: MetricName, *labels: str) -> Counter:
        return Counter(name.removesuffix("_total"), HELP[name], labels, registry=self.registry)

    def _gauge(self, name: MetricName, *labels: str) -> Gauge:
        return Gauge(name, HELP[name], labels, registry=self.registry)

    def _histogram(self, name: MetricName, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, HELP[name], buckets=buckets, registry=self.registry)


__all__ = ["HELP", "MetricName", "Metrics"]
