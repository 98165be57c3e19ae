"""The counters of a client while they change."""

import threading

from sessionary.producers.ports import Counters


class EventCounts:
    """Mutable form of `Counters`. Hold `lock` to change one; notify `changed` after a delivery."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.sent = self.delivered = self.spooled = self.dropped = self.failed = 0
        self.heartbeats = self.heartbeats_dropped = self.replayed = self.expired = 0

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
        )

    @property
    def outstanding(self) -> int:
        """Number of events that are neither delivered nor given up."""
        return self.sent + self.replayed - self.delivered - self.dropped - self.failed - self.expired


__all__ = ["EventCounts"]
