"""Decides when a sink's consumer is replaced: it stands still although its log answers others.

A client of librdkafka may lose its last broker for ever. It then reads nothing more, and after its
session time-out it has no partitions either.
"""

from collections.abc import Mapping
from typing import Final

from sessionary.schemas.log_progress import LogProgress
from sessionary.sinks.runtime.log_watch import ASK_EVERY_S, LogAnswer

RENEW_S: Final = 10.0
_TIMELY_S: Final = 3 * ASK_EVERY_S


class StuckConsumerDetector:
    """Watches one consumer. One thread calls it; `now_s` is always monotonic."""

    def __init__(self) -> None:
        self._progress = LogProgress()
        self._seen = 0
        self._seen_s: float | None = None
        self._drained = False
        self._brokers_down = False
        self._unreachable_s: float | None = None

    def note_fetch(self, *, drained: bool) -> None:
        """Note that the loop took what had arrived; `drained`: all of it."""
        self._drained = self._drained or drained

    def note_life(self) -> None:
        """Note that the consumer has delivered a record, a partition's end or an assignment."""
        self._brokers_down = False

    def note_brokers_down(self) -> None:
        """Note that the consumer has lost its connections to all brokers."""
        self._brokers_down = True

    def find_fault(
        self, answer: LogAnswer, next_offsets: Mapping[int, int], now_s: float, *, is_paused: bool
    ) -> str | None:
        """Return why the consumer is to be replaced, or None; call it in each turn of the loop.

        `next_offsets`: of each assigned partition, the next one to be read. `is_paused`: nothing is
        fetched on purpose.
        """
        if answer.number == self._seen:
            return None
        # While the loop was busy, or left something unread, the consumer is not to blame.
        timely = self._seen_s is not None and now_s - self._seen_s < _TIMELY_S
        watched = timely and self._drained and not is_paused
        self._seen, self._seen_s, self._drained = answer.number, now_s, False
        self._progress.observe(next_offsets if watched else {}, answer.ends, now_s)
        # Without partitions only a lost connection shows. A sink that has none rightly, because
        # others own them all, is replaced once after an outage, too.
        if not (timely and answer.ends and self._brokers_down and not next_offsets):
            self._unreachable_s = None
        elif self._unreachable_s is None:
            self._unreachable_s = now_s
        if stalled := self._progress.stalled_partitions(now_s, RENEW_S):
            return ", ".join(f"partition {partition} {one}" for partition, one in stalled.items())
        if self._unreachable_s is not None and now_s - self._unreachable_s >= RENEW_S:
            return "it has lost its brokers and its partitions"
        return None


__all__ = ["RENEW_S", "StuckConsumerDetector"]
