"""What a processor counts and measures, for Prometheus. Every name stands here, with the sentence that explains it."""

from collections.abc import Mapping
from typing import Final, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

MetricName = Literal[
    "sessionary_records_total",
    "sessionary_refused_total",
    "sessionary_batches_total",
    "sessionary_commit_seconds",
    "sessionary_timers_fired_total",
    "sessionary_timer_lateness_seconds",
    "sessionary_partition_open_seconds",
    "sessionary_partitions_owned",
    "sessionary_partitions_halted",
    "sessionary_partition_position",
    "sessionary_rebalances_total",
    "sessionary_ticks_sent_total",
    "sessionary_errors_total",
]

HELP: Final[Mapping[MetricName, str]] = {
    "sessionary_records_total": "Records of committed transactions by outcome: applied, duplicate, refused, tick.",
    "sessionary_refused_total": "Refused records by reason.",
    "sessionary_batches_total": "Committed transactions.",
    "sessionary_commit_seconds": "From the first byte of a transaction to its acknowledgement.",
    "sessionary_timers_fired_total": "Deadlines that fired.",
    "sessionary_timer_lateness_seconds": "How long after its due time a deadline fired, both in log time.",
    "sessionary_partition_open_seconds": "From an assignment to the first record that could be folded.",
    "sessionary_partitions_owned": "Partitions that this worker owns, open or not.",
    "sessionary_partitions_halted": "Owned partitions that stand still until an operator acts, by reason.",
    "sessionary_partition_position": "Next offset to be folded, by partition; committed.",
    "sessionary_rebalances_total": "Assignments that the group gave this worker.",
    "sessionary_ticks_sent_total": "Ticks appended to owned partitions.",
    "sessionary_errors_total": "Faults by kind: aborted, reopened, hung, halted, sought, stuck, tick.",
}

_COMMIT_BUCKETS = (0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0)
_LATENESS_BUCKETS = (0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_OPEN_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Metrics:
    """One worker's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.records = self._counter("sessionary_records_total", "outcome")
        self.refused = self._counter("sessionary_refused_total", "reason")
        self.batches = self._counter("sessionary_batches_total")
        self.commit_s = self._histogram("sessionary_commit_seconds", _COMMIT_BUCKETS)
        self.timers = self._counter("sessionary_timers_fired_total")
        self.lateness_s = self._histogram("sessionary_timer_lateness_seconds", _LATENESS_BUCKETS)
        self.open_s = self._histogram("sessionary_partition_open_seconds", _OPEN_BUCKETS)
        self.owned = self._gauge("sessionary_partitions_owned")
        self.halted = self._gauge("sessionary_partitions_halted", "reason")
        self.position = self._gauge("sessionary_partition_position", "partition")
        self.rebalances = self._counter("sessionary_rebalances_total")
        self.ticks_sent = self._counter("sessionary_ticks_sent_total")
        self.errors = self._counter("sessionary_errors_total", "kind")

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def _counter(self, name: MetricName, *labels: str) -> Counter:
        return Counter(name.removesuffix("_total"), HELP[name], labels, registry=self.registry)

    def _gauge(self, name: MetricName, *labels: str) -> Gauge:
        return Gauge(name, HELP[name], labels, registry=self.registry)

    def _histogram(self, name: MetricName, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, HELP[name], buckets=buckets, registry=self.registry)


__all__ = ["HELP", "MetricName", "Metrics"]
