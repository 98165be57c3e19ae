"""Turns samples into lags, rates and states; pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import groupby, pairwise
from typing import NamedTuple

from sessionary.schemas.topics import SINK_TOPICS, TopicNames

# Kafka's report on groups, logs and unread records at one time; pure.


class LogPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


class UnreadPosition(NamedTuple):
    """The position at which a group continues to read a partition."""

    place: LogPartition
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
    """Kafka's report on a group."""

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

    `topics`: the topics that the group reads, with or without committed offsets. `committed` is
    None if Kafka did not report the offsets.
    """

    group: str
    state: GroupState
    topics: frozenset[str]
    committed: Mapping[LogPartition, int] | None

    def position_in(self, place: LogPartition, log: LogRange) -> int:
        """Return the offset at which the group continues; the log's start without a commit."""
        return max(log.start, (self.committed or {}).get(place, log.start))


class ClusterSample(NamedTuple):
    """The state of a cluster at `at_s`, seconds since the epoch.

    `partition_counts` has the topics that exist. `logs` lacks the partitions whose leader did not
    answer, and `first_records` the places that were not read in time.
    """

    at_s: float
    groups: tuple[GroupOffsets, ...]
    partition_counts: Mapping[str, int]
    logs: Mapping[LogPartition, LogRange]
    first_records: Mapping[UnreadPosition, FirstRecord]

    def unread_positions(self) -> set[UnreadPosition]:
        """Return where groups continue to read, if the log does not end there."""
        return {
            UnreadPosition(place, position)
            for group in self.groups
            if group.committed is not None
            for topic in group.topics
            for partition in range(self.partition_counts.get(topic, 0))
            if (log := self.logs.get(place := LogPartition(topic, partition))) is not None
            and (position := group.position_in(place, log)) < log.end
        }


# Which groups belong to a pipeline, and which topics they read; pure.


def topic_of_group(prefix: str, group: str) -> str | None:
    """Return the topic that a group of the pipeline `prefix` reads; None for any other group."""
    names = TopicNames.with_prefix(prefix)
    if group == f"{prefix}.processor":
        return names.events
    if group == f"{prefix}.quotas":
        return names.quotas
    if group.startswith(f"{prefix}.cleanup."):
        return names.cleanup
    if group.startswith(f"{prefix}.task-workers."):
        return names.tasks
    if group.startswith(f"{prefix}.migration."):
        return names.migrations
    if group.startswith(start := f"{prefix}.sink."):
        kind = group.removeprefix(start).partition(".")[0]  # an extra pipeline's name follows
        return getattr(names, SINK_TOPICS[kind]) if kind in SINK_TOPICS else None
    return None


def is_sink_group(group: str, topic: str) -> bool:
    """Return whether a group that reads a topic of its pipeline is a sink's."""
    return group.startswith(f"{topic.rpartition('.')[0]}.sink.")


def is_service_group(prefix: str, group: str) -> bool:
    """Return whether a group is a service's: clients that answer requests, or task workers.

    Such a group has no members while the service is off, which is no fault of the pipeline.
    """
    return group.startswith((f"{prefix}.cleanup.", f"{prefix}.task-workers.", f"{prefix}.migration."))


def pipeline_groups(prefix: str, known: Iterable[str]) -> Mapping[str, str]:
    """Return `{group: topic}`: the groups that a pipeline must have, then its others in `known`.

    `known`: the groups that Kafka has. The groups of extra pipelines and of services are found only
    there.
    """
    needed = (f"{prefix}.processor", *(f"{prefix}.sink.{kind}" for kind in SINK_TOPICS))
    topics = ((group, topic_of_group(prefix, group)) for group in (*needed, *sorted(known)))
    return {group: topic for group, topic in topics if topic is not None}


