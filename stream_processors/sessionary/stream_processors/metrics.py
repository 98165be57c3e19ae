"""A processor's Prometheus metrics.

`HELP` lists every metric with the sentence that explains it and names its unit. Values that a
worker has anyway are read at each scrape (`SCRAPED`), so that they cost the work nothing, and so
that the series of a partition vanish with the partition. `self_metrics/` reads them.
"""

import time
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Literal, NamedTuple, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from sessionary.schemas.records import AuditRecord
from sessionary.schemas.retention import compliance_tags, retention_of
from sessionary.schemas.types import DataClass
from sessionary.stream_processors.core.model import BatchResult
from sessionary.stream_processors.core.session.snapshots import names_wrong_hash
from sessionary.stream_processors.core.trail import SECURITY_REASONS

MetricName = Literal[
    "sessionary_processor_records_total",
    "sessionary_processor_rejected_total",
    "sessionary_processor_transitions_total",
    "sessionary_processor_batches_total",
    "sessionary_processor_batch_records",
    "sessionary_processor_transaction_bytes",
    "sessionary_processor_changelog_bytes_total",
    "sessionary_processor_commit_seconds",
    "sessionary_processor_work_seconds_total",
    "sessionary_processor_compliance_seconds_total",
    "sessionary_processor_lag_records",
    "sessionary_processor_lag_seconds",
    "sessionary_processor_outages_total",
    "sessionary_processor_outage_grace_partitions",
    "sessionary_processor_timers_fired_total",
    "sessionary_processor_timers_due",
    "sessionary_processor_timer_lateness_seconds",
    "sessionary_processor_timer_wall_lateness_seconds",
    "sessionary_processor_sessions",
    "sessionary_processor_sessions_over_context_limit",
    "sessionary_processor_runs",
    "sessionary_processor_attached_runs",
    "sessionary_processor_attached_run_age_seconds",
    "sessionary_processor_tool_calls",
    "sessionary_processor_tombstones",
    "sessionary_processor_stored_bytes",
    "sessionary_processor_disk_free_bytes",
    "sessionary_processor_state_hash_mismatches_total",
    "sessionary_processor_partition_open_seconds",
    "sessionary_processor_recovery_remaining_records",
    "sessionary_processor_partitions_owned",
    "sessionary_processor_partitions_halted",
    "sessionary_processor_next_offset",
    "sessionary_processor_held_records",
    "sessionary_processor_clock_ahead_seconds",
    "sessionary_processor_rebalances_total",
    "sessionary_processor_group_heartbeat_age_seconds",
    "sessionary_processor_ticks_sent_total",
    "sessionary_processor_tick_age_seconds",
    "sessionary_processor_errors_total",
    "sessionary_processor_token_file_failures_total",
    "sessionary_processor_followers",
    "sessionary_processor_quota_claims",
    "sessionary_processor_session_claims",
    "sessionary_processor_token_accounts",
]

