"""The counters of a client while they change."""

import threading
from collections import Counter
from types import MappingProxyType

from sessionary.producers.ports import Counters


class EventCounts:
    """Mutable form of `Counters`. Hold `lock` to change one; notify `changed` after a delivery."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.sent = self.delivered = self.spooled = self.dropped = self.failed = 0
        self.heartbeats = self.heartbeats_dropped = self.replayed = self.expired = self.damaged = 0
        self.errors: Counter[str] = Counter()  # by reason

    def count_error(self, reason: str) -> None:
        """Count an error of delivery. Takes the lock."""
        with self.lock:
            self.errors[reason] += 1

    def as_counters(self) -> Counters:
        """Return the counts as an immutable value."""
        return Counters(
            self.sent,
            self.delivered,
            self.spooled,
            self.dropped,
            self.failed,
            self.heartbeats,
            self.heartbeats_dropped,
            self.replayed,
            self.expired,
            damaged=self.damaged,
            errors=MappingProxyType(dict(self.errors)),
        )

    @property
    def outstanding(self) -> int:
        """Number of events that are neither delivered nor given up."""
        return self.sent + self.replayed - self.delivered - self.dropped - self.failed - self.expired
