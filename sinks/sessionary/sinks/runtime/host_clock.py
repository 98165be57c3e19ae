"""The host's clocks, as a port: tests pass in a clock of their own.

Not to be mixed up with a partition's clock, which is the log's time.
"""

import time
from typing import Protocol


class HostClock(Protocol):
    """Tells the host's time."""

    def monotonic_s(self) -> float:
        """Return monotonic time in seconds."""
        ...

    def wall_ms(self) -> int:
        """Return milliseconds since the epoch."""
        ...


class SystemClock:
    """The operating system's clocks."""

    def monotonic_s(self) -> float:
        """Return monotonic time in seconds."""
        return time.monotonic()

    def wall_ms(self) -> int:
        """Return milliseconds since the epoch."""
        return time.time_ns() // 1_000_000
