"""The lag of a whole group, and whether it is a fault; pure."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from sessionary.infra.lag.cluster_sample import GroupState
from sessionary.infra.lag.lag_tracker import PartitionLag
from sessionary.infra.lag.partition_state import PartitionState

_FAULTS = {
    PartitionState.NO_TOPIC: "its topic does not exist",
    PartitionState.UNKNOWN: "Kafka does not tell its offsets, or the ends of its logs",
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
    """Return what is wrong with a group, or None.

    A lag is a fault if its oldest record is older than `lag_s_max`, and the group has no members or
    does not get on. A group that catches up is well, however far it is behind.
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
