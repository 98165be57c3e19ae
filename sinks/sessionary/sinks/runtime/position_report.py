"""Reports once a second where a sink's partitions stand: to its metrics, and to the log watch."""

from collections.abc import Callable, Mapping
from typing import Final

from sessionary.sinks.core.intent import PartitionPlan
from sessionary.sinks.metrics import SinkMetrics
from sessionary.sinks.runtime.host_clock import HostClock
from sessionary.sinks.runtime.log_watch import LogWatch

_REPORT_S: Final = 1.0


class PositionReport:
    """Landed offset and lag of each partition. Not thread-safe."""

    def __init__(self, metrics: SinkMetrics, log_watch: LogWatch, clock: HostClock) -> None:
        self._metrics = metrics
        self._log_watch = log_watch
        self._clock = clock
        self._report_at_s = 0.0
        self._behind_since_s: dict[int, float] = {}  # of partitions whose oldest record is unknown

    def report_positions(
        self,
        plans: Mapping[int, PartitionPlan],
        high_watermark: Callable[[int], int],
        is_blocked: Callable[[int], bool],
        *,
        has_plans: bool,
        now: bool = False,
    ) -> None:
        """Report if a second has passed since the last time, or `now`.

        `high_watermark` returns the end of a partition's log as far as the consumer knows. A
        partition that `is_blocked` has a metric and an alert of its own; it does not make the sink
        unready. `has_plans`: whether each partition of an assignment has its plan.
        """
        at_s = self._clock.monotonic_s()
        if at_s < self._report_at_s and not now:
            return
        self._report_at_s = at_s + _REPORT_S
        positions: dict[int, int] = {}
        for partition, plan in plans.items():
            self._report_lag(partition, plan, high_watermark(partition))
            if not is_blocked(partition):
                # What waits on purpose is no standstill: then reading shows progress.
                is_even = _all_landed(plan) or plan.holds_idle_only
                positions[partition] = plan.next_offset if is_even else plan.landed or 0
        self._log_watch.report_landed(positions if has_plans else None)

    def forget_partition(self, partition: int) -> None:
        """Remove the metrics of a partition that has left, or of which no more is known."""
        self._behind_since_s.pop(partition, None)
        self._metrics.drop_partition(partition)

    def _report_lag(self, partition: int, plan: PartitionPlan, high: int) -> None:
        landed = plan.landed or 0
        # The consumer learns of new records only while it fetches; the log watch asks also for a
        # partition that is paused.
        log_end = max(high, self._log_watch.answer.ends.get(partition, 0))
        if _all_landed(plan) and log_end <= plan.next_offset:
            lag = 0  # only transaction markers may follow
        elif log_end > 0:
            lag = max(log_end, plan.next_offset) - landed
        else:
            return  # how far the log goes is not known yet
        self._metrics.report_position(partition, landed, lag, self._lag_seconds(partition, plan, lag))

    def _lag_seconds(self, partition: int, plan: PartitionPlan, lag: int) -> float:
        """Return the age of the oldest record that has not landed.

        If no record is held, because the partition cannot be read, it is at least as old as the
        first sight of the lag.
        """
        behind_ms = plan.behind_since_ms
        if lag > 0 and behind_ms is None:
            at_s = self._clock.monotonic_s()
            return at_s - self._behind_since_s.setdefault(partition, at_s)
        self._behind_since_s.pop(partition, None)
        return 0.0 if lag == 0 or behind_ms is None else max(0.0, self._clock.wall_ms() - behind_ms) / 1_000


def _all_landed(plan: PartitionPlan) -> bool:
    """Whether all that was read has landed, up to the log's end."""
    return plan.at_end and plan.in_flight is None and not plan.waiting_records