HELP: Final[Mapping[MetricName, str]] = {
    "sessionary_processor_records_total": "Records of committed transactions by outcome: applied, duplicate, "
    "rejected, tick.",
    "sessionary_processor_rejected_total": "Rejected records of committed transactions, by reason; security: true if "
    "the reason suggests that the sender impersonates another one.",
    "sessionary_processor_transitions_total": "Transitions of sessions in committed transactions, by the states "
    "before (UNKNOWN: the session was created) and after.",
    "sessionary_processor_batches_total": "Committed transactions.",
    "sessionary_processor_batch_records": "Records folded in one transaction.",
    "sessionary_processor_transaction_bytes": "Bytes that one transaction wrote: keys and values, uncompressed.",
    "sessionary_processor_changelog_bytes_total": "Bytes of written changelog records: keys and values, uncompressed.",
    "sessionary_processor_commit_seconds": "Seconds from the start of a transaction to its acknowledgement.",
    "sessionary_processor_work_seconds_total": "Seconds of processor time spent on folding and on writing "
    "transactions, without the threads of librdkafka.",
    "sessionary_processor_compliance_seconds_total": "Seconds spent on retention and compliance tags of audit records, "
    "estimated: once a second some committed records are tagged again, and their time is scaled to all.",
    "sessionary_processor_lag_records": "Offsets between the next record to be folded and the end of the log for "
    "readers of committed records, by partition; 0 if only markers of transactions are behind it.",
    "sessionary_processor_lag_seconds": "Seconds since the first uncommitted record was appended, by "
    "partition; 0 without one. Before it is fetched: since the log's clock, or since the last time without a lag.",
    "sessionary_processor_outages_total": "Outages of logs with live sessions, after which no timer fires for a while.",
    "sessionary_processor_outage_grace_partitions": "Open partitions in which no timer fires after an outage.",
    "sessionary_processor_timers_fired_total": "Deadlines that fired.",
    "sessionary_processor_timers_due": "Deadlines that have passed by this worker's clock and did not fire, by "
    "partition; none after a silence of the log. At most 20,000 are checked per worker.",
    "sessionary_processor_timer_lateness_seconds": "Seconds of log time from a deadline's due time until it fired.",
    "sessionary_processor_timer_wall_lateness_seconds": "Seconds of this worker's time from a deadline's due time "
    "until the transaction in which it fired was acknowledged.",
    "sessionary_processor_sessions": "Sessions in open partitions, by state; counted within seconds after a partition "
    "has opened.",
    "sessionary_processor_sessions_over_context_limit": "Sessions in open partitions whose context exceeds their "
    "limit; counted within seconds after a partition has opened.",
    "sessionary_processor_runs": "Runs in open partitions, by state; finished ones for 30 days; counted within "
    "seconds after a partition has opened.",
    "sessionary_processor_attached_runs": "Attached runs that were started and have not finished: each holds a "
    "connection of its agent open; counted within seconds after a partition has opened.",
    "sessionary_processor_attached_run_age_seconds": "Seconds since the oldest attached run was started or resumed; 0 "
    "without one.",
    "sessionary_processor_tool_calls": "Reserved tool calls in open partitions, by state, until their runs or "
    "sessions vanish; counted within seconds after a partition has opened.",
    "sessionary_processor_tombstones": "Tombstones in open partitions; two for a packed task.",
    "sessionary_processor_stored_bytes": "Bytes of the rows that this worker stores, with their keys, as in the "
    "changelog, by layer: rows of sessions and open runs, separate contents, tombstones and finished runs.",
    "sessionary_processor_disk_free_bytes": "Free bytes of the file system with the state folder; absent if rows are "
    "in memory.",
    "sessionary_processor_state_hash_mismatches_total": "Contents, stores and changelogs that did not match the hash "
    "or checksum on record, by source: agent (snapshots that were rejected or left out), store "
    "(damaged local stores), changelog (lost rows), log (states at a point that differ from what the judge held).",
    "sessionary_processor_partition_open_seconds": "Seconds that a partition took to open: fence, recover, seek.",
    "sessionary_processor_recovery_remaining_records": "Offsets of the changelog that are still to be read, by "
    "partition; only while a partition recovers.",
    "sessionary_processor_partitions_owned": "Partitions that this worker owns, open or not.",
    "sessionary_processor_partitions_halted": "Halted partitions of this worker, by reason.",
    "sessionary_processor_next_offset": "Offset of the next record to be folded, by open partition; all records "
    "before it are committed, except ticks without effect.",
    "sessionary_processor_held_records": "Records that cannot be read because of another producer's open transaction, "
    "by partition; only partitions with such records.",
    "sessionary_processor_clock_ahead_seconds": "Seconds by which the log clock of an open partition is ahead of "
    "this worker's clock, by partition; negative in a silence and while old records are folded.",
    "sessionary_processor_rebalances_total": "Assignments that the group gave this worker.",
    "sessionary_processor_group_heartbeat_age_seconds": "Seconds since the group last acknowledged a heartbeat of this "
    "worker.",
    "sessionary_processor_ticks_sent_total": "Ticks that the broker acknowledged.",
    "sessionary_processor_tick_age_seconds": "Seconds since the broker acknowledged the last tick, by partition; only "
    "partitions that need ticks.",
    "sessionary_processor_errors_total": "Faults by kind: aborted, renewed (the producer), reopened, hung, halted, "
    "sought, stuck, tick, registry, fetcher_renewed, judge (records that could not be judged: alert on them).",
    "sessionary_processor_token_file_failures_total": "Failed attempts to read the token file; one a second until "
    "the file can be used.",
    "sessionary_processor_followers": "Open streams of followers of sessions, by the session's place: own (in a "
    "partition of this worker), passed_on (in another worker's).",
    "sessionary_processor_quota_claims": "Claims of runs to quotas in open partitions of the role quotas, by state: "
    "waiting, granted and rejected (before the session has received the verdict), taken. Granted and taken claims "
    "hold a slot.",
    "sessionary_processor_session_claims": "Claims of live sessions to quotas in open partitions of the role quotas, "
    "by state, as those of runs.",
    "sessionary_processor_token_accounts": "Accounts of tokens in open partitions of the role quotas, by state: within "
    "the limit, or used_up. A tenant has one for runs and one for sessions, if these request slots, until its window "
    "ends.",
}

