"""The ports of a client that is turned off: nothing is sent, no thread, no file, no connection.

The verbs work in this process: `resume`, `recover`, `sync`, `attach` and `open` are answered from
the events of this client's own sessions, which are not judged. An ended session is forgotten.
"""

import threading
import time
from collections.abc import Sequence

from sessionary.producers.errors import SessionLost
from sessionary.producers.ports import (
    Backlog,
    Counters,
    OnCleanupRequest,
    OnReceipt,
    OnRequest,
    OutRecord,
    Ports,
    Receipt,
    SessionView,
)
from sessionary.producers.run_ports import FollowedState, StateStream
from sessionary.producers.settings import ProducerSettings
from sessionary.schemas.codec import Decoder, Event
from sessionary.schemas.events import SessionCreated, StateUpdated
from sessionary.schemas.types import Snapshot

SESSIONS_MAX = 100_000
_LOOK_S = 0.5
_STATES = {
    "session_started": "Active",
    "session_paused": "Paused",
    "session_errored": "Error",
    "session_resumed": "Active",
    "session_recovered": "Active",
}
_RAISES_EPOCH = frozenset({"session_resumed", "session_recovered", "session_taken_over"})
_HAS_SNAPSHOT = frozenset({"session_created", "session_paused", "snapshot_created"})
_ENDS = frozenset({"session_start_failed", "session_terminated"})
_FOLLOWED = frozenset(_STATES) | _RAISES_EPOCH | _HAS_SNAPSHOT | _ENDS | {"state_updated"}
_RECEIPT = Receipt(0, 0)  # a position in the log, as verbs that wait ask for it


class _LocalSession:
    """The knowledge of a session: bytes of its events, which are parsed on request."""

    def __init__(self, created: OutRecord) -> None:
        self.created = self.snapshot = created.value
        self.update: bytes | None = None
        self.state = "Idle"
        self.epoch = 1
        self.holder = created.producer_id


class DisabledTransport:
    """`Transport` that drops all, and `Control` that answers for its sessions. Thread-safe."""

    may_block = False
    counters = Counters()
    backlog = Backlog()

    def __init__(self, sessions_max: int = SESSIONS_MAX) -> None:
        """`sessions_max`: of the sessions that have not ended; the oldest ones are forgotten."""
        self._sessions_max = sessions_max
        self._sessions: dict[str, _LocalSession] = {}
        self._lock = threading.Lock()

    def send(self, record: OutRecord, on_receipt: OnReceipt | None = None) -> None:
        """Note what a record changes, and forget it."""
        if record.event_type in _FOLLOWED:
            with self._lock:
                self._follow_session(record)
        if on_receipt is not None:
            on_receipt(_RECEIPT)

    def send_heartbeat(self, record: OutRecord) -> None:
        """Do nothing."""

    def wait_taken_over(self, key: bytes, timeout_s: float) -> bool:
        """Return True."""
        return True

    def flush(self, timeout_s: float) -> int:
        """Return 0."""
        return 0

    def close(self, timeout_s: float) -> int:
        """Return 0."""
        return 0

    def check_configured(self) -> None:
        """Do nothing: the answers are local."""

    def fetch_session(self, session_id: str, after: tuple[int, int] | None, timeout_s: float) -> SessionView:
        """Return a session of this client. Raises `SessionLost` for others and ended ones."""
        with self._lock:
            known = self._sessions.get(session_id)
            if known is None:
                raise SessionLost(f"session {session_id} is not known: the client is disabled and knows its own only")
            created, last, update = (
                _read_event(value) for value in (known.created, known.snapshot, known.update or known.created)
            )
            state, epoch, holder = known.state, known.epoch, known.holder
        assert isinstance(created.payload, SessionCreated)
        snapshot: Snapshot = getattr(last.payload, "snapshot", None) or created.payload.snapshot
        content = update.payload if isinstance(update.payload, StateUpdated) else None
        return SessionView(
            session_id=session_id,
            state=state,
            phase=None,
            epoch=epoch,
            version=1 if content is None else content.new_version,
            owner_service=created.envelope.service_id,
            state_json=created.payload.snapshot.state_json if content is None else content.state_json,
            state_schema_version=snapshot.schema_version,
            snapshot_id=snapshot.snapshot_id,
            snapshot_state_json=snapshot.state_json,
            limits=created.payload.limits,
            verdict=None,
            data_classes=created.envelope.data_classes,
            agent_id=created.envelope.agent_id,
            holder=holder,
            user_id=created.envelope.user_id,
            external_id=created.payload.external_id,
        )

    def _follow_session(self, record: OutRecord) -> None:
        kind, session_id = record.event_type, record.session_id
        if kind == "session_created":
            if session_id in self._sessions:
                return
            self._sessions[session_id] = _LocalSession(record)
            if len(self._sessions) > self._sessions_max:
                del self._sessions[next(iter(self._sessions))]
            return
        if kind in _ENDS:
            self._sessions.pop(session_id, None)
        known = self._sessions.get(session_id)
        if known is None:
            return
        if kind == "state_updated" and known.state == "Active":
            known.update = record.value
        if kind in _HAS_SNAPSHOT:
            known.snapshot = record.value
        if kind in _RAISES_EPOCH:
            known.epoch += 1
        if kind == "session_taken_over":
            known.holder = record.producer_id
        known.state = _STATES.get(kind, known.state)


