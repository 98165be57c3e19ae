"""The outside of a client in memory, and clients that use it."""

import threading

from sessionary.producers.client import SessionClient
from sessionary.producers.errors import ClientClosed, ProducerError, SessionLost, Unavailable
from sessionary.producers.ports import (
    Backlog,
    Counters,
    OnCleanupRequest,
    OnReceipt,
    OutRecord,
    Ports,
    Receipt,
    SessionView,
    Verdict,
)
from sessionary.producers.settings import ProducerSettings
from sessionary.schemas.codec import Decoder, Event
from sessionary.schemas.events import (
    Heartbeat,
    SessionCreated,
    SessionErrored,
    SessionPaused,
    SessionRecovered,
    SessionResumed,
    SessionStarted,
    SessionStartFailed,
    SessionTakenOver,
    SessionTerminated,
    SnapshotCreated,
    StateUpdated,
)
from sessionary.schemas.ids import partition_of
from sessionary.schemas.records import CleanupRequest
from sessionary.schemas.types import DataClass, Envelope, Limits, RefusalReason, Snapshot

_STATES = {
    SessionCreated: "Idle",
    SessionStarted: "Active",
    SessionStartFailed: "Terminated",
    SessionPaused: "Paused",
    SessionErrored: "Error",
    SessionTerminated: "Terminated",
    SessionResumed: "Active",
    SessionRecovered: "Active",
}


class _MemorySession:
    """What the in-memory control API knows of one session."""

    def __init__(self, envelope: Envelope, limits: Limits, snapshot: Snapshot) -> None:
        self.owner, self.agent_id, self.holder = envelope.service_id, envelope.agent_id, envelope.producer_id
        self.limits = limits
        self.snapshot: Snapshot = snapshot
        self.state = "Idle"
        self.state_json = snapshot.state_json
        self.epoch = 1
        self.version = 1
        self.data_classes: set[DataClass] = set()
        self.verdicts: dict[tuple[int, int], Verdict] = {}