# Judges one partition of a group by its last observations; pure.
#
# The rules are those of LinkedIn's Burrow, in its order, over a sliding window:
#
# 1. Lag of at most `lag_max`: `ok`. 2. The group has no members, and was not at the end of the log
# within the window: `stop`. 3. At the end of the log at any time in the window: `ok`. 4. The
# committed offset went back: `rewind`. 5. It did not change: `stall`. 6. It changed, but the lag
# never fell: `warn`. 7. Otherwise `ok`.
#
# Burrow reads each commit from Kafka's internal topic, and takes a group that no longer commits as
# stopped. Here only the committed offset is known, and a commit that repeats it does not show. So
# a group without members has stopped, and one with members whose offset does not move stalls. And
# until the window is filled, rules 3 to 7 give `observing`: Burrow says `ok`.


class PartitionState(StrEnum):
    """The verdict on one partition of a group; worse ones come later."""

    OK = "ok"
    OBSERVING = "observing"  # it has a lag, and has not been observed long enough
    WARN = "warn"  # it moves, but its lag does not fall
    UNKNOWN = "unknown"  # Kafka did not answer for the group or for the partition
    REWIND = "rewind"  # its committed offset went back
    STALL = "stall"  # it has members, and does not move
    STOP = "stop"  # it has no members
    LOG_TRUNCATED = "log_truncated"  # the log ends before the committed offset
    LOG_GAP = "log_gap"  # records were deleted before they were read
    NO_TOPIC = "no_topic"  # the topic does not exist

    @property
    def severity(self) -> int:
        """A number that is larger for a worse state."""
        return tuple(PartitionState).index(self)


class Observation(NamedTuple):
    """One partition of a group at one time."""

    at_s: float  # of any clock that is the same for all observations
    committed: int | None  # None: the group has committed no offset
    log_end: int
    lag: int


def judge_partition(
    observations: Sequence[Observation],
    *,
    window_s: float,
    has_members: bool,
    lag_s: float | None = None,
    lag_max: int = 0,
) -> PartitionState:
    """Return the state of a partition by its observations, at least one, the newest last.

    Older ones than the window are ignored, but for the youngest of them. `lag_s`: the age of the
    oldest record that is not read; None if it is unknown.
    """
    now_s, _, _, lag = observations[-1]
    if lag <= lag_max:
        return PartitionState.OK
    begun = max((one.at_s for one in observations if now_s - one.at_s >= window_s), default=None)
    window = [one for one in observations if begun is None or one.at_s >= begun]
    at_end = any(one.lag <= lag_max for one in window)
    # The oldest unread record arrived within the window: before it there was nothing to read.
    if not has_members and not at_end and (begun is not None if lag_s is None else lag_s >= window_s):
        return PartitionState.STOP
    if at_end:
        return PartitionState.OK
    if begun is None:
        return PartitionState.OBSERVING
    offsets = [one.committed for one in window]
    if any(_goes_back(former, later) for former, later in pairwise(offsets)):
        return PartitionState.REWIND
    if len(set(offsets)) == 1:
        return PartitionState.STALL
    if all(later.lag >= former.lag for former, later in pairwise(window)):
        return PartitionState.WARN
    return PartitionState.OK


def _goes_back(former: int | None, later: int | None) -> bool:
    """Return whether a commit was lost: a lower offset, or none where one was."""
    return former is not None and (later is None or later < former)


WINDOW_S = 60.0
_OBSERVATIONS_PER_WINDOW = 12
_RATE_S_MIN = 1.0


class PartitionLag(NamedTuple):
    """The lag of a group in one partition. None: unknown, or there is no such value.

    `partition` is None if the topic does not exist. `lag` counts offsets from the committed one to
    the log's end, transaction markers in between included; it is 0 if no record lies there.
    `lag_s` is the age of the oldest record that is not committed, 0 without a lag. If a sink lets
    that record wait (an idle one), its age counts from the end of the wait.
    `records_per_s` is the rate at which the committed offset moves, and `catch_up_s` the time until
    the lag is gone at this rate and the log's; None if it does not shrink.
    """

    group: str
    group_state: GroupState
    topic: str
    partition: int | None
    state: PartitionState
    committed: int | None = None
    log_start: int | None = None
    log_end: int | None = None
    lag: int | None = None
    lag_s: float | None = None
    newest_record_age_s: float | None = None
    records_per_s: float | None = None
    catch_up_s: float | None = None


