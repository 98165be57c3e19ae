"""Records to be sent and their receipts; what the reader of a service's requests says of itself."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from sessionary.producers.errors import DeliveryFailed
from sessionary.schemas.headers import restamp_headers

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


class OutRecord(NamedTuple):
    """One event to be sent: its bytes, and the fields that the journal writes.

    If `stamp_us` is set, `given_headers` are those of another event, which differs in its id and
    its time only. The agent then waits for no headers: the thread that needs them makes them.
    """

    key: bytes
    value: bytes
    given_headers: list[tuple[str, bytes]]
    event_id: str
    event_type: str
    tenant_id: str
    session_id: str
    producer_id: str
    producer_seq: int
    traceparent: str | None = None
    stamp_us: int | None = None  # when it occurred, in µs since the epoch; None: the headers are its own

    @property
    def headers(self) -> list[tuple[str, bytes]]:
        """The headers of the event. The list may be shared: change nothing in it."""
        if self.stamp_us is None:
            return self.given_headers
        return restamp_headers(self.given_headers, self.event_id, self.stamp_us)


class Receipt(NamedTuple):
    """The result of sending an event: its partition and offset, or an error."""

    partition: int | None
    offset: int | None
    error: str | None = None

    def log_position(self, event_id: str) -> tuple[int, int]:
        """Return (partition, offset). Raises `DeliveryFailed` if the event has none."""
        if self.partition is None or self.offset is None or self.error is not None:
            raise DeliveryFailed(event_id, self.error or "its place in the log is unknown")
        return self.partition, self.offset


OnReceipt = Callable[[Receipt], None]
