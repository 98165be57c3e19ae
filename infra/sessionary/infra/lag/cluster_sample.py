"""What Kafka says about groups, logs and unread records at one time; pure."""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple


class Place(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


class UnreadPlace(NamedTuple):
    """Where a group goes on reading a partition."""

    place: Place
    offset: int


class LogRange(NamedTuple):
    """The log of a partition, as a reader of committed records sees it.

    A record of an open transaction, and all after it, lie beyond the end.
    """

    start: int  # the first offset that is kept
    end: int  # where the next record will be read
    newest_ms: int | None  # time of the newest record or marker; None: the log is empty


class FirstRecord(NamedTuple):
    """The first record at or after an offset.

    `timestamp_ms` is None if there is none: `offset` is where the log ends. `is_idle`: a sink may
    let it wait, see `sinks.core.idle_records`.
    """

    offset: int
    timestamp_ms: int | None
    is_idle: bool = False


class GroupState(StrEnum):
    """What Kafka says about a group."""

    STABLE = "stable"
    REBALANCING = "rebalancing"
    EMPTY = "empty"  # it has offsets, and no member
    ABSENT = "absent"  # Kafka does not know it
    UNKNOWN = "unknown"  # no answer

    @property
    def is_memberless(self) -> bool:
        """Whether Kafka says that the group has no member."""
        return self in (GroupState.EMPTY, GroupState.ABSENT)


class GroupOffsets(NamedTuple):
    """A group with its committed offsets.

    `topics`: those that it reads, whether or not it has committed any offset. `committed` is None
    if Kafka did not tell the offsets.
    """

    group: str
    state: GroupState
    topics: frozenset[str]
    committed: Mapping[Place, int] | None

    def position_in(self, place: Place, log: LogRange) -> int:
        """Return the offset from which the group reads on; the log's start without a commit."""
        return max(log.start, (self.committed or {}).get(place, log.start))


class ClusterSample(NamedTuple):
    """All that is known at `at_s`, seconds since the epoch.

    `partition_counts` has the topics that exist. `logs` lacks the partitions whose leader did not
    answer, and `first_records` the places that were not read in time.
    """

    at_s: float
    groups: tuple[GroupOffsets, ...]
    partition_counts: Mapping[str, int]
    logs: Mapping[Place, LogRange]
    first_records: Mapping[UnreadPlace, FirstRecord]

    def unread_places(self) -> set[UnreadPlace]:
        """Return where groups go on reading, if the log does not end there."""
        return {
            UnreadPlace(place, position)
            for group in self.groups
            if group.committed is not None
            for topic in group.topics
            for partition in range(self.partition_counts.get(topic, 0))
            if (log := self.logs.get(place := Place(topic, partition))) is not None
            and (position := group.position_in(place, log)) < log.end
        }