class LagTracker:
    """Remembers one window of observations of each partition that the last sample had."""

    def __init__(self, window_s: float = WINDOW_S, idle_s: float = 0.0) -> None:
        """`idle_s`: for how long the sinks let idle records wait."""
        self._window_s = window_s
        self._idle_s = idle_s
        self._step_s = window_s / _OBSERVATIONS_PER_WINDOW
        self._seen: dict[tuple[str, LogPartition], list[Observation]] = {}

    def track_sample(self, sample: ClusterSample) -> list[PartitionLag]:
        """Return the lag of each partition of each group, in order; samples come in their order."""
        former, self._seen = self._seen, {}
        return [
            lag
            for group in sample.groups
            for topic in sorted(group.topics)
            for lag in self._track_topic(sample, group, topic, former)
        ]

    def _track_topic(
        self,
        sample: ClusterSample,
        group: GroupOffsets,
        topic: str,
        former: dict[tuple[str, LogPartition], list[Observation]],
    ) -> Iterator[PartitionLag]:
        name, state = group.group, group.state
        if topic not in sample.partition_counts:
            yield PartitionLag(name, state, topic, None, PartitionState.NO_TOPIC)
            return
        for partition in range(sample.partition_counts[topic]):
            place = LogPartition(topic, partition)
            log = sample.logs.get(place)
            if log is None or group.committed is None:
                yield PartitionLag(name, state, topic, partition, PartitionState.UNKNOWN)
            else:
                seen = former.get((name, place), [])
                yield self._track_partition(sample, group, place, log, seen)

    def _track_partition(
        self, sample: ClusterSample, group: GroupOffsets, place: LogPartition, log: LogRange, seen: list[Observation]
    ) -> PartitionLag:
        committed = (group.committed or {}).get(place)
        lag, lag_s = _measure_lag(sample, group, place, log)
        is_waiting = False
        if lag_s is not None and _lets_wait(sample, group, place, log):
            # Within its wait, the sink is where it should be: as good as at the log's end.
            is_waiting, lag_s = lag_s <= self._idle_s, max(0.0, lag_s - self._idle_s)
        now = Observation(sample.at_s, committed, log.end, 0 if is_waiting else lag)
        self._seen[group.group, place] = kept = self._keep_window(seen, now)
        if committed is not None and committed > log.end:
            state = PartitionState.LOG_TRUNCATED
        elif committed is not None and committed < log.start:
            state = PartitionState.LOG_GAP
        else:
            state = judge_partition(
                [*kept, now],
                window_s=self._window_s,
                has_members=not group.state.is_memberless,
                lag_s=lag_s,
            )
        rate, catch_up_s = estimate_rates(kept[0], now)
        return PartitionLag(
            group.group,
            group.state,
            place.topic,
            place.partition,
            state,
            committed,
            log.start,
            log.end,
            lag,
            lag_s,
            _age_s(sample, log.newest_ms),
            rate,
            catch_up_s,
        )

    def _keep_window(self, seen: list[Observation], now: Observation) -> list[Observation]:
        """Return the observations to remember: some per window, and one that is older."""
        if not seen or now.at_s - seen[-1].at_s >= self._step_s:
            seen = [*seen, now]
        while len(seen) > 1 and now.at_s - seen[1].at_s >= self._window_s:
            seen = seen[1:]
        return seen


def _measure_lag(
    sample: ClusterSample, group: GroupOffsets, place: LogPartition, log: LogRange
) -> tuple[int, float | None]:
    """Return the lag in offsets and in seconds; None if the record's time is unknown."""
    position = group.position_in(place, log)
    first = sample.first_records.get(UnreadPosition(place, position))
    if position >= log.end or (first is not None and first.timestamp_ms is None):
        return 0, 0.0
    committed = (group.committed or {}).get(place, log.start)
    return log.end - committed, None if first is None else _age_s(sample, first.timestamp_ms)


