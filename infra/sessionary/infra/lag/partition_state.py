"""Judges one partition of a group by its last observations; pure.

The rules are those of LinkedIn's Burrow, in its order, over a sliding window:

1. Lag of at most `lag_max`: `ok`.
2. The group has no members, and was not at the end of the log within the window: `stop`.
3. At the end of the log at any time in the window: `ok`.
4. The committed offset went back: `rewind`.
5. It did not change: `stall`.
6. It changed, but the lag never fell: `warn`.
7. Otherwise `ok`.

Burrow reads each commit from Kafka's internal topic, and takes a group that no longer commits as
stopped. Here only the committed offset is known, and a commit that repeats it does not show. So a
group without members has stopped, and one with members whose offset does not move stalls. And
until the window is filled, rules 3 to 7 give `observing`: Burrow says `ok`.
"""

from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple


class PartitionState(StrEnum):
    """What is to be said of one partition of a group; the worse comes later."""

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
