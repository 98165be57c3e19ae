"""The partition's clock: time is in the log.

The clock is the running maximum of the records' append times (`LogAppendTime`, ms); no other source
of time exists. After a hole, a stretch without any record while rows were live, no timer fires for
a while: clients that were cut off get the time to be heard. A timeout may be late, but never false.
By rules 2 the clocks of activity also start again at the hole's end, because an agent that could
not be heard may have worked.

If a broker's clock leapt, an operator may have a partition's clock repaired. It is set
to the broker's time, forward or back, and the records that were stamped before that move it no
more. All times in rows are then read as if the clock had stood still while it went forward, or had
never been ahead: so no limit ends early by what the clock made of the leap.
"""

from collections.abc import Sequence
from typing import Final, final

from sessionary.schemas.types import ClockRepair

NEVER_MS: Final = 253_402_300_799_000  # the end of the year 9999: later than any deadline
_REPAIRS_KEPT: Final = 8


@final
class Clock:
    """A partition's time: now, and until when it is quiet after a hole; ms of log time."""

    __slots__ = ("now_ms", "quiet_until_ms")

    def __init__(self, now_ms: int, quiet_until_ms: int = 0) -> None:
        self.now_ms = now_ms
        self.quiet_until_ms = quiet_until_ms

    @property
    def is_quiet(self) -> bool:
        """Whether no timer may fire yet."""
        return self.now_ms < self.quiet_until_ms

    def hole_end_ms(self, quiet_ms: int) -> int:
        """Return when the last hole ended, 0 if there was none; `quiet_ms` as in `advance_to`."""
        return self.quiet_until_ms - quiet_ms if self.quiet_until_ms else 0

    def advance_to(self, appended_ms: int, *, live: bool, hole_ms: int, quiet_ms: int) -> "Clock":
        """Return the clock after a record appended at `appended_ms`; `live`: was any row live?"""
        if appended_ms <= self.now_ms:
            return self
        hole = live and appended_ms - self.now_ms > hole_ms
        return Clock(appended_ms, appended_ms + quiet_ms if hole else self.quiet_until_ms)


def add_repair(
    repairs: Sequence[ClockRepair], until_offset: int, former_ms: int, clock_ms: int
) -> tuple[ClockRepair, ...]:
    """Return the repairs of a partition's clock after one that sets it from `former_ms`.

    The last eight are kept. An older one becomes part of the next, so that a row that includes only
    one of both may be due later, but never earlier.
    """
    number = repairs[-1].number + 1 if repairs else 1
    forward_ms = clock_ms - former_ms
    added = (*repairs, ClockRepair(number, until_offset, clock_ms, max(0, forward_ms), max(0, -forward_ms)))
    if len(added) <= _REPAIRS_KEPT:
        return added
    first, second, *others = added
    both = second._replace(shift_ms=first.shift_ms + second.shift_ms, back_ms=first.back_ms + second.back_ms)
    return (both, *others)


def stands_at_repair(now_ms: int, repairs: Sequence[ClockRepair]) -> bool:
    """Return whether a clock is where the last repair set it."""
    return bool(repairs) and now_ms == repairs[-1].clock_ms


def believed_from(repairs: Sequence[ClockRepair]) -> int:
    """Return the first offset whose record moves the clock."""
    return repairs[-1].until_offset if repairs else 0


def format_seconds(limit_ms: int) -> str:
    """Return a limit as people read it: 60000 becomes `60s`."""
    return f"{limit_ms / 1000:g}s"