def _lets_wait(sample: ClusterSample, group: GroupOffsets, place: LogPartition, log: LogRange) -> bool:
    """Return whether the oldest unread record is one that the group's sink lets wait."""
    first = sample.first_records.get(UnreadPosition(place, group.position_in(place, log)))
    is_reading = is_sink_group(group.group, place.topic) and not group.state.is_memberless
    return is_reading and first is not None and first.is_idle


def _age_s(sample: ClusterSample, timestamp_ms: int | None) -> float | None:
    # The broker's clock may be ahead of this machine's.
    return None if timestamp_ms is None else max(0.0, sample.at_s - timestamp_ms / 1_000)


def estimate_rates(former: Observation, now: Observation) -> tuple[float | None, float | None]:
    """Return the offsets committed per second between two observations, and the time to catch up.

    The time is 0 without a lag, and None if the lag does not shrink.
    """
    span_s = now.at_s - former.at_s
    rate = None
    if span_s >= _RATE_S_MIN and former.committed is not None and now.committed is not None:
        rate = max(0.0, (now.committed - former.committed) / span_s)
    if now.lag == 0:
        return rate, 0.0
    shrinking = 0.0 if rate is None else rate - (now.log_end - former.log_end) / span_s
    return rate, now.lag / shrinking if shrinking > 0 else None


# The lag of a whole group, and whether it is a fault; pure.


_FAULTS = {
    PartitionState.NO_TOPIC: "its topic does not exist",
    PartitionState.UNKNOWN: "Kafka does not return its offsets, or the ends of its logs",
    PartitionState.LOG_GAP: "records were deleted before it read them",
    PartitionState.LOG_TRUNCATED: "a log ends before the offset that it has committed",
}


class GroupLag(NamedTuple):
    """Sums and maxima over a group's partitions of a topic, and the worst state.

    A figure that no partition has is None, and so is `catch_up_s` if one partition never does.
    """

    group: str
    group_state: GroupState
    partitions: int
    state: PartitionState
    lag: int | None
    lag_s: float | None
    records_per_s: float | None
    catch_up_s: float | None
    newest_record_age_s: float | None
    topic: str


def sum_groups(lags: Iterable[PartitionLag]) -> Iterator[GroupLag]:
    """Yield a row per group and topic; `lags` are in the order in which a tracker gives them."""
    for (group, topic), found in groupby(lags, lambda lag: (lag.group, lag.topic)):
        part = list(found)
        known = [lag.lag for lag in part if lag.lag is not None]
        rates = [lag.records_per_s for lag in part if lag.records_per_s is not None]
        waits = [lag.catch_up_s for lag in part if lag.lag]
        never = not known or None in waits
        yield GroupLag(
            group,
            part[0].group_state,
            sum(lag.partition is not None for lag in part),
            max((lag.state for lag in part), key=lambda state: state.severity),
            sum(known) if known else None,
            max((lag.lag_s for lag in part if lag.lag_s is not None), default=None),
            sum(rates) if rates else None,
            None if never else max((wait_s for wait_s in waits if wait_s is not None), default=0.0),
            min((lag.newest_record_age_s for lag in part if lag.newest_record_age_s is not None), default=None),
            topic,
        )


def find_fault(lag: GroupLag, lag_s_max: float) -> str | None:
    """Return the fault of a group, or None.

    A lag is a fault if its oldest record is older than `lag_s_max`, and the group has no members or
    makes no progress. A group that catches up is well, whatever its lag.
    """
    if lag.state in _FAULTS:
        return _FAULTS[lag.state]
    if not lag.lag or lag.lag_s is None or lag.lag_s <= lag_s_max:
        return None
    behind = f"{lag.lag} records behind, the oldest of {lag.lag_s:.0f} s ago"
    if lag.group_state.is_memberless:
        return f"{behind}, and no member reads them"
    if lag.state is PartitionState.STALL:
        return f"{behind}, and it does not move"
    if lag.state is PartitionState.REWIND:
        return f"{behind}, and its committed offset went back"
    return f"{behind}, and the lag does not shrink" if lag.state is PartitionState.WARN else None
