"""How long a sink pauses after a fault: each fault in a row doubles the pause, up to 10 s."""

from sessionary.sinks.errors import RETRY_FIRST_S, RETRY_LAST_S


class RetryPause:
    """The pause of one sink. `now` is always monotonic time in seconds."""

    def __init__(self) -> None:
        self._until: float | None = None
        self._next_s = RETRY_FIRST_S
        self.reason: str | None = None  # of the last fault, None without one

    @property
    def is_active(self) -> bool:
        """Whether a fault has occurred and `end` was not called since."""
        return self._until is not None

    def holds_back(self, now: float) -> bool:
        """Whether the next attempt must wait."""
        return self._until is not None and now < self._until

    def extend(self, reason: str, now: float) -> None:
        """Pause from now on, twice as long as after the fault before."""
        self.reason = reason
        self._until = now + self._next_s
        self._next_s = min(self._next_s * 2, RETRY_LAST_S)

    def end(self) -> None:
        """Go on; the next pause is a short one again."""
        self._until = self.reason = None
        self._next_s = RETRY_FIRST_S
