"""Compares open partitions with their logs, every few seconds.

A partition is stuck if its log grows and its position does not move. It is opened again. If that
does not help, the process gives up.

A log that was cut below the position holds, or will hold, records that are never folded. Its
partition is halted; so are all partitions of a topic that was deleted and made again.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from sessionary.schemas.kafka.log_progress import LogEnd
from sessionary.schemas.records import Position
from sessionary.schemas.telemetry.role_logs import role_logger
from sessionary.schemas.topics import TopicNames
from sessionary.stream_processors.metrics import Metrics
from sessionary.stream_processors.runtime.assignment import Assignment
from sessionary.stream_processors.runtime.log_identity import TopicIds
from sessionary.stream_processors.runtime.log_probe import LogProbe, log_truncated

_log = role_logger(__name__)


class StuckLimits(NamedTuple):
    """For how long the position of an open partition may rest while its log grows, in seconds."""

    reopen_s: float  # then it is opened again
    give_up_s: float  # and then, at the same position, the process ends


class _Progress(NamedTuple):
    """A partition when its position last moved."""

    position: int
    log_end: int
    since_s: float  # when that was, monotonic
    checked_s: float  # when it was last checked, monotonic


class StuckPartitionWatchdog:
    """Opens a stuck partition again; calls `give_up` if that does not help."""

    def __init__(
        self,
        assignment: Assignment,
        metrics: Metrics,
        limits: StuckLimits,
        give_up: Callable[[str], None],
        fetched_to: Callable[[int], int | None],
    ) -> None:
        """`fetched_to` returns up to which offset a partition was fetched, for the log's line."""
        self._assignment = assignment
        self._metrics = metrics
        self._limits = limits
        self._give_up = give_up
        self._fetched_to = fetched_to
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
                position = owner.position.next_offset
                if position == seen.position and self._is_stuck(partition, seen, end, now_s):
                    suspects[partition] = position
        return suspects

    def _is_stuck(self, partition: int, seen: _Progress, end: int, now_s: float) -> bool:
        reopened = self._reopened_at.get(partition) == seen.position
        limit_s = self._limits.give_up_s if reopened else self._limits.reopen_s
        return end > seen.log_end and now_s - seen.since_s >= limit_s

    def check_progress(self, log_ends: Mapping[int, int], now_s: float) -> None:
        """Check every open partition whose log's end is known; `now_s` is monotonic."""
        for partition, end in log_ends.items():
            owner, seen = self._assignment.owners.get(partition), self._progress.get(partition)
            # Time without an answer of the log, or with the partition not open, does not count.
            if owner is None or not owner.is_open:
                self._progress.pop(partition, None)
                continue
            position, unanswered_s = owner.position.next_offset, self._limits.reopen_s
            if seen is None or now_s - seen.checked_s >= unanswered_s or seen.position != position or position >= end:
                self._progress[partition] = _Progress(position, end, now_s, now_s)
            elif self._is_stuck(partition, seen, end, now_s):
                self._progress[partition] = _Progress(position, end, now_s, now_s)
                self._reopen_or_give_up(partition, position)
            else:
                self._progress[partition] = seen._replace(checked_s=now_s)

    def _reopen_or_give_up(self, partition: int, position: int) -> None:
        self._metrics.errors.labels("stuck").inc()
        if self._reopened_at.get(partition) == position:
            self._give_up(f"partition {partition} stays at {position} although its log grows")
            return
        _log.error(
            "partition %(partition)d stays at %(offset)d although its log grows, and is opened again",
            partition=partition,
            offset=position,
            fetched_to=self._fetched_to(partition),
        )
        self._reopened_at[partition] = position
        self._assignment.reopen_partition(partition, self._assignment.owners[partition].decision_left)


def halt_replaced(assignment: Assignment, topic_ids: TopicIds, topics: TopicNames) -> None:
    """Halt the open partitions that opened other topics than those of `topic_ids`, asked for now.

    The next opening finds the same: the position names the topics of which it is.
    """
    for partition, owner in list(assignment.owners.items()):
        position = owner.topic_ids.complete(owner.position)
        if owner.is_open and (fault := topic_ids.find_replaced(partition, position, topics)) is not None:
            assignment.halt_partition(partition, fault)


class _Confirmed(NamedTuple):
    """A place of the log at which position and leader epoch were known at the same time."""

    next_offset: int
    leader_epoch: int | None


class TruncationWatchdog:
    """Halts an open partition with `log_truncated` if its log was cut below its position."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._confirmed: dict[int, _Confirmed] = {}
        self._below: dict[int, int] = {}  # by partition: the log's end, while it is below the position by each answer

    def check_ends(self, positions: Mapping[int, Position], log_ends: Mapping[int, LogEnd]) -> list[int]:
        """Halt partitions whose log ended below their position, by two answers in a row.

        `positions`: of the open partitions, read before the ends were asked for. Otherwise an end
        could be older than what was folded since. Return the partitions that have another leader
        than before: `check_log` must look closer, because their log may have been cut, and have
        grown past the position since.
        """
        for partition in (self._confirmed.keys() | self._below) - positions.keys():
            self._confirmed.pop(partition, None)
            self._below.pop(partition, None)
        suspects: list[int] = []
        for partition, end in log_ends.items():
            if (position := positions.get(partition)) is None:
                continue
            next_offset, known = position.next_offset, self._confirmed.get(partition)
            if end.offset < next_offset:
                # A broker answers no end below its epoch's beginning (KIP-207), so a new leader
                # that lags should not come here. Asking twice costs only a few seconds.
                if (former := self._below.get(partition)) is not None:
                    lost_from = min(former, end.offset)
                    fault = log_truncated(partition, next_offset, f"the log ends at {end.offset}", lost_from)
                    self._assignment.halt_partition(partition, fault)
                self._below[partition] = min(end.offset, former if former is not None else end.offset)
                continue
            self._below.pop(partition, None)
            if known is not None and known.leader_epoch != end.leader_epoch:
                suspects.append(partition)
            else:
                self._confirmed[partition] = _Confirmed(next_offset, end.leader_epoch)
        return suspects

    def check_log(self, partition: int, position: Position, log: LogProbe) -> None:
        """Halt a partition if `log`, asked for at `position`, lacks records that were folded."""
        known = self._confirmed.pop(partition, None)
        rested = known is not None and known.next_offset == position.next_offset
        fault = log.find_truncation(partition, position, known.leader_epoch if known and rested else None)
        if fault is not None:
            self._assignment.halt_partition(partition, fault)
