"""`SessionClient`: one per agent process and tenant. Makes sessions, beats for them, delivers their events.

client = SessionClient(tenant_id="acme", service_id="billing", agent_id="agent-1")
with client.session(user_id="u1", state={"step": 0}) as s:
    s.activity("llm")
"""

import atexit
import logging
import os
import signal
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType, TracebackType
from typing import Literal, Self

from sessionary.producers.control.cleanup import Answerer, CleanupHandler, KafkaCleanups
from sessionary.producers.control.http import HttpControl
from sessionary.producers.delivery.emitter import Emitter, Gate, Identity, Sequences
from sessionary.producers.delivery.spool_transport import SpooledTransport
from sessionary.producers.delivery.transport import DirectTransport
from sessionary.producers.errors import ClientClosed, SessionaryError
from sessionary.producers.ports import Counters, Json, OnError, Ports
from sessionary.producers.session.handle import Surroundings
from sessionary.producers.session.heartbeat import Heartbeats
from sessionary.producers.session.life import Session, Step
from sessionary.producers.settings import ProducerSettings
from sessionary.schemas.ids import SessionKey, checked_name, checked_session_id, new_session_id
from sessionary.schemas.types import DataClass, Limits

_log = logging.getLogger("sessionary.producers")
_SIGTERM_EXIT_CODE = 128 + signal.SIGTERM
_clients: "weakref.WeakSet[SessionClient]" = weakref.WeakSet()


def _log_error(error: Exception) -> None:
    _log.warning("%s", error)


def kafka_ports(
    settings: ProducerSettings, tenant_id: str, service_id: str, producer_id: str, on_error: OnError
) -> Ports:
    """Return the real outside: Kafka and the control API."""
    spooling = settings.delivery_policy == "spool"
    return Ports(
        SpooledTransport(settings, producer_id, on_error) if spooling else DirectTransport(settings, on_error),
        HttpControl(settings),
        KafkaCleanups(settings, tenant_id, service_id, on_error),
    )


