"""Asks for the ends of a sink's log, in a separate thread, and shows whether the sink keeps up.

The loop reports the landed offsets, and reads the answers. A loop that hangs reports nothing new,
and so is not ready either.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from confluent_kafka import KafkaException

from sessionary.schemas.kafka.log_progress import ASK_EVERY_S, LogAnswer, LogProgress
from sessionary.sinks.core.intent import PartitionPlan
from sessionary.sinks.metrics import SinkMetrics

# The host's clocks, as a port: tests pass in another clock.
#
# Not to be mixed up with a partition's clock, which is the log's time.


class HostClock(Protocol):
    """Returns the host's time."""

    def monotonic_s(self) -> float:
        """Return monotonic time in seconds."""
        ...

    def wall_ms(self) -> int:
        """Return milliseconds since the epoch."""
        ...


class SystemClock:
    """The operating system's clocks."""

    def monotonic_s(self) -> float:
        """Return monotonic time in seconds."""
        return time.monotonic()

    def wall_ms(self) -> int:
        """Return milliseconds since the epoch."""
        return time.time_ns() // 1_000_000


READY_S: Final = 15.0
_STOP_S: Final = 1.0


class LogWatch:
    """Watches the log of one sink."""

    def __init__(
        self,
        ask_ends: Callable[[], Mapping[int, int]],
        clock: HostClock,
        ask_topic_id: Callable[[], str | None] = lambda: None,
    ) -> None:
        """`ask_ends` returns the ends of the partitions that answer, `ask_topic_id` the topic's id.

        Both may block for seconds. `ask_topic_id` may raise `KafkaException`.
        """
        self._ask_ends = ask_ends
        self._ask_topic_id = ask_topic_id
        self._clock = clock
        self._landed: Mapping[int, int] | None = None
        self._progress = LogProgress()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log-watch", daemon=True)
        self.answer = LogAnswer(0, {})  # the last one; replaced, never changed
        self.topic_id: str | None = None  # by the last answer

    def start(self) -> None:
        """Start asking, every five seconds."""
        self._thread.start()

    def stop(self) -> None:
        """Stop asking. Waits for a second at most; a question under way ends by itself."""
        self._stop.set()
        self._thread.join(_STOP_S)

    def ask_once(self) -> None:
        """Ask now. Blocks."""
        with contextlib.suppress(KafkaException):  # it is asked again soon
            self.topic_id = self._ask_topic_id()
        ends = self._ask_ends()
        self._progress.observe(self._landed or {}, ends, self._clock.monotonic_s())
        self.answer = LogAnswer(self.answer.number + 1, ends)

    def report_landed(self, landed: Mapping[int, int] | None) -> None:
        """Report the offset of each assigned partition below which all is in ClickHouse.

        Partitions that are blocked by name are left out. None: the sink has no assignment of its
        group.
        """
        self._landed = landed

    def readiness(self) -> tuple[bool, str]:
        """Return whether the sink keeps up, and a line for people. Any thread may call it.

        A sink without an assignment does not keep up, nor does one with a partition that has stood
        still for 15 s although its log grows. A partition that is blocked by name does not count:
        it needs an operator, and the others continue.
        """
        if self._landed is None:
            return False, "the group has given no assignment"
        stalled = self._progress.stalled_partitions(self._clock.monotonic_s(), READY_S)
        if stalled:
            return False, "; ".join(f"partition {partition} stands {one}" for partition, one in stalled.items())
        return True, "ready"

    def _run(self) -> None:
        while not self._stop.wait(ASK_EVERY_S):
            self.ask_once()


# Reports once a second where a sink's partitions stand: to its metrics, and to the log watch.


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
        partition that `is_blocked` has a separate metric and alert; it does not make the sink
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
                # Records that wait on purpose are no standstill: then reading shows progress.
                is_even = _all_landed(plan) or plan.holds_idle_only
                positions[partition] = plan.next_offset if is_even else plan.landed or 0
        self._log_watch.report_landed(positions if has_plans else None)

    def forget_partition(self, partition: int) -> None:
        """Remove the metrics of a partition that has left, or whose position is unknown."""
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