class InMemoryTransport:
    """The outside of a client in memory: transport, control API, clean-up requests. Thread-safe.

    Keeps each event in order, acknowledges it at once, and grants each resume, recovery and
    take-over (epoch + 1) unless told to refuse. It does not judge: events that the processor would
    refuse are accepted here. A take-over needs a client with the setting `rules` at 2 or more.
    """

    def __init__(self, partitions: int = 4) -> None:
        """`partitions`: number of partitions of the imaginary events topic."""
        self._partitions = partitions
        self._lock = threading.RLock()
        self._decoder = Decoder()
        self._records: list[OutRecord] = []
        self._events: list[Event] = []
        self._heartbeats: list[Event] = []
        self._offsets = [0] * partitions
        self._sessions: dict[str, _MemorySession] = {}
        self._next_refusals: list[RefusalReason] = []
        self._handlers: dict[str | None, OnCleanupRequest] = {}  # by tenant; None: of the client itself
        self._silent = False
        self._closed = False

    # For tests

    def records(self) -> list[OutRecord]:
        """Return all records so far in order, without heartbeats."""
        with self._lock:
            return list(self._records)

    def events(self, session_id: str | None = None) -> list[Event]:
        """Return all events so far in order, decoded, without heartbeats.

        Args:
            session_id: Return only the events of this session.
        """
        with self._lock:
            return [event for event in self._events if session_id in (None, event.envelope.session_id)]

    def heartbeats(self) -> list[Event]:
        """Return all heartbeats so far in order."""
        with self._lock:
            return list(self._heartbeats)

    def refuse_next(self, reason: RefusalReason) -> None:
        """Refuse the next resume, recovery or take-over with `reason`.

        Each call refuses one more.
        """
        with self._lock:
            self._next_refusals.append(reason)

    def silence_control(self, *, silent: bool) -> None:
        """Make the control API raise `Unavailable`; `silent=False` makes it answer again."""
        self._silent = silent

    def request_cleanup(self, request: CleanupRequest) -> Receipt | None:
        """Pass a request to the client's clean-up handler; return the receipt of its answer.

        Raises `ProducerError` if the client has no handler.
        """
        on_request = self._handlers.get(request.tenant_id) or self._handlers.get(None)
        if on_request is None:
            raise ProducerError("the client has no clean-up handler; call client.on_cleanup first")
        receipts: list[Receipt] = []
        on_request(request, receipts.append)
        return receipts[0] if receipts else None

    # The protocol `Transport`

    @property
    def may_block(self) -> bool:
        """False."""
        return False

    @property
    def counters(self) -> Counters:
        """The counters as they are now: all events sent are delivered."""
        with self._lock:
            count = len(self._records)
            return Counters(sent=count, delivered=count, heartbeats=len(self._heartbeats))

    @property
    def backlog(self) -> Backlog:
        """Nothing: every event is acknowledged at once."""
        return Backlog()

    def send(self, record: OutRecord, on_receipt: OnReceipt | None = None) -> None:
        """Keep one record and acknowledge it. Raises `ClientClosed`."""
        with self._lock:
            if self._closed:
                raise ClientClosed("the client is closed; create a new one")
            event = self._decode_event(record)
            partition = partition_of(record.key, self._partitions)
            position = (partition, self._offsets[partition])
            self._offsets[partition] += 1
            self._records.append(record)
            self._events.append(event)
            self._track_session(event, position)
        if on_receipt is not None:
            on_receipt(Receipt(*position))

    def send_heartbeat(self, record: OutRecord) -> None:
        """Keep a heartbeat."""
        with self._lock:
            if not self._closed:
                self._heartbeats.append(self._decode_event(record))

    def flush(self, timeout_s: float) -> int:
        """Return 0: every event is acknowledged at once."""
        return 0

    # The protocol `Control`

    def check_configured(self) -> None:
        """Do nothing: this control API needs no settings."""

    def fetch_session(self, session_id: str, after: tuple[int, int] | None, timeout_s: float) -> SessionView:
        """Return the session at once. Raises `SessionLost`, `Unavailable` if silenced."""
        if self._silent:
            raise Unavailable("the control API is silent", 1.0)
        with self._lock:
            known = self._sessions.get(session_id)
            if known is None:
                raise SessionLost(f"session {session_id} is not known")
            return SessionView(
                session_id=session_id,
                state=known.state,
                phase=None,
                epoch=known.epoch,
                version=known.version,
                owner_service=known.owner,
                state_json=known.state_json,
                state_schema_version=known.snapshot.schema_version,
                snapshot_id=known.snapshot.snapshot_id,
                snapshot_state_json=known.snapshot.state_json,
                limits=known.limits,
                verdict=None if after is None else known.verdicts.get(after, Verdict(applied=True, reason=None)),
                data_classes=tuple(sorted(known.data_classes)),
                agent_id=known.agent_id,
                holder=known.holder,
            )

    # The protocol `CleanupConsumer`

    def start(self, on_request: OnCleanupRequest) -> None:
        """Use `on_request` for `request_cleanup`."""
        self._handlers[None] = on_request

    # All three protocols

    def close(self, timeout_s: float = 0.0) -> int:
        """Accept no more records; those kept stay readable."""
        self._closed = True
        return 0

    def _decode_event(self, record: OutRecord) -> Event:
        event = self._decoder.decode_event(record.value)
        assert isinstance(event, Event)
        return event

    def _track_session(self, event: Event, position: tuple[int, int]) -> None:
        """Follow as much of a session's life as `fetch_session` needs."""
        payload = event.payload
        if isinstance(payload, SessionCreated):
            created = _MemorySession(event.envelope, payload.limits, payload.snapshot)
            self._sessions[event.envelope.session_id] = created
        known = self._sessions.get(event.envelope.session_id)
        if known is None or isinstance(payload, Heartbeat):
            return
        if isinstance(payload, SessionResumed | SessionRecovered | SessionTakenOver):
            reason = self._next_refusals.pop(0) if self._next_refusals else None
            known.verdicts[position] = Verdict(applied=reason is None, reason=reason)
            if reason is not None:
                return
            known.epoch += 1
        if isinstance(payload, SessionTakenOver):
            envelope = event.envelope
            known.owner, known.agent_id, known.holder = envelope.service_id, envelope.agent_id, envelope.producer_id
        known.data_classes.update(event.envelope.data_classes)
        known.state = _STATES.get(type(payload), known.state)
        if isinstance(payload, StateUpdated):
            known.version, known.state_json = payload.new_version, payload.state_json
        elif isinstance(payload, SessionPaused | SessionTerminated | SnapshotCreated) and payload.snapshot is not None:
            known.snapshot = payload.snapshot


class _MemoryCleanups:
    """`CleanupConsumer` whose `close` leaves the transport open: the client closes that later."""

    def __init__(self, memory: InMemoryTransport, tenant_id: str | None = None) -> None:
        self._memory = memory
        self._tenant_id = tenant_id

    def start(self, on_request: OnCleanupRequest) -> None:
        self._memory._handlers[self._tenant_id] = on_request

    def close(self, timeout_s: float) -> None:
        self._memory._handlers.pop(self._tenant_id, None)


def memory_ports(memory: InMemoryTransport) -> Ports:
    """Return `memory` as the argument `ports` of `SessionClient` or `AsyncSessionClient`."""

    def tenant_ports(tenant_id: str, settings: ProducerSettings) -> Ports:
        return Ports(memory, memory, _MemoryCleanups(memory, tenant_id))

    return Ports(memory, memory, _MemoryCleanups(memory), tenant_ports=tenant_ports)


def memory_client(
    tenant_id: str = "acme",
    service_id: str = "service",
    agent_id: str = "agent",
    settings: ProducerSettings | None = None,
) -> tuple[SessionClient, InMemoryTransport]:
    """Return a client that works in memory, and the memory with its events.

    Reads no environment variables.

    Args:
        tenant_id: The client's tenant.
        service_id: The client's service.
        agent_id: The client's agent.
        settings: Default: the defaults of `ProducerSettings`.

    Returns:
        The client, and what it has sent.
    """
    memory = InMemoryTransport()
    client = SessionClient(
        tenant_id=tenant_id,
        service_id=service_id,
        agent_id=agent_id,
        settings=settings or ProducerSettings.from_env({}),
        ports=memory_ports(memory),
    )
    return client, memory


__all__ = ["InMemoryTransport", "memory_client", "memory_ports"]
