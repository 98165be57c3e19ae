"""The partition's clock: time is in the log.

The clock is the running maximum of the records' append times (`LogAppendTime`, ms); no other source
of time exists. After a hole, a stretch without any record while rows were live, no timer fires for
a while: clients that were cut off get the time to be heard. A timeout may be late, but never false.
By rules 2 the clocks of activity also start again at the hole's end, because an agent that could
not be heard may have worked.
"""

from typing import NamedTuple


class Clock(NamedTuple):
    """A partition's time: now, and until when it is quiet after a hole; ms of log time."""

    now_ms: int = 0
    quiet_until_ms: int = 0

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


__all__ = ["Clock"]
