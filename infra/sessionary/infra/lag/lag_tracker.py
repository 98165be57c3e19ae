"""Turns samples into lags, rates and states; pure."""

from collections.abc import Iterator
from typing import NamedTuple

from sessionary.infra.lag.cluster_sample import ClusterSample, GroupOffsets, GroupState, LogRange, Place, UnreadPlace
from sessionary.infra.lag.group_topics import is_sink_group
from sessionary.infra.lag.partition_state import Observation, PartitionState, judge_partition

WINDOW_S = 60.0
_OBSERVATIONS_PER_WINDOW = 12
_RATE_S_MIN = 1.0


class PartitionLag(NamedTuple):
    """How far a group is behind in one partition. None: unknown, or there is no such thing.

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
        self._seen: dict[tuple[str, Place], list[Observation]] = {}

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
        former: dict[tuple[str, Place], list[Observation]],
    ) -> Iterator[PartitionLag]:
        name, state = group.group, group.state
        if topic not in sample.partition_counts:
            yield PartitionLag(name, state, topic, None, PartitionState.NO_TOPIC)
            return
        for partition in range(sample.partition_counts[topic]):
            place = Place(topic, partition)
            log = sample.logs.get(place)
            if log is None or group.committed is None:
                yield PartitionLag(name, state, topic, partition, PartitionState.UNKNOWN)
            else:
                seen = former.get((name, place), [])
                yield self._track_partition(sample, group, place, log, seen)

    def _track_partition(
        self, sample: ClusterSample, group: GroupOffsets, place: Place, log: LogRange, seen: list[Observation]
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


def _measure_lag(sample: ClusterSample, group: GroupOffsets, place: Place, log: LogRange) -> tuple[int, float | None]:
    """Return the lag in offsets and in seconds, None if the record's time is unknown."""
    position = group.position_in(place, log)
    first = sample.first_records.get(UnreadPlace(place, position))
    if position >= log.end or (first is not None and first.timestamp_ms is None):
        return 0, 0.0
    committed = (group.committed or {}).get(place, log.start)
    return log.end - committed, None if first is None else _age_s(sample, first.timestamp_ms)


def _lets_wait(sample: ClusterSample, group: GroupOffsets, place: Place, log: LogRange) -> bool:
    """Return whether the oldest unread record is one that the group's sink lets wait."""
    first = sample.first_records.get(UnreadPlace(place, group.position_in(place, log)))
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