class SessionClient:
    """Makes sessions of one tenant, service and agent. Thread-safe; a context manager; `close` drains.

    `on_error` hears of trouble that no call can raise (Kafka away, a full spool, lost events), on any thread; the
    default logs to `sessionary.producers`. `ports` replaces Kafka and the control API, for tests.
    """

    def __init__(
        self,
        *,
        tenant_id: str,
        service_id: str,
        agent_id: str,
        agent_role: str | None = None,
        actor: str | None = None,
        settings: ProducerSettings | None = None,
        on_error: OnError = _log_error,
        ports: Ports | None = None,
    ) -> None:
        """Raises `Invalid` for a name that cannot be, `SettingsError` where the spool folder cannot be used."""
        self._tenant_id = checked_name("tenant", tenant_id)
        self._identity = Identity(
            checked_name("service", service_id), checked_name("agent", agent_id), agent_role, actor
        )
        self._settings = settings if settings is not None else ProducerSettings.from_env()
        self.producer_id = str(uuid.uuid4())
        self._ports = ports or kafka_ports(self._settings, tenant_id, service_id, self.producer_id, on_error)
        self._gate = Gate()
        self._sequences = Sequences(self.producer_id)
        self._heartbeats = Heartbeats(on_error)
        self._around = Surroundings(
            self._ports.control,
            self._heartbeats,
            self._settings.heartbeat_interval_s,
            self._settings.verdict_timeout_s,
        )
        self._on_error = on_error
        self._closing = threading.Lock()
        self._pid = os.getpid()
        _clients.add(self)
        if ports is None and self._settings.handle_sigterm:
            _exit_on_sigterm()

    @property
    def counters(self) -> Counters:
        """What the client did so far."""
        return self._ports.transport.counters

    @property
    def may_block(self) -> bool:
        """Whether verbs may wait for room (policy `block`)."""
        return self._ports.transport.may_block

    def create(
        self,
        *,
        user_id: str,
        state: Mapping[str, Json] | None = None,
        limits: Limits | None = None,
        data_classes: Sequence[DataClass] = (),
        session_id: str | None = None,
        state_schema_version: int = 1,
        parent_session_id: str | None = None,
        restored_from_snapshot_id: str | None = None,
    ) -> Session:
        """T01: register a session and return its handle, not started yet. Raises `Invalid`, `QueueFull`.

        Keep the handle: nobody beats for a session that its agent forgot.
        """
        if session_id is None:
            timed = self._settings.session_id_version == 7
            key = SessionKey(self._tenant_id, new_session_id(time.time_ns() // 1_000_000 if timed else None))
        else:
            key = SessionKey(self._tenant_id, checked_session_id(session_id))
        emitter = self._emitter(key, self._identity, user_id, data_classes, new=session_id is None)
        session = Session(
            emitter,
            self._around,
            limits=limits or Limits(),
            state=state,
            state_schema_version=state_schema_version,
        )
        session.register(parent_session_id, restored_from_snapshot_id)
        return session

    def session(
        self,
        *,
        user_id: str,
        state: Mapping[str, Json] | None = None,
        limits: Limits | None = None,
        data_classes: Sequence[DataClass] = (),
        session_id: str | None = None,
        validate: Step | None = None,
        connect: Step | None = None,
    ) -> Session:
        """Register and start a session; use it in `with`, which ends it.

        What `validate` or `connect` raise is raised on, with the session ended in T03.
        """
        created = self.create(
            user_id=user_id, state=state, limits=limits, data_classes=data_classes, session_id=session_id
        )
        return created.start(validate=validate, connect=connect)

    def attach(self, session_id: str, *, user_id: str | None = None) -> Session:
        """Take up a session that exists: learn its state, epoch and content. Blocks.

        Beats only where our service owns the session. Raises `SessionLost`, `Unavailable`, `AuthenticationFailed`.
        """
        key = SessionKey(self._tenant_id, checked_session_id(session_id))
        session = Session(self._emitter(key, self._identity, user_id, ()), self._around)
        if session.sync().owner_service != self._identity.service_id:
            session.detach()
        return session

    def on_cleanup(self, handler: CleanupHandler) -> None:
        """Release resources of this service's ended sessions: `handler(request)` is called on a thread of its own.

        It returns (or yields) one `CleanupAction` per action of `request.actions`, in order, or None for all done.
        What it raises is reported with the first action that is missing. Once per client.
        """

        def emitter(key: SessionKey, epoch: int) -> Emitter:
            made = self._emitter(key, self._identity, None, ())
            made.epoch = epoch
            return made

        self._ports.cleanups.start(Answerer(handler, emitter, self._on_error))

    def flush(self, timeout_s: float = 10.0) -> int:
        """Wait until every event is acknowledged; return how many are not. Raises `AuthenticationFailed`."""
        return self._ports.transport.flush(timeout_s)

    def close(self) -> None:
        """Stop beating, drain, stop. Sessions are not ended: that is their owners' word. May be called twice."""
        if self._pid != os.getpid():
            return  # a forked child must not touch the parent's spool
        with self._closing:
            self._ports.cleanups.close()
            self._heartbeats.close()
            self._gate.open = False
            left = self._ports.transport.close(self._settings.close_timeout_s)
        if left:
            kept = "kept in the spool" if self._settings.delivery_policy == "spool" else "lost"
            self._on_error(ClientClosed(f"{left} events were not acknowledged before the client closed; {kept}"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self.close()
        return False

    def _emitter(
        self,
        key: SessionKey,
        identity: Identity,
        user_id: str | None,
        data_classes: Sequence[DataClass],
        *,
        new: bool = False,
    ) -> Emitter:
        if not self._gate.open:
            raise ClientClosed("the client is closed")
        sequence = self._sequences.of(key, new=new)
        return Emitter(
            self._ports.transport, self._gate, identity, key, sequence, user_id=user_id, data_classes=data_classes
        )

    def _forked(self) -> None:
        self._gate.open = False


def _close_all(clients: Iterable[SessionClient] = _clients) -> None:
    for client in list(clients):
        try:
            client.close()
        except SessionaryError as error:
            _log_error(error)


def _close_gates() -> None:
    for client in list(_clients):
        client._forked()


def _exit_on_sigterm() -> None:
    """Make an unhandled SIGTERM an orderly exit: sessions in `with` end, `atexit` drains. An existing handler rules."""
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _sigterm)


def _sigterm(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(_SIGTERM_EXIT_CODE)


_at_exit: Callable[[], None] = _close_all
atexit.register(_at_exit)
os.register_at_fork(after_in_child=_close_gates)

__all__ = ["SessionClient", "kafka_ports"]
