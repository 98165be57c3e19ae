"""The client of an agent process: makes sessions, sends their events and heartbeats."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, Unpack

from sessionary.producers.context.marks import Marks, envelope_fields
from sessionary.producers.control.cleanup_responder import CleanupHandler
from sessionary.producers.delivery.emitter import SenderIdentity
from sessionary.producers.errors import Invalid, ProducerError
from sessionary.producers.judgement.local_checks import check_limits, check_user
from sessionary.producers.judgement.notices import Callbacks, OnFenced, OnPaused, OnRefused, OnResumed, OnTimedOut
from sessionary.producers.lifetime.follow_questions import FollowQuestions
from sessionary.producers.lifetime.library_place import open_library
from sessionary.producers.lifetime.tenant_clients import TenantClients
from sessionary.producers.ports import Backlog, Counters, Json, OnError, PolicyInForce, Ports
from sessionary.producers.process.process_exit import log_error
from sessionary.producers.session.core import SessionCore, run_session_flow
from sessionary.producers.session.heartbeat import BeatsWith, IsAlive, lifeline_of
from sessionary.producers.session.lifecycle import Lifecycle, Step
from sessionary.producers.session.opening import attach_flow, new_core
from sessionary.producers.session.session import Session
from sessionary.schemas.fast_replace import speed_up
from sessionary.schemas.ids import SessionKey, checked_name, checked_session_id, new_session_id
from sessionary.schemas.types import DataClass, Limits

if TYPE_CHECKING:  # pydantic and asyncio take long to load
    from sessionary.producers.artifacts.library import ArtifactLibrary
    from sessionary.producers.session.async_session import AsyncSession
    from sessionary.producers.settings import ProducerSettings


class SessionClient(FollowQuestions, TenantClients):
    """Makes the sessions of one tenant, service and agent, and delivers their events.

    Create one per process; `for_tenant` makes those of further tenants. Thread-safe; a context
    manager that closes it.

        with SessionClient(tenant_id="acme", service_id="billing", agent_id="agent-1") as client:
            with client.session(user_id="u1", state={"step": 0}) as session:
                session.activity("llm")

    In a forked child the client works on, from its first use there, with a producer id and a spool
    of its own. The sessions that were made before the fork stay the parent's: in the child their
    verbs raise `ClientClosed`, and `attach` shares them. When the process exits, the client is
    closed.
    """

    def __init__(
        self,
        *,
        tenant_id: str,
        service_id: str,
        agent_id: str,
        agent_role: str | None = None,
        actor: str | None = None,
        settings: "ProducerSettings | None" = None,
        on_error: OnError = log_error,
        on_refused: OnRefused | None = None,
        on_timed_out: OnTimedOut | None = None,
        on_fenced: OnFenced | None = None,
        on_paused: OnPaused | None = None,
        on_resumed: OnResumed | None = None,
        ports: Ports | None = None,
        artifacts: "ArtifactLibrary | Path | str | None" = None,
    ) -> None:
        """Connect to Kafka in the background. Does not block, whatever does not answer.

        Args:
            tenant_id: The tenant. Names have 1 to 128 letters, digits, `.`, `_` or `-`.
            service_id: The service that owns the sessions and receives their clean-up requests.
            agent_id: The agent.
            agent_role: The agent's role, if it has one.
            actor: The principal on whose behalf the agent works.
            settings: Default: `ProducerSettings.from_env()`.
            on_error: Called, on any thread, with errors that no call can raise: Kafka is
                unavailable, credentials are refused, the spool is full or cannot be used, events
                were lost. What it raises is logged. Default: a warning in the log
                `sessionary.producers`.
            on_refused: Called, on any thread, with each event that the processor refused, of each
                session with the last 16 between two polls. Needs the setting `control_url`, as the
                next two do; without a callback `on_error` is called.
            on_timed_out: Called, on any thread, if a clock of a session has fired.
            on_fenced: Called, on any thread, if another process took over a session of this client.
            on_paused: Called, on any thread, if others paused a session of this client.
            on_resumed: Called, on any thread, once such a session goes on. By default nothing is.
            ports: Replaces Kafka and the control API, for tests.
            artifacts: Where results above 256 KiB and large turns are kept: a library, a folder, or
                a URL that fsspec knows. Default: the setting `artifacts_url`.

        Raises:
            Invalid: A name is not allowed.
            SettingsError: A setting is malformed, or the place of artifacts is unknown. What only
                the network can tell, such as a wrong password, reaches `on_error`.
        """
        identity = SenderIdentity(
            checked_name("service", service_id), checked_name("agent", agent_id), agent_role, actor
        )
        from sessionary.producers.settings import ProducerSettings

        given = settings if settings is not None else ProducerSettings.from_env()
        self._artifacts = open_library(given.artifacts_url if artifacts is None else artifacts)
        callbacks = Callbacks(on_error, on_refused, on_timed_out, on_fenced, on_paused, on_resumed)
        self._open_client(checked_name("tenant", tenant_id), identity, given, callbacks, ports)
        speed_up("sessionary")  # what a verb makes on its way to the spool; all its modules are loaded

    @property
    def artifacts(self) -> "ArtifactLibrary | None":
        """Keeps what is too large for events; None if the client has no library."""
        return self._artifacts

    @property
    def producer_id(self) -> str:
        """The client's UUID, in the envelope of its events."""
        return self._producer_id

    @property
    def counters(self) -> Counters:
        """Numbers of events and heartbeats sent, delivered and lost so far."""
        return Counters() if self._is_left else self._read_counters()

    @property
    def backlog(self) -> Backlog:
        """The events that Kafka has not acknowledged: how many, where, and how old."""
        return Backlog() if self._is_left else self._ports.transport.backlog

    @property
    def delivery_policy(self) -> PolicyInForce:
        """What becomes of events: the policy that was set, or `drop` if the spool cannot be used.

        `disabled` if the client is turned off, `memory` if tests gave it ports in memory.
        """
        return self._ports.delivery_policy

    @property
    def may_block(self) -> bool:
        """True if verbs may wait for room in the queue: delivery policy `block`."""
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
        parent: "str | Session | AsyncSession | None" = None,
        restored_from_snapshot_id: str | None = None,
        beats_with: BeatsWith = "process",
        **marks: Unpack[Marks],
    ) -> Session:
        """Create a session in state Idle; `start` starts it. Prefer `session`, which does both.

        Keep the returned object: heartbeats stop when it is garbage-collected.

        Args:
            user_id: The user that the session serves.
            state: The session's content, a JSON object of at most about 1 MiB.
            limits: Time and size limits that differ from the defaults.
            data_classes: Classes of the data that the session handles.
            session_id: A UUID; default: a new one.
            state_schema_version: Version of the content's schema, the agent's own.
            parent: The session that this one belongs to, or its id.
            restored_from_snapshot_id: Id of the snapshot that `state` was restored from.
            beats_with: What the session's heartbeats end with: the process, or the thread or
                asyncio task that calls this. See `Session`.
            marks: Of its first event, as in `Marks`.

        Returns:
            The session.

        Raises:
            Invalid: A value is not allowed.
            QueueFull: Under delivery policy `block` there was no room in time.
            ClientClosed: The client is closed.
        """
        given = (user_id, state, limits, data_classes, session_id, state_schema_version, parent)
        return Session(self._create_core(*given, restored_from_snapshot_id, beats_with, marks))

    def _create_core(
        self,
        user_id: str,
        state: Mapping[str, Json] | None,
        limits: Limits | None,
        data_classes: Sequence[DataClass],
        session_id: str | None,
        state_schema_version: int,
        parent: "str | Session | AsyncSession | None",
        restored_from_snapshot_id: str | None,
        beats_with: BeatsWith,
        marks: Marks,
    ) -> SessionCore:
        if session_id is None:
            time_ordered = self._settings.session_id_version == 7
            key = SessionKey(self._tenant_id, new_session_id(time.time_ns() // 1_000_000 if time_ordered else None))
        else:
            key = SessionKey(self._tenant_id, checked_session_id(session_id))
        limits, is_alive, parent_id = check_limits(limits), lifeline_of(beats_with), self._id_of(parent)
        fields = envelope_fields(marks)
        emitter = self._new_emitter(key, check_user(user_id), data_classes, new=session_id is None)
        try:
            core = new_core(
                emitter,
                self._services,
                limits=limits,
                state=state,
                state_schema_version=state_schema_version,
                is_alive=is_alive,
            )
            Lifecycle(core).register(parent_id, restored_from_snapshot_id, fields)
        except BaseException:
            if not emitter.last_seq:  # neither this call nor another object sent anything in the session
                emitter.forget_sequence()
            raise
        return core

    def session(
        self,
        *,
        user_id: str,
        state: Mapping[str, Json] | None = None,
        limits: Limits | None = None,
        data_classes: Sequence[DataClass] = (),
        session_id: str | None = None,
        parent: "str | Session | AsyncSession | None" = None,
        validate: Step | None = None,
        connect: Step | None = None,
        beats_with: BeatsWith = "process",
        quota_wait_s: float | None = None,
        **marks: Unpack[Marks],
    ) -> Session:
        """Create and start a session. Use it in `with`, which ends it.

        Args:
            user_id: The user that the session serves.
            state: The session's content, a JSON object of at most about 1 MiB.
            limits: Time and size limits that differ from the defaults.
            data_classes: Classes of the data that the session handles.
            session_id: A UUID; default: a new one.
            parent: The session that this one belongs to, or its id.
            validate: Called in phase `validating`. If it raises, the session ends with
                `invalid_config`, and the exception is raised again.
            connect: Called in phase `connecting`. If it raises, the session ends with
                `connection_failed`, and the exception is raised again.
            beats_with: What the session's heartbeats end with: the process, or the thread or
                asyncio task that calls this. See `Session`.
            quota_wait_s: Longest wait for the tenant's quota; default: the client's setting.
            marks: Of all events up to the start's last one, as in `Marks`.

        Returns:
            The session, in state Active. With quotas it also raises as `Session.start` does.

        Raises:
            Invalid: A value is not allowed.
            QueueFull: Under delivery policy `block` there was no room in time.
            ClientClosed: The client is closed.
        """
        created = self.create(
            user_id=user_id,
            state=state,
            limits=limits,
            data_classes=data_classes,
            session_id=session_id,
            parent=parent,
            beats_with=beats_with,
            **marks,
        )
        return created.start(validate=validate, connect=connect, quota_wait_s=quota_wait_s, **marks)

    def attach(
        self,
        session_id: str,
        *,
        user_id: str | None = None,
        take_over: bool = False,
        beats_with: BeatsWith = "process",
        **marks: Unpack[Marks],
    ) -> Session:
        """Continue a session that exists: read its state, epoch and content from the processor.

        Further events carry the session's data classes. Without `take_over` the session is shared
        with the processes that work in it already. Heartbeats are sent only if this client's
        service owns the session.

        With `take_over` the processor raises the epoch: what the former holder still sends is
        refused. The audit trail says who took over, and from whom. A service may take its own
        sessions over at any time; another one only after the owning service was silent for two
        heartbeats (a third of the inactivity budget: 20 s by default), and owns the session then.
        The session's state does not change: call `resume` or `recover` if it needs that. `claim` is
        the same by its plain name.

        Waits as `Session.sync` does, for at most the setting `verdict_timeout_s`; for the verdict
        on a take-over as long again.

        Args:
            session_id: The session's UUID.
            user_id: The user in the envelope of further events.
            take_over: Take the session over from the process that holds it.
            beats_with: What the session's heartbeats end with: the process, or the thread or
                asyncio task that calls this. See `Session`.
            marks: Of the take-over, as in `Marks`. Without `take_over` no event is sent.

        Returns:
            The session, in the state in which the processor has it.

        Raises:
            SessionLost: The session does not exist, or is archived.
            Unavailable: The control API does not answer, or there is no verdict on the take-over
                yet. The same call may be repeated; it then takes over once more.
            Refused: The take-over was refused. `reason` is `owner_alive` if the owning service, not
                ours, was heard lately, and `stale_epoch` if another process was faster.
            SessionEnded: A session that has ended cannot be taken over.
            DeliveryFailed: The take-over could not be delivered.
            AuthenticationFailed: Kafka or the control API rejects our credentials.
            SettingsError: `SESSIONARY_CONTROL_URL` is not set.
            Invalid: `session_id` is not a UUID.
            ClientClosed: The client is closed.
        """
        envelope_fields(marks)  # raises for an unknown name before anything is asked
        core = self._open_attached(session_id, user_id, lifeline_of(beats_with), may_beat=not take_over)
        return Session(run_session_flow(core, attach_flow(core, take_over, marks)))

    def on_cleanup(self, handler: CleanupHandler) -> None:
        """Release the resources of this service's ended sessions. Call once per client.

        `handler(request)` is called on a thread of its own, also for sessions that ended before
        this client was made. After a crash it may be called again for the same `cleanup_id`. The
        answer carries the session's data classes. For sessions of other clients the control API
        is asked; without an answer within 2 s they are left out, which `on_error` is told.

        Requests are read in the order of their partition. One that this version cannot read
        because its schema is newer stops its partition, and `on_error` gets `UnreadableRequest`;
        a newer client of the service goes on with it.

        Args:
            handler: Takes a `CleanupRequest`. Returns or yields one `CleanupAction` per action
                of `request.actions`, in order, or returns None if all are done. If it raises,
                the first action without a report is reported as failed.

        Raises:
            ProducerError: The client already has a handler.
        """
        self._reopen_in_child()
        if self._cleanup_handler is not None and not self._is_parents:
            raise ProducerError("this client already has a clean-up handler; call on_cleanup once")
        self._start_cleanups(handler)
        self._cleanup_handler = handler

    def flush(self, timeout_s: float = 10.0) -> int:
        """Wait until Kafka has acknowledged all events sent so far.

        Returns the number of events that are not acknowledged after `timeout_s` seconds. Raises
        `AuthenticationFailed` as soon as Kafka rejects our credentials.
        """
        return 0 if self._is_left else self._ports.transport.flush(timeout_s)

    def close(self, timeout_s: float | None = None) -> None:
        """Stop heartbeats, deliver what is queued, disconnect. Does not end sessions. Never raises.

        Blocks for at most `timeout_s` seconds, while events are not acknowledged, a clean-up
        handler runs, the verdict is open on a session that was left, or a thread of the client is
        at work; a spool keeps the rest for the next client, and `on_error` is told how many. A
        second call does nothing.

        Closes the clients that `for_tenant` made, too; on such a client, delivers nothing, and
        leaves the other tenants as they are.

        Args:
            timeout_s: Default: the setting `close_timeout_s`.
        """
        self._close_in_time(self._settings.close_timeout_s if timeout_s is None else timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self.close()
        return False

    def _open_attached(
        self, session_id: str, user_id: str | None, is_alive: IsAlive | None = None, *, may_beat: bool
    ) -> SessionCore:
        """Return a session that exists, before anything is read of it.

        One that may not beat sends no heartbeat before it asks for a verdict.
        """
        key = SessionKey(self._tenant_id, checked_session_id(session_id))
        core = new_core(self._new_emitter(key, user_id, ()), self._services, is_alive=is_alive)
        if not may_beat:
            core.detach()
        return core

    def _id_of(self, parent: "str | Session | AsyncSession | None") -> str | None:
        """Return a parent's session id. Raises `Invalid`."""
        if parent is None or isinstance(parent, str):
            return None if parent is None else checked_session_id(parent, "parent session id")
        key = parent.core.emitter.key
        if key.tenant_id != self._tenant_id:
            raise Invalid("invalid_value", f"the parent session is of tenant {key.tenant_id}, not {self._tenant_id}")
        return key.session_id


__all__ = ["SessionClient"]