# The gauges that are read at each scrape, each with its label; None: it has one series.
SCRAPED: Final[Mapping[MetricName, str | None]] = {
    "sessionary_processor_lag_records": "partition",
    "sessionary_processor_lag_seconds": "partition",
    "sessionary_processor_outage_grace_partitions": None,
    "sessionary_processor_timers_due": "partition",
    "sessionary_processor_sessions": "state",
    "sessionary_processor_sessions_over_context_limit": None,
    "sessionary_processor_runs": "state",
    "sessionary_processor_attached_runs": None,
    "sessionary_processor_attached_run_age_seconds": None,
    "sessionary_processor_tool_calls": "state",
    "sessionary_processor_tombstones": None,
    "sessionary_processor_stored_bytes": "layer",
    "sessionary_processor_disk_free_bytes": None,
    "sessionary_processor_recovery_remaining_records": "partition",
    "sessionary_processor_next_offset": "partition",
    "sessionary_processor_clock_ahead_seconds": "partition",
    "sessionary_processor_group_heartbeat_age_seconds": None,
    "sessionary_processor_tick_age_seconds": "partition",
    "sessionary_processor_quota_claims": "state",
    "sessionary_processor_session_claims": "state",
    "sessionary_processor_token_accounts": "state",
}

# Returns a gauge's values by label; of a gauge without one, its value or None.
ReadGauge = Callable[[], Mapping[str, float] | Mapping[int, float] | float | None]

_COMMIT_BUCKETS = (0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0)
_LATENESS_BUCKETS = (0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_OPEN_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_RECORDS_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000)
_BYTES_BUCKETS = tuple(4**power for power in range(4, 14))  # 256 bytes to 64 MiB
_SAMPLE_EACH_S = 1.0
_SAMPLE_MAX = 20  # records
_CLASS_OF_TAG = {tag: data_class for data_class in get_args(DataClass) for tag in compliance_tags((data_class,))}


class CommitCosts(NamedTuple):
    """The costs of an acknowledged transaction. `work_s` is processor time, its fold included."""

    elapsed_s: float
    work_s: float = 0.0
    acknowledged_ms: int = 0  # since the epoch
    written_bytes: int = 0
    changelog_bytes: int = 0


class ComplianceTimer:
    """Estimates the time that retention and compliance tags of audit records take.

    The core, which tags them, reads no clock. So some records are tagged again once a second.
    """

    def __init__(self) -> None:
        self._untimed = 0  # audit records since the last sample
        self._sampled_s = time.monotonic() - _SAMPLE_EACH_S

    def add_outcome(self, outcome: BatchResult) -> float:
        """Take a committed outcome; return the seconds of all since the last sample, or 0."""
        self._untimed += outcome.counts.audited
        if not outcome.counts.audited or time.monotonic() - self._sampled_s < _SAMPLE_EACH_S:
            return 0.0
        sample = [record for _, record in outcome.records_on("audit")[:_SAMPLE_MAX]]
        elapsed_s = _time_tagging(sample)
        untimed, self._untimed, self._sampled_s = self._untimed, 0, time.monotonic()
        return elapsed_s / len(sample) * untimed


def _time_tagging(records: list[AuditRecord]) -> float:
    tagged = [([_CLASS_OF_TAG[tag] for tag in record.compliance_tags], record.appended_at) for record in records]
    begun_s = time.perf_counter()
    for classes, appended_us in tagged:
        compliance_tags(classes)
        retention_of(classes, appended_us)
    return time.perf_counter() - begun_s


