"""An in-memory outside for users' own tests: no Kafka, no threads, no waiting.

    client, memory = memory_client()
    with client.session(user_id="u1", state={"step": 0}) as s:
        s.activity("llm")
    assert [e.envelope.event_type for e in memory.events()][-1] == "session_terminated"

The transport keeps every record in order and acknowledges it at once. The control side grants every resume and recovery
(epoch + 1) unless told to refuse; it is no judge: what is illegal is not refused here.
"""

import threading

from sessionary.producers.client import SessionClient
from sessionary.producers.errors import ClientClosed, ProducerError, SessionLost, Unavailable
from sessionary.producers.ports import (
    CleanupAnswer,
    Counters,
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
    SessionTerminated,
    SnapshotCreated,
    StateUpdated,
)
from sessionary.schemas.ids import partition_of
from sessionary.schemas.records import CleanupRequest
from sessionary.schemas.types import Limits, RefusalReason, Snapshot

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


class _Row:
    """What the in-memory control side knows of one session."""

    def __init__(self, owner: str, limits: Limits, snapshot: Snapshot) -> None:
        self.owner = owner
        self.limits = limits
        self.snapshot: Snapshot = snapshot
        self.state = "Idle"
        self.state_json = snapshot.state_json
        self.epoch = 1
        self.version = 1
        self.verdicts: dict[tuple[int, int], Verdict] = {}


class InMemoryTransport:
    """Transport, control and clean-up source in one. Thread-safe."""

    def __init__(self, partitions: int = 4) -> None:
        self._partitions = partitions
        self._lock = threading.RLock()
        self._decoder = Decoder()
        self._records: list[OutRecord] = []
        self._events: list[Event] = []
        self._heartbeats: list[Event] = []
        self._offsets = [0] * partitions
        self._rows: dict[str, _Row] = {}
        self._refusals: list[RefusalReason] = []
        self._answer: CleanupAnswer | None = None
        self._silent = False
        self._closed = False

    # For tests

    def records(self) -> list[OutRecord]:
        """Every record so far, heartbeats apart, in order."""
        with self._lock:
            return list(self._records)

    def events(self, session_id: str | None = None) -> list[Event]:
        """Every event so far (of one session), heartbeats apart, in order, read back from its bytes."""
        with self._lock:
            return [event for event in self._events if session_id in (None, event.envelope.session_id)]

    def heartbeats(self) -> list[Event]:
        """Every heartbeat so far."""
        with self._lock:
            return list(self._heartbeats)

    def refuse_next(self, reason: RefusalReason) -> None:
        """Refuse the next resume or recovery with `reason`."""
        with self._lock:
            self._refusals.append(reason)

    def silence_control(self, *, silent: bool) -> None:
        """Make the control side answer `Unavailable`, or answer again."""
        self._silent = silent

    def request_cleanup(self, request: CleanupRequest) -> Receipt | None:
        """Hand a request to the client's clean-up handler; return the receipt of its answer."""
        if self._answer is None:
            raise ProducerError("the client has no clean-up handler")
        receipts: list[Receipt] = []
        self._answer(request, receipts.append)
        return receipts[0] if receipts else None

    # Transport

    @property
    def may_block(self) -> bool:
        """Never."""
        return False

    @property
    def counters(self) -> Counters:
        """All that was sent is delivered."""
        with self._lock:
            count = len(self._records)
            return Counters(sent=count, delivered=count, heartbeats=len(self._heartbeats))

    def send(self, record: OutRecord, on_receipt: OnReceipt | None = None) -> None:
        """Keep one record and acknowledge it. Raises `ClientClosed`."""
        with self._lock:
            if self._closed:
                raise ClientClosed("the client is closed")
            event = self._decoded(record)
            partition = partition_of(record.key, self._partitions)
            place = (partition, self._offsets[partition])
            self._offsets[partition] += 1
            self._records.append(record)
            self._events.append(event)
            self._note(event, place)
        if on_receipt is not None:
            on_receipt(Receipt(*place))

    def beat(self, record: OutRecord) -> None:
        """Keep a heartbeat."""
        with self._lock:
            if not self._closed:
                self._heartbeats.append(self._decoded(record))

    def flush(self, timeout_s: float) -> int:
        """Nothing ever waits."""
        return 0

    # Control

    def check(self) -> None:
        """Can always be asked."""

    def session(self, session_id: str, after: tuple[int, int] | None, timeout_s: float) -> SessionView:
        """Answer at once. Raises `SessionLost`, `Unavailable` where silenced."""
        if self._silent:
            raise Unavailable("the control side is silent", 1.0)
        with self._lock:
            row = self._rows.get(session_id)
            if row is None:
                raise SessionLost(f"session {session_id} is not known")
            return SessionView(
                session_id=session_id,
                state=row.state,
                phase=None,
                epoch=row.epoch,
                version=row.version,
                owner_service=row.owner,
                state_json=row.state_json,
                state_schema_version=row.snapshot.schema_version,
                snapshot_id=row.snapshot.snapshot_id,
                snapshot_state_json=row.snapshot.state_json,
                limits=row.limits,
                verdict=None if after is None else row.verdicts.get(after, Verdict(applied=True, reason=None)),
            )

    # Clean-up source

    def start(self, answer: CleanupAnswer) -> None:
        """Take the client's handler for `request_cleanup`."""
        self._answer = answer

    # All three

    def close(self, timeout_s: float = 0.0) -> int:
        """Take no more records; what was kept stays readable."""
        self._closed = True
        return 0

    def _decoded(self, record: OutRecord) -> Event:
        event = self._decoder.decode_event(record.value)
        assert isinstance(event, Event)
        return event

    def _note(self, event: Event, place: tuple[int, int]) -> None:
        """Follow just enough of a session's life to answer `session`."""
        payload = event.payload
        if isinstance(payload, SessionCreated):
            owner = event.envelope.service_id
            self._rows[event.envelope.session_id] = _Row(owner, payload.limits, payload.snapshot)
        row = self._rows.get(event.envelope.session_id)
        if row is None or isinstance(payload, Heartbeat):
            return
        if isinstance(payload, SessionResumed | SessionRecovered):
            reason = self._refusals.pop(0) if self._refusals else None
            row.verdicts[place] = Verdict(applied=reason is None, reason=reason)
            if reason is not None:
                return
            row.epoch += 1
        row.state = _STATES.get(type(payload), row.state)
        if isinstance(payload, StateUpdated):
            row.version, row.state_json = payload.new_version, payload.state_json
        elif isinstance(payload, SessionPaused | SessionTerminated | SnapshotCreated) and payload.snapshot is not None:
            row.snapshot = payload.snapshot


class _MemoryCleanups:
    """`CleanupSource` that leaves the closing to the transport, so that `close` is not asked twice."""

    def __init__(self, memory: InMemoryTransport) -> None:
        self._memory = memory

    def start(self, answer: CleanupAnswer) -> None:
        self._memory.start(answer)

    def close(self) -> None:
        return None


def memory_ports(memory: InMemoryTransport) -> Ports:
    """Return the outside of a client that talks to `memory`."""
    return Ports(memory, memory, _MemoryCleanups(memory))


def memory_client(
    tenant_id: str = "acme",
    service_id: str = "service",
    agent_id: str = "agent",
    settings: ProducerSettings | None = None,
) -> tuple[SessionClient, InMemoryTransport]:
    """Return a client and the memory it talks to. Environment variables do not matter."""
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
