"""What the core needs of the outside, and nothing more: a transport, a control API, a source of clean-up requests.

The core (client, session, heartbeat) knows these protocols only. Real ones: `delivery`, `control`, `cleanup`;
in-memory ones for users' own tests: `testing`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from sessionary.producers.errors import DeliveryFailed
from sessionary.schemas.records import CleanupRequest
from sessionary.schemas.types import Limits, RefusalReason


class OutRecord(NamedTuple):
    """One event on its way: the bytes, and what a journal says about it."""

    key: bytes
    value: bytes
    headers: list[tuple[str, bytes]]
    event_id: str
    event_type: str
    tenant_id: str
    session_id: str
    producer_id: str
    producer_seq: int
    traceparent: str | None = None


class Receipt(NamedTuple):
    """What became of an event: its place in the log, or why it has none."""

    partition: int | None
    offset: int | None
    error: str | None = None

    def place(self, event_id: str) -> tuple[int, int]:
        """Return (partition, offset). Raises `DeliveryFailed`."""
        if self.partition is None or self.offset is None or self.error is not None:
            raise DeliveryFailed(event_id, self.error or "no place in the log")
        return self.partition, self.offset


OnReceipt = Callable[[Receipt], None]


class Counters(NamedTuple):
    """What the client did since it was made. Every event that was sent is delivered, dropped, failed or outstanding."""

    sent: int = 0  # Events accepted; heartbeats apart
    delivered: int = 0
    spooled: int = 0  # Events that had to wait in the spool file, as the queue was full
    dropped: int = 0  # Events without room; each a visible gap
    failed: int = 0  # Events given up; each a visible gap
    heartbeats: int = 0
    heartbeats_dropped: int = 0
    replayed: int = 0  # Events of an earlier process, taken over from its spool
    expired: int = 0  # Events of a spool too old to be replayed, kept aside


class Transport(Protocol):
    """Takes records in order and delivers them in order per key. Thread-safe."""

    @property
    def may_block(self) -> bool:
        """Whether `send` may wait for room."""
        ...

    @property
    def counters(self) -> Counters:
        """What became of the records so far."""
        ...

    def send(self, record: OutRecord, on_receipt: OnReceipt | None = None) -> None:
        """Take one record; `on_receipt` is called once, on any thread. Raises `QueueFull`, `ClientClosed`."""
        ...

    def beat(self, record: OutRecord) -> None:
        """Take a heartbeat: sent now or dropped, never kept. Never blocks."""
        ...

    def flush(self, timeout_s: float) -> int:
        """Wait until everything is acknowledged; return how many events are not. Raises `AuthenticationFailed`."""
        ...

    def close(self, timeout_s: float) -> int:
        """Drain for up to `timeout_s`, then stop; return what is left (kept by a spool). May be called twice."""
        ...


class Verdict(NamedTuple):
    """How the judge took the record that was asked for."""

    applied: bool
    reason: RefusalReason | None


class SessionView(NamedTuple):
    """A session as the processor's table has it."""

    session_id: str
    state: str
    phase: str | None
    epoch: int
    version: int
    owner_service: str
    state_json: str
    state_schema_version: int
    snapshot_id: str | None
    snapshot_state_json: str | None
    limits: Limits
    verdict: Verdict | None


class Control(Protocol):
    """Asks the processor for one session. Thread-safe; blocks."""

    def check(self) -> None:
        """Raise `SettingsError` where nobody can be asked."""
        ...

    def session(self, session_id: str, after: tuple[int, int] | None, timeout_s: float) -> SessionView:
        """Return the session once the record at `after` (partition, offset) is judged, with the verdict on it.

        Raises `SessionLost`, `AuthenticationFailed`, `Invalid`, and `Unavailable` where `timeout_s` was not enough.
        """
        ...


class CleanupAnswer(Protocol):
    """Takes one request; the receipt comes once the answer has a place in the log, at once where none is due."""

    def __call__(self, request: CleanupRequest, on_receipt: OnReceipt) -> None:
        """Do the clean-up, answer, report. Never raises for what a handler does."""
        ...


class CleanupSource(Protocol):
    """Where clean-up requests for a service come from."""

    def start(self, answer: CleanupAnswer) -> None:
        """Hand every request to `answer`, from a thread of its own."""
        ...

    def close(self) -> None:
        """Stop; may be called twice."""
        ...


class Ports(NamedTuple):
    """The outside of one client."""

    transport: Transport
    control: Control
    cleanups: CleanupSource


OnError = Callable[[Exception], None]
Json = Any  # What `json.dumps` takes; a session's state is a dict of it


__all__ = [
    "CleanupAnswer",
    "CleanupSource",
    "Control",
    "Counters",
    "Json",
    "OnError",
    "OnReceipt",
    "OutRecord",
    "Ports",
    "Receipt",
    "SessionView",
    "Transport",
    "Verdict",
]
