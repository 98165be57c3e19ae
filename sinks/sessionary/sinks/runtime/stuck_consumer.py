"""Decides when a sink's consumer is replaced: it stands still although its log answers others.

A client of librdkafka may lose its last broker for ever, without a sign. It then reads nothing
more; after its session time-out it has no partitions either. And its request to join the group
waits for minutes for the answer of a coordinator that has fallen silent.
"""

from collections.abc import Callable, Mapping
from typing import Final

from sessionary.schemas.kafka.log_progress import LogProgress
from sessionary.sinks.runtime.log_watch import ASK_EVERY_S, LogAnswer

RENEW_S: Final = 10.0
JOIN_S: Final = 20.0  # longer than a group takes to notice that a member is gone
_TIMELY_S: Final = 3 * ASK_EVERY_S


class StuckConsumerDetector:
    """Watches one consumer. One thread calls it; `now_s` is always monotonic."""

    def __init__(self) -> None:
        self._progress = LogProgress()
        self._seen = 0
        self._seen_s: float | None = None
        self._drained = False
        self._unassigned_s: float | None = None
        self._unreachable_s: float | None = None

    def note_fetch(self, *, drained: bool) -> None:
        """Note that the loop took what had arrived; `drained`: all of it."""
        self._drained = self._drained or drained

    def find_fault(
        self,
        answer: LogAnswer,
        next_offsets: Mapping[int, int] | None,
        now_s: float,
        *,
        is_paused: bool,
        reaches_broker: Callable[[], bool],
    ) -> str | None:
        """Return why the consumer is to be replaced, or None; call it in each turn of the loop.

        `next_offsets`: of each assigned partition, the next one to be read; None without an
        assignment. `is_paused`: nothing is fetched on purpose. `reaches_broker` asks the consumer
        itself; it is called only if the consumer has no partition by which that would show.
        """
        if answer.number == self._seen:
            return None
        # While the loop was busy, or left something unread, the consumer is not to blame.
        timely = self._seen_s is not None and now_s - self._seen_s < _TIMELY_S
        watched = timely and self._drained and not is_paused
        self._seen, self._seen_s, self._drained = answer.number, now_s, False
        self._progress.observe(next_offsets or {} if watched else {}, answer.ends, now_s)
        if stalled := self._progress.stalled_partitions(now_s, RENEW_S):
            return ", ".join(f"partition {partition} {one}" for partition, one in stalled.items())
        if not (timely and answer.ends) or next_offsets:
            self._unassigned_s = self._unreachable_s = None
        elif next_offsets is None:
            self._unassigned_s = self._unassigned_s or now_s
            if now_s - self._unassigned_s >= JOIN_S:
                return f"its group has given no assignment for {now_s - self._unassigned_s:.0f} s"
        elif reaches_broker():
            self._unreachable_s = None
        else:
            self._unreachable_s = self._unreachable_s or now_s
            if now_s - self._unreachable_s >= RENEW_S:
                return f"it has reached no broker for {now_s - self._unreachable_s:.0f} s"
        return None


__all__ = ["JOIN_S", "RENEW_S", "StuckConsumerDetector"]
