"""Finds partitions that are stuck: open, with a log that grows and a position that does not move.

A stuck partition is opened again. If that does not help, the process gives up.
"""

import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

from sessionary.stream_processors.metrics import Metrics
from sessionary.stream_processors.runtime.assignment import Assignment

_log = logging.getLogger(__name__)


class _Progress(NamedTuple):
    """A partition when its position last moved."""

    position: int
    log_end: int
    since_s: float  # when that was, monotonic
    checked_s: float  # when it was last checked, monotonic


class StuckPartitionWatchdog:
    """Opens a stuck partition again; calls `give_up` if it is stuck twice at the same position."""

    def __init__(
        self, assignment: Assignment, metrics: Metrics, stuck_s: float, give_up: Callable[[str], None]
    ) -> None:
        """`stuck_s`: for how long a position may rest while its log grows."""
        self._assignment = assignment
        self._metrics = metrics
        self._stuck_s = stuck_s
        self._give_up = give_up
        self._progress: dict[int, _Progress] = {}
        self._reopened_at: dict[int, int] = {}  # the position at which a partition was opened again

    def find_suspects(self, log_ends: Mapping[int, int], now_s: float) -> dict[int, int]:
        """Return the positions of partitions that `check_progress` would call stuck.

        The caller asks whether their logs hold a record to be fetched at all: behind the position
        may be records of aborted transactions only.
        """
        suspects: dict[int, int] = {}
        for partition, end in log_ends.items():
            owner, seen = self._assignment.owners.get(partition), self._progress.get(partition)
            if owner is not None and owner.is_open and seen is not None:
                position = owner.state.position.next_offset
                if position == seen.position and self._is_stuck(seen, end, now_s):
                    suspects[partition] = position
        return suspects

    def _is_stuck(self, seen: _Progress, end: int, now_s: float) -> bool:
        return end > seen.log_end and now_s - seen.since_s >= self._stuck_s

    def check_progress(self, log_ends: Mapping[int, int], now_s: float) -> None:
        """Check every open partition whose log's end is known; `now_s` is monotonic."""
        for partition, end in log_ends.items():
            owner, seen = self._assignment.owners.get(partition), self._progress.get(partition)
            if owner is None or not owner.is_open:
                continue
            position = owner.state.position.next_offset
            # Time without an answer of the log, or with the partition not open, does not count.
            if seen is None or now_s - seen.checked_s >= self._stuck_s or seen.position != position or position >= end:
                self._progress[partition] = _Progress(position, end, now_s, now_s)
            elif self._is_stuck(seen, end, now_s):
                self._progress[partition] = _Progress(position, end, now_s, now_s)
                self._reopen_or_give_up(partition, position)
            else:
                self._progress[partition] = seen._replace(checked_s=now_s)

    def _reopen_or_give_up(self, partition: int, position: int) -> None:
        self._metrics.errors.labels("stuck").inc()
        if self._reopened_at.get(partition) == position:
            self._give_up(f"partition {partition} stays at {position} although its log grows")
            return
        _log.error("partition %d stays at %d although its log grows; opened again", partition, position)
        self._reopened_at[partition] = position
        self._assignment.reopen_partition(partition)


__all__ = ["StuckPartitionWatchdog"]
