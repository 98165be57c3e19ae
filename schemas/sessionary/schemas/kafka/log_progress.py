"""Tells which partitions of a log stand still, by two observations of it; pure."""

from collections.abc import Mapping
from typing import NamedTuple


class StalledPartition(NamedTuple):
    """A partition whose reader stands still although its log goes on."""

    position: int  # the next offset that the reader is to pass
    log_end: int  # the offset that the log's next record will have
    stalled_s: float  # for how long, at least

    def __str__(self) -> str:
        return f"at offset {self.position} for {self.stalled_s:.0f} s, the log ends at {self.log_end}"


class _Behind(NamedTuple):
    position: int
    log_end: int
    since_s: float


class LogProgress:
    """The progress of one reader through the partitions of one topic.

    A partition is behind while its log ends beyond its position. It stands still from the first
    observation at that position on. Only time with answers counts: a partition that an observation
    leaves out starts again. One thread observes; any thread may ask.
    """

    def __init__(self) -> None:
        self._behind: dict[int, _Behind] = {}

    def observe(self, positions: Mapping[int, int], log_ends: Mapping[int, int], now_s: float) -> None:
        """Take the positions of the partitions that should move, and the ends of those that answer.

        `now_s` is monotonic.
        """
        behind: dict[int, _Behind] = {}
        for partition, position in positions.items():
            end, seen = log_ends.get(partition), self._behind.get(partition)
            if end is not None and position < end:
                still = seen is not None and seen.position == position
                behind[partition] = _Behind(position, end, seen.since_s if seen is not None and still else now_s)
        self._behind = behind

    def stalled_partitions(self, now_s: float, limit_s: float) -> dict[int, StalledPartition]:
        """Return the partitions that have stood still for `limit_s`, by number."""
        return {
            partition: StalledPartition(position, log_end, now_s - since_s)
            for partition, (position, log_end, since_s) in sorted(self._behind.items())
            if now_s - since_s >= limit_s
        }


__all__ = ["LogProgress", "StalledPartition"]
