"""The partition's clock: time is in the log.

The clock is the running maximum of the records' append times (`LogAppendTime`, ms). Nothing else tells time. After a
hole, a stretch without any record while deadlines stood, nothing fires for a while: whoever was cut off gets the time
to be heard. Late is allowed, false never.
"""

from typing import NamedTuple


class Clock(NamedTuple):
    """A partition's time: now, and until when it is quiet after a hole; ms of log time."""

    now_ms: int = 0
    quiet_until_ms: int = 0

    @property
    def quiet(self) -> bool:
        """Whether nothing may fire yet."""
        return self.now_ms < self.quiet_until_ms

    def advanced(self, appended_ms: int, *, standing: bool, hole_ms: int, quiet_ms: int) -> "Clock":
        """Return the clock after a record appended at `appended_ms`; `standing` says whether any deadline stood."""
        if appended_ms <= self.now_ms:
            return self
        hole = standing and appended_ms - self.now_ms > hole_ms
        return Clock(appended_ms, appended_ms + quiet_ms if hole else self.quiet_until_ms)


__all__ = ["Clock"]