class _LocalStream:
    """`StateStream` of a session of this client; looks at it every half second."""

    def __init__(self, outside: DisabledTransport, session_id: str) -> None:
        self._outside, self._session_id = outside, session_id
        self._reported: SessionView | None = None
        self._closed = threading.Event()

    def read_states(self, timeout_s: float) -> Sequence[FollowedState]:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                view = self._outside.fetch_session(self._session_id, None, 0.0)
            except SessionLost:
                return (FollowedState(None),)
            if view != self._reported:
                self._reported = view
                return (FollowedState(view),)
            left_s = deadline - time.monotonic()
            if left_s <= 0 or self._closed.wait(min(left_s, _LOOK_S)):
                return ()

    def close(self) -> None:
        self._closed.set()


class DisabledFollows:
    """`Follows` of this client's own sessions, until they end."""

    def __init__(self, outside: DisabledTransport) -> None:
        self._outside = outside

    def check_configured(self) -> None:
        """Do nothing: the answers are local."""

    def open_states(self, session_id: str, after: tuple[int, int] | None, timeout_s: float) -> StateStream:
        """Return a stream. Raises `SessionLost` for others' sessions and ended ones."""
        self._outside.fetch_session(session_id, None, timeout_s)
        return _LocalStream(self._outside, session_id)


class DisabledCleanups:
    """`CleanupConsumer` that receives nothing."""

    def start(self, on_request: OnCleanupRequest) -> None:
        """Do nothing."""

    def close(self, timeout_s: float) -> None:
        """Do nothing."""


class DisabledMigrations:
    """`MigrationConsumer` that receives nothing."""

    works_in_place = False

    def start(self, on_request: OnRequest) -> None:
        """Do nothing."""

    def close(self, timeout_s: float) -> None:
        """Do nothing."""


def _read_event(value: bytes) -> Event:
    event = Decoder().decode_event(value)
    assert isinstance(event, Event)
    return event


def disabled_ports() -> Ports:
    """Return the ports of a client that is turned off."""
    outside = DisabledTransport()
    follows, migrations = DisabledFollows(outside), DisabledMigrations()

    def tenant_ports(tenant_id: str, settings: ProducerSettings) -> Ports:
        return Ports(outside, outside, DisabledCleanups(), "disabled", follows=follows, migrations=migrations)

    return Ports(
        outside,
        outside,
        DisabledCleanups(),
        "disabled",
        tenant_ports=tenant_ports,
        follows=follows,
        migrations=migrations,
    )