class _ScrapedGauges(Collector):
    """The gauges of `SCRAPED`. One without a reader has no series."""

    def __init__(self) -> None:
        self.readers: dict[MetricName, ReadGauge] = {}

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Read all gauges."""
        for name, label in SCRAPED.items():
            family = GaugeMetricFamily(name, HELP[name], labels=() if label is None else (label,))
            read = self.readers.get(name)
            found = None if read is None else read()
            if isinstance(found, Mapping):
                for value_of, value in found.items():
                    family.add_metric((str(value_of),), value)
            elif found is not None:
                family.add_metric((), found)
            yield family


class Metrics:
    """One worker's metrics, in a separate registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.records = self._counter("sessionary_processor_records_total", "outcome")
        self.rejected = self._counter("sessionary_processor_rejected_total", "reason", "security")
        self.transitions = self._counter("sessionary_processor_transitions_total", "from_state", "to_state")
        self.batches = self._counter("sessionary_processor_batches_total")
        self.batch_records = self._histogram("sessionary_processor_batch_records", _RECORDS_BUCKETS)
        self.transaction_bytes = self._histogram("sessionary_processor_transaction_bytes", _BYTES_BUCKETS)
        self.changelog_bytes = self._counter("sessionary_processor_changelog_bytes_total")
        self.commit_s = self._histogram("sessionary_processor_commit_seconds", _COMMIT_BUCKETS)
        self.work_s = self._counter("sessionary_processor_work_seconds_total")
        self.compliance_s = self._counter("sessionary_processor_compliance_seconds_total")
        self.outages = self._counter("sessionary_processor_outages_total")
        self.timers = self._counter("sessionary_processor_timers_fired_total")
        self.lateness_s = self._histogram("sessionary_processor_timer_lateness_seconds", _LATENESS_BUCKETS)
        self.wall_lateness_s = self._histogram("sessionary_processor_timer_wall_lateness_seconds", _LATENESS_BUCKETS)
        self.state_hash_mismatches = self._counter("sessionary_processor_state_hash_mismatches_total", "source")
        for source in ("agent", "store", "changelog", "log"):
            self.state_hash_mismatches.labels(source)
        self.open_s = self._histogram("sessionary_processor_partition_open_seconds", _OPEN_BUCKETS)
        self.owned = self._gauge("sessionary_processor_partitions_owned")
        self.halted = self._gauge("sessionary_processor_partitions_halted", "reason")
        self.held_records = self._gauge("sessionary_processor_held_records", "partition")
        self.rebalances = self._counter("sessionary_processor_rebalances_total")
        self.ticks_sent = self._counter("sessionary_processor_ticks_sent_total")
        self.errors = self._counter("sessionary_processor_errors_total", "kind")
        self.token_file_failures = self._counter("sessionary_processor_token_file_failures_total")
        self.followers = self._gauge("sessionary_processor_followers", "source")
        for source in ("own", "passed_on"):
            self.followers.labels(source)
        self._compliance_timer = ComplianceTimer()
        self._scraped = _ScrapedGauges()
        self.registry.register(self._scraped)

    def read_at_scrape(self, name: MetricName, read: ReadGauge) -> None:
        """Let `read`, which must not block, read a gauge of `SCRAPED` at each scrape."""
        self._scraped.readers[name] = read

    def count_outcome(self, outcome: BatchResult, costs: CommitCosts) -> None:
        """Count a committed transaction."""
        counts = outcome.counts
        for name, number in (
            ("applied", counts.applied),
            ("duplicate", counts.duplicate),
            ("rejected", counts.rejected + counts.fenced_beats),
            ("tick", counts.ticks),
        ):
            self.records.labels(name).inc(number)
        self.batches.inc()
        self.batch_records.observe(counts.records)
        self.transaction_bytes.observe(costs.written_bytes)
        self.changelog_bytes.inc(costs.changelog_bytes)
        self.commit_s.observe(costs.elapsed_s)
        self.work_s.inc(costs.work_s)
        if outcome.rejections:
            self._count_rejections(Tally(outcome.rejections))
        if outcome.outages:
            self.outages.inc(outcome.outages)
        if counts.timers:
            self._count_timers(outcome, costs.acknowledged_ms)
        if counts.audited:
            self._count_transitions(outcome)
            self.compliance_s.inc(self._compliance_timer.add_outcome(outcome))

    def _count_rejections(self, rejections: "Tally[str]") -> None:
        for reason, number in rejections.items():
            self.rejected.labels(reason, str(reason in SECURITY_REASONS).lower()).inc(number)
        if failed := rejections["internal_error"]:
            self.errors.labels("judge").inc(failed)
        self.state_hash_mismatches.labels("agent").inc(rejections["hash_mismatch"])

    def _count_timers(self, outcome: BatchResult, acknowledged_ms: int) -> None:
        self.timers.inc(outcome.counts.timers)
        for lateness_ms in outcome.timer_lateness_ms:
            self.lateness_s.observe(lateness_ms / 1_000)
        for due_ms in outcome.timer_due_ms:
            self.wall_lateness_s.observe(max(0.0, (acknowledged_ms - due_ms) / 1_000))

    def _count_transitions(self, outcome: BatchResult) -> None:
        moved = [record for stream, _, record in outcome.emitted if stream == "audit" and record.transition is not None]
        for (before, after), number in Tally((record.from_state, record.to_state) for record in moved).items():
            self.transitions.labels(before, after).inc(number)
        self.state_hash_mismatches.labels("agent").inc(sum(names_wrong_hash(record.reason) for record in moved))

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format, UTF-8."""
        return generate_latest(self.registry)

    def _counter(self, name: MetricName, *labels: str) -> Counter:
        return Counter(name.removesuffix("_total"), HELP[name], labels, registry=self.registry)

    def _gauge(self, name: MetricName, *labels: str) -> Gauge:
        return Gauge(name, HELP[name], labels, registry=self.registry)

    def _histogram(self, name: MetricName, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, HELP[name], buckets=buckets, registry=self.registry)
