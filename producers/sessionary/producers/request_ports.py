"""What the reader of a service's requests says of itself, for probes; without Kafka."""

from collections.abc import Sequence
from typing import Final, NamedTuple

# A turn without requests takes 0.1 s; with every question to brokers that fall silent, some 10 s.
_HUNG_S: Final = 60.0

Condition = tuple[bool, str]
"""Whether all is well, and a line for people."""


class ReaderState(NamedTuple):
    """What the loop that reads requests is at."""

    turned_s: float  # Since its last turn began, in seconds
    waits: str | None  # Why it can take no request; None: its group has given it an assignment
    stopped: Sequence[int] = ()  # Assigned partitions that stop at a record that cannot be read

    def health(self) -> Condition:
        """Return whether the loop turns. Kafka may be away, and a partition may wait for people."""
        if self.turned_s > _HUNG_S:
            return False, f"the loop that reads requests has not made a turn for {self.turned_s:.0f} s"
        blocked = ", ".join(f"partition {partition}" for partition in self.stopped)
        return True, f"blocked by a record that cannot be read: {blocked}" if blocked else "ok"

    def readiness(self) -> Condition:
        """Return whether the loop turns and has an assignment, which may be of no partition."""
        is_alive, text = self.health()
        if not is_alive:
            return False, text
        return (True, "ok") if self.waits is None else (False, " ".join(self.waits.split()))


__all__ = ["Condition", "ReaderState"]
