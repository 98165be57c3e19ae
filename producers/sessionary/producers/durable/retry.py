"""How often a failed call is tried again, after which wait, and how fast calls may follow. Pure."""

import math
from threading import Lock
from typing import NamedTuple


class Retry(NamedTuple):
    """How a failure that may pass by itself is tried again: with growing waits that are spread.

    Attributes:
        retries: How often; a call is made once more at most.
        base_ms: The wait after the first failure, in ms; it doubles with each further one.
        max_ms: The longest wait, in ms, before it is spread.
        jitter: How far a wait is spread: by up to this part of it, up or down.
    """

    retries: int = 5
    base_ms: int = 500
    max_ms: int = 10_000
    jitter: float = 0.2

    def wait_ms(self, failures: int, chance: float) -> int:
        """Return the wait after the last of so many failures, in ms; `chance` is from 0 to 1."""
        longest = min(self.max_ms, self.base_ms << min(failures - 1, 32))
        return max(0, math.floor(longest + longest * self.jitter * (2 * chance - 1)))


class CallRate:
    """Spreads the calls of a tool so that no more than some begin in a second. Thread-safe."""

    def __init__(self, calls_per_s: float) -> None:
        self._interval_s = 1 / calls_per_s
        self._lock = Lock()
        self._free_s = -math.inf

    def take_turn(self, now_s: float) -> float:
        """Take the next turn; return how long to wait for it, in seconds."""
        with self._lock:
            # A clock that went back, as that of another test does, delays no call.
            turn_s = max(now_s, self._free_s if self._free_s - now_s < self._interval_s * 10_000 else now_s)
            self._free_s = turn_s + self._interval_s
            return turn_s - now_s
