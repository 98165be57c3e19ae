"""When a client asks about its sessions: as often as is set, and in time to learn of a take-over.

A process that lost its session must not work on for long: it learns so before its next heartbeat is
due. Pure: the caller has the clock and the chance.
"""

_SPREAD = 0.4  # of an interval, so that many clients do not ask at once
_BEATS_PART = 0.8  # of a heartbeat's interval; the rest is for the question itself
_DOUBLED_MAX = 16
_BACKOFF_S_MAX = 60.0


class PollSchedule:
    """The pauses between polls; `interval_s` is what was set."""

    def __init__(self, interval_s: float) -> None:
        self.failures = 0  # in a row, up to the last poll
        self._interval_s = interval_s
        self._beats_s: float | None = None

    def note_beats(self, interval_s: float) -> bool:
        """Take the interval of a session that beats; return whether polls become more frequent."""
        if self._beats_s is not None and interval_s >= self._beats_s:
            return False
        before_s = self._longest_s()
        self._beats_s = interval_s
        return self._longest_s() < before_s

    def forget_beats(self) -> None:
        """Forget all intervals: those of the sessions that still beat are noted again."""
        self._beats_s = None

    def pause_s(self, chance: float) -> float:
        """Return the seconds from one poll to the next; `chance` is from 0 to 1.

        A control API that does not answer is asked ever less often.
        """
        interval_s = self._interval_s
        spread_s = interval_s * (1.0 - _SPREAD / 2 + _SPREAD * chance)
        longest_s = self._longest_s()
        if not self.failures:
            return min(spread_s, longest_s)
        doubled = 2.0 ** min(self.failures, _DOUBLED_MAX)
        return min(min(spread_s, longest_s) * doubled, max(_BACKOFF_S_MAX, interval_s))

    def _longest_s(self) -> float:
        if self._beats_s is None:
            return self._interval_s * (1.0 + _SPREAD / 2)
        return min(self._interval_s * (1.0 + _SPREAD / 2), self._beats_s * _BEATS_PART)
