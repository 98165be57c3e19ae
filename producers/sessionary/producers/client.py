"""The client of an agent process: makes sessions, sends their events and heartbeats.

Each verb is a line: the work is done by the modules of `client_core`. It is one module, so that a
reader finds all verbs of a client in one place. `async_client` is made of this text by
`generation.async_faces`.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, Unpack

from sessionary.producers.client_core.core import ClientCore, over_core
from sessionary.producers.client_core.sessions import (
    NewSession,
    attach_core,
    create_core,
    follow_session,
    open_client,
    open_core,
    read_conversation,
    start_core,
)
from sessionary.producers.client_core.task_reads import TaskReads
from sessionary.producers.context.scope import EventMetadata
from sessionary.producers.context.traced_calls import F, traced
from sessionary.producers.control.cleanup_responder import CleanupHandler
from sessionary.producers.follower import SessionFollower
from sessionary.producers.migrations import CONCURRENCY, OnMigrated, take_migrations
from sessionary.producers.ports import Backlog, Counters, Json, OnError, PolicyInForce, Ports, TaskView
from sessionary.producers.process.guards import Lease, log_error
from sessionary.producers.run_ports import MessageView
from sessionary.producers.session.conversation import LAST_DEFAULT
from sessionary.producers.session.heartbeat import BeatsWith
from sessionary.producers.session.lifecycle import Step
from sessionary.producers.session.session import Session
from sessionary.producers.verdicts.notifications import Callbacks, OnFenced, OnPaused, OnRejected, OnResumed, OnTimedOut
from sessionary.schemas.ids import SessionId
from sessionary.schemas.types import DataClass, Limits

if TYPE_CHECKING:  # pydantic and asyncio take long to load
    from sessionary.producers import Replay, ReplayMode, ReplayStub
    from sessionary.producers.artifacts.library import ArtifactLibrary
    from sessionary.producers.session.async_session import AsyncSession
    from sessionary.producers.settings import ProducerSettings


class SessionClient:
    """Makes the sessions of one tenant, service and agent, and delivers their events.

    Create one per process; `for_tenant` makes those of further tenants. Thread-safe; a context
    manager that closes it. One that nothing refers to any more, nor a session of it, is closed in
    the background.

        client = SessionClient(tenant_id="acme", service_id="billing", agent_id="agent-1")
        with client, client.session(user_id="u1", state={"step": 0}) as session:
            session.activity("llm")

    A forked child may use the client too: from its first use there, the client has a separate
    producer id and spool. Sessions that were made before the fork stay the parent's: in the child
    their verbs raise `ClientClosed`, and `attach` shares them. When the process exits, the client
    is closed.

    Attributes:
        core: The client's implementation, for sessionary's own modules.
    """

    core: ClientCore
    _lease: Lease  # of the core

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
        on_rejected: OnRejected | None = None,
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
                were lost. Its exceptions are logged. Default: a warning in the log
                `sessionary.producers`.
            on_rejected: Called, on any thread, with each event that the processor rejected, of each
                session with the last 16 between two polls. Needs the setting `control_url`, as the
                next two do; without a callback `on_error` is called.
            on_timed_out: Called, on any thread, if a clock of a session has fired.
            on_fenced: Called, on any thread, if another process took over a session of this client.
            on_paused: Called, on any thread, if others paused a session of this client.
            on_resumed: Called, on any thread, once such a session resumes. Default: no call.
            ports: Replaces Kafka and the control API, for tests.
            artifacts: Where results above 256 KiB and large turns are kept: a library, a folder, or
                a URL that fsspec knows. Default: the setting `artifacts_url`.

        Raises:
            Invalid: A name is not allowed.
            SettingsError: A setting is malformed, or the place of artifacts is unknown. Errors that
                only the network shows, such as a wrong password, reach `on_error`.
            ProducerError: The process may start no thread, or gevent or eventlet has replaced its
                threads.
        """
        callbacks = Callbacks(on_error, on_rejected, on_timed_out, on_fenced, on_paused, on_resumed)
        names = (tenant_id, service_id, agent_id, agent_role, actor)
        self.core = open_client(names, settings, callbacks, ports, artifacts)
        self._lease = self.core.lease()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.core.describe()}>"

    @property
    def artifacts(self) -> "ArtifactLibrary | None":
        """Keeps values that are too large for events; None if the client has no library."""
        return self.core.artifacts

    @property
    def producer_id(self) -> str:
        """The client's UUID, in the envelope of its events."""
        return self.core.producer_id

    @property
    def counters(self) -> Counters:
        """Numbers of events and heartbeats sent, delivered and lost so far."""
        return Counters() if self.core.is_left else self.core.read_counters()

    @property
    def backlog(self) -> Backlog:
        """The events that Kafka has not acknowledged: how many, where, and how old."""
        return Backlog() if self.core.is_left else self.core.ports.transport.backlog

    @property
    def delivery_policy(self) -> PolicyInForce:
        """The delivery policy in effect: the one that was set, or `drop` if the spool is unusable.

        `disabled` if the client is turned off, `memory` if tests gave it ports in memory.
        """
        return self.core.ports.delivery_policy

    @property
    def may_block(self) -> bool:
        """True if verbs may wait for room in the queue: delivery policy `block`."""
        return self.core.ports.transport.may_block

    def create(
        self,
        *,
        user_id: str,
        state: Mapping[str, Json] | None = None,
        limits: Limits | None = None,
        data_classes: Sequence[DataClass] = (),
        session_id: SessionId | None = None,
        state_schema_version: int = 1,
        parent: "SessionId | Session | AsyncSession | None" = None,
        from_session: "SessionId | Session | AsyncSession | None" = None,
        from_snapshot: str | None = None,
        beats_with: BeatsWith = "process",
        snapshots: bool = False,
        **metadata: Unpack[EventMetadata],
    ) -> Session:
        """Create a session in state Idle; `start` starts it. Prefer `session`, which does both.

        Keep the returned object: heartbeats stop when it is garbage-collected.

        Args:
            user_id: The user that the session serves.
            state: The session's content, a JSON object of at most about 1 MiB.
            limits: Time and size limits that differ from the defaults.
            data_classes: Classes of the data that the session handles.
            session_id: An id of your own, as `open` takes it, which no session has yet; the call
                then waits for the processor. Default: a new UUID.
            state_schema_version: Version of the content's schema, the agent's own.
            parent: The session that this one belongs to, or its id.
            from_session: A session of the same user, or its id, with the content of whose last
                snapshot this one starts; it is the parent then. The call waits for the processor.
            from_snapshot: The id of this snapshot, which may be an older one, and of an archived
                session. Default: the last one.
            beats_with: The life that bounds the session's heartbeats: the process, or the thread or
                asyncio task that calls this. See `Session`.
            snapshots: Take a snapshot before and after each recorded tool call of the session.
            metadata: Metadata of the session's first event, as in `EventMetadata`.

        Returns:
            The session.

        Raises:
            Invalid: A value is not allowed.
            QueueFull: Under delivery policy `block` there was no room in time.
            ClientClosed: The client is closed.
            SessionExists: There is a session of this `session_id`; with one, also raises as `open`.
            SessionLost: The tenant has no session `from_session`, or its content is gone.
        """
        parts = (user_id, state, limits, data_classes, session_id, state_schema_version, parent)
        new = NewSession(*parts, (from_session, from_snapshot), beats_with, metadata, snapshots)
        return Session(create_core(self.core, new))

    def session(
        self,
        *,
        user_id: str,
        state: Mapping[str, Json] | None = None,
        limits: Limits | None = None,
        data_classes: Sequence[DataClass] = (),
        session_id: SessionId | None = None,
        parent: "SessionId | Session | AsyncSession | None" = None,
        from_session: "SessionId | Session | AsyncSession | None" = None,
        from_snapshot: str | None = None,
        validate: Step | None = None,
        connect: Step | None = None,
        beats_with: BeatsWith = "process",
        quota_wait_s: float | None = None,
        snapshots: bool = False,
        **metadata: Unpack[EventMetadata],
    ) -> Session:
        """Create and start a session. Use it in `with`, which ends it.

        Args:
            user_id: The user that the session serves.
            state: The session's content, a JSON object of at most about 1 MiB.
            limits: Time and size limits that differ from the defaults.
            data_classes: Classes of the data that the session handles.
            session_id: An id of your own, as `open` takes it, which no session has yet; the call
                then waits for the processor. Default: a new UUID.
            parent: The session that this one belongs to, or its id.
            from_session: A session of the same user, or its id, with the content of whose last
                snapshot this one starts; it is the parent then. The call waits for the processor.
            from_snapshot: The id of this snapshot, which may be an older one, and of an archived
                session. Default: the last one.
            validate: Called in phase `validating`. If it raises, the session ends with
                `invalid_config`, and the exception is raised again.
            connect: Called in phase `connecting`. If it raises, the session ends with
                `connection_failed`, and the exception is raised again.
            beats_with: The life that bounds the session's heartbeats: the process, or the thread or
                asyncio task that calls this. See `Session`.
            quota_wait_s: Longest wait for the tenant's quota; default: the client's setting.
            snapshots: Take a snapshot before and after each recorded tool call of the session.
            metadata: Metadata of all events up to the start's last one, as in `EventMetadata`.

        Returns:
            The session, in state Active. With quotas it also raises as `Session.start` does.

        Raises:
            Invalid: A value is not allowed.
            QueueFull: Under delivery policy `block` there was no room in time.
            ClientClosed: The client is closed.
            SessionExists: There is a session of this `session_id`; with one, also raises as `open`.
            SessionLost: The tenant has no session `from_session`, or its content is gone.
        """
        start_from = from_session, from_snapshot
        parts = (user_id, state, limits, data_classes, session_id, 1, parent, start_from, beats_with)
        return Session(start_core(self.core, NewSession(*parts, metadata, snapshots), validate, connect, quota_wait_s))

    def open(
        self,
        session_id: SessionId,
        *,
        user_id: str,
        state: Mapping[str, Json] | None = None,
        limits: Limits | None = None,
        data_classes: Sequence[DataClass] = (),
        parent: "SessionId | Session | AsyncSession | None" = None,
        from_session: "SessionId | Session | AsyncSession | None" = None,
        from_snapshot: str | None = None,
        validate: Step | None = None,
        connect: Step | None = None,
        beats_with: BeatsWith = "process",
        quota_wait_s: float | None = None,
        snapshots: bool = False,
        resume: bool = False,
        **metadata: Unpack[EventMetadata],
    ) -> Session:
        """Continue the session of an id of your own, or create and start it if there is none.

        Of several processes that open an id at once, one creates the session, and the others attach
        to it. All arguments but `user_id`, `beats_with` and `resume` are of a new session only.
        Leaving the `with` block ends the session; `lifecycle.detach` leaves it for a later `open`.

        A session that ended because it waited too long for its user, or before it was started, is
        continued in a new one that has it as parent, and so is one that is archived. The id then
        leads to the newest one. After any other end `SessionEnded` says what to do.

        An id is a UUID, as `uuid.UUID` or as text in any form, or any other text of 1 to 256
        characters, such as `thread-42`. A text is kept with the session as its `external_id`, and
        expires as personal data does. Each tenant has its own.

        Waits as `attach` does, and as long again if it creates the session.

        Args:
            session_id: The id: a UUID, or a text of your own.
            user_id: The user that the session serves.
            state: The content of a new session, a JSON object of at most about 1 MiB.
            limits: Time and size limits that differ from the defaults.
            data_classes: Classes of the data that the session handles.
            parent: The session that a new one belongs to, or its id.
            from_session: The session, or its id, that a new one starts from, as in `session`.
            from_snapshot: The id of its snapshot, which may be an older one. Default: the last one.
            validate: Called in phase `validating`, as in `session`.
            connect: Called in phase `connecting`, as in `session`.
            beats_with: The life that bounds the session's heartbeats, as in `session`.
            quota_wait_s: Longest wait for the tenant's quota; default: the client's setting.
            snapshots: Take a snapshot before and after each recorded tool call of the session.
            resume: Resume it if it has timed out, as after the death of its process.
            metadata: Metadata of all events up to the start's last one, as in `EventMetadata`.

        Returns:
            The session: a new one in state Active, or else in the state that the processor has.

        Raises:
            SessionExists: The session of this id is of another service, or serves another user.
            SessionEnded: It has ended, and its work is over.
            Unavailable: The control API does not answer, or another process starts it. Try again.
            DeliveryFailed: The creation could not be delivered.
            Rejected: The creation, or the resumption, was rejected.
            AuthenticationFailed: Kafka or the control API rejects our credentials.
            SettingsError: `SESSIONARY_CONTROL_URL` is not set.
            Invalid: A value is not allowed, such as an empty id, or one with control characters.
            QueueFull: Under delivery policy `block` there was no room in time.
            ClientClosed: The client is closed.
        """
        parts = user_id, state, limits, data_classes, session_id, 1, parent, (from_session, from_snapshot), beats_with
        new = NewSession(*parts, metadata, snapshots, resume)
        return Session(open_core(self.core, new, validate, connect, quota_wait_s))

    def attach(
        self,
        session_id: SessionId,
        *,
        user_id: str | None = None,
        take_over: bool = False,
        beats_with: BeatsWith = "process",
        snapshots: bool = False,
        **metadata: Unpack[EventMetadata],
    ) -> Session:
        """Continue a session that exists: read its state, epoch and content from the processor.

        Further events carry the session's data classes. Without `take_over` the session is shared
        with the processes that work in it already. Heartbeats are sent only if this client's
        service owns the session.

        With `take_over` the processor raises the epoch: later events of the former holder are
        rejected. The audit trail says who took over, and from whom. A service may take over its own
        sessions at any time. Another service may do so only after the owning service was silent for
        two heartbeats (a third of the inactivity budget: 20 s by default), and owns the session
        then. The session's state does not change: call `resume` or `recover` if that is needed.
        `claim` does the same by its plain name.

        Waits until the processor has judged all that was sent in the session so far, also what a
        dead process of this machine left in the spool: for at most the setting `verdict_timeout_s`;
        for the verdict on a take-over as long again.

        Args:
            session_id: The session's id: a UUID, or the text that it was opened with.
            user_id: The user in the envelope of further events.
            take_over: Take the session over from the process that holds it.
            beats_with: The life that bounds the session's heartbeats: the process, or the thread or
                asyncio task that calls this. See `Session`.
            snapshots: Take a snapshot before and after each recorded tool call made here.
            metadata: Metadata of the take-over, as in `EventMetadata`. Without `take_over` no event
                is sent.

        Returns:
            The session, in the state in which the processor has it.

        Raises:
            SessionLost: The session does not exist, or is archived.
            Unavailable: The control API does not answer, or there is no verdict on the take-over
                yet. The same call may be repeated; it then takes over once more.
            Rejected: The take-over was rejected. `reason` is `owner_alive` if the owning service,
                not ours, was heard lately, and `stale_epoch` if another process was faster.
            SessionEnded: A session that has ended cannot be taken over.
            DeliveryFailed: The take-over could not be delivered.
            AuthenticationFailed: Kafka or the control API rejects our credentials.
            SettingsError: `SESSIONARY_CONTROL_URL` is not set.
            Invalid: `session_id` cannot be an id.
            ClientClosed: The client is closed.
        """
        return Session(
            attach_core(
                self.core,
                session_id,
                user_id,
                take_over=take_over,
                beats_with=beats_with,
                snapshots=snapshots,
                metadata=metadata,
            )
        )

    def claim(
        self,
        session_id: SessionId,
        *,
        user_id: str | None = None,
        beats_with: BeatsWith = "process",
        snapshots: bool = False,
        **metadata: Unpack[EventMetadata],
    ) -> Session:
        """Take a session over from the process that holds it: `attach(take_over=True)`.

        A service may claim its own sessions at any time, and those of another service once that was
        silent for two heartbeats. The former holder is fenced off: its later events are rejected.
        With a control API, it is notified within a heartbeat interval (`on_fenced`). Unlike in a
        migration, the former holder is not asked, and the session is not held meanwhile.

        Args:
            session_id: The session's id: a UUID, or the text that it was opened with.
            user_id: The user in the envelope of further events.
            beats_with: The life that bounds the session's heartbeats, as in `attach`.
            snapshots: Take a snapshot before and after each recorded tool call made here.
            metadata: Metadata of the take-over, as in `EventMetadata`.

        Returns:
            The session, in the state in which the processor has it. Raises as `attach` does.
        """
        return Session(
            attach_core(
                self.core,
                session_id,
                user_id,
                take_over=True,
                beats_with=beats_with,
                snapshots=snapshots,
                metadata=metadata,
            )
        )

    def follow(
        self, session: "SessionId | Session | AsyncSession", *, timeout_s: float | None = None
    ) -> SessionFollower:
        """Follow a session: its state as it is committed now, then each change of it.

        The state's content, version, epoch, phase or owner may change, by any process of any
        service of the tenant. Changes that follow each other closely are reported as one, the
        newest; heartbeats and rejected events are not reported. A version or an epoch never falls.
        The iteration ends when the session is archived, and with the client.

            for view in client.follow(session_id):
                print(view.version, view.state_json)

        For a session that this client works in, pass the object: then the first state includes the
        client's own events. For all others an id is enough; nothing is attached. The control API is
        asked when the first state is read. A lost connection is opened again, with pauses of up to
        2 s.

        Args:
            session: A session, or its id.
            timeout_s: End an iteration if there is no change for so long; a later one continues.
                Default: wait without a limit. For the first state it is always the setting
                `verdict_timeout_s`.

        Returns:
            The follower. Close it, or use it in `with`, to give its connection back.

        Raises:
            Invalid: The id cannot be one.
            SettingsError: `SESSIONARY_CONTROL_URL` is not set.
            ClientClosed: The client is closed.

        The iteration raises as `SessionFollower.wait_next` does.
        """
        return follow_session(self.core, session, timeout_s)

    def conversation(
        self, session: "SessionId | Session | AsyncSession", last: int = LAST_DEFAULT, *, load_artifacts: bool = True
    ) -> Sequence[MessageView]:
        """Return the last turns of a session's conversation in order, whichever process sent them.

        For a session that this client works in, pass the object: then the client's own turns are
        included. For all others an id is enough; nothing is attached.

        Args:
            session: A session, or its id.
            last: How many turns, from 0 to 200.
            load_artifacts: Load large texts from the library. If not, `content` is the reference.

        Raises as `session.conversation.read` does, and `Invalid` for what cannot be an id.
        """
        return read_conversation(self.core, session, last, load_artifacts)

    def check_task_status(self, task_id: str) -> dict[str, Json]:
        """Return a task's status: `{"task_id", "status", "progress", "task_type"}`.

        The status is started, running, paused, completed, failed or cancelled; the progress is from
        0 to 1. For an unknown task, or one of another tenant: `{"error": "task not found"}`. A
        finished task is known for 30 days; for 14 more, it is `{"error": "task no longer kept"}`.

        Raises:
            Unavailable: The control API does not answer.
            AuthenticationFailed: The control API rejects our token.
            SettingsError: `SESSIONARY_CONTROL_URL` is not set.
        """
        return TaskReads(self.core).status(task_id)

    def get_task_results(self, task_id: str) -> dict[str, Json]:
        """Return a completed task's result: `{"task_id", "status", "result"}`.

        For any other task: `{"error": "task not completed. Current status: …"}`. For an unknown
        task: `{"error": "task not found"}`. For a task that vanished:
        `{"error": "task no longer kept"}`. A result of more than 256 KiB is loaded from the library
        of artifacts.

        Raises as `check_task_status`, and for a large result:
            SettingsError: The client has no library.
            ArtifactMissing: The library does not have it; `ArtifactDeleted` if it has expired.
            ArtifactDamaged: The body in the library is not the one that was saved.
        """
        return TaskReads(self.core).results(task_id)

    def get_intermediate_results(self, task_id: str) -> dict[str, Json]:
        """Return the results saved by `ctx.save_result`: `{"task_id", "status", "results"}`.

        `results` has the last value of each name, loaded from the library of artifacts; without
        those whose body has expired. A task that failed keeps them. Other answers are those of
        `get_task_results`; raises as it does.
        """
        return TaskReads(self.core).intermediate_results(task_id)

    def find_task(self, task_id: str) -> TaskView | None:
        """Return the known state of a task, with its error; None if the task is unknown.

        Raises as `check_task_status`, and `RunGone` if it finished and is no longer kept.
        """
        return TaskReads(self.core).find(task_id)

    def watch_task(self, task_id: str) -> Iterator[TaskView]:
        """Yield a task as it is now, and again after each change, until it has finished.

        Changes that follow each other closely may be seen as one. Raises as `check_task_status`,
        and `SessionLost` if the task is unknown.
        """
        return TaskReads(self.core).watch(task_id)

    def list_tasks(self, *, user: str | None = None, state: str | None = None) -> Iterator[TaskView]:
        """Yield the tenant's tasks that are open, or finished and still kept; in any order.

        They are asked for in parts of 100, while the caller takes them: a task that begins
        meanwhile may be missing. The views have no result and no plan: ask for these by the id.
        With a token of one user, only that user's tasks are listed.

            for view in client.list_tasks(user="u1", state="running"):
                print(view.task_id, view.progress)

        Args:
            user: Only tasks of this user; default: of all.
            state: Only tasks in this state: queued, started, running, paused, completed, failed or
                cancelled. A task that waits for a worker is queued.

        Raises as `check_task_status`, and `Invalid` for an unknown state or an empty user.
        """
        return TaskReads(self.core).list_all(user, state)

    def cancel_task(self, task_id: str, reason: str | None = None) -> dict[str, Json]:
        """Cancel a task: `{"task_id", "status": "cancelled"}`, once the processor has done it.

        Any process of the tenant may. What the task's worker sends from then on is rejected. The
        worker learns of it within a beat (5 s), or when it next calls a tool: then the verbs of the
        task raise `TaskStopped`, `ctx.is_cancelled` is true, and a coroutine function is cancelled.
        A call of a tool that has begun is not interrupted.

        For a task that is over: `{"error": "task already cancelled"}`, or `{"error": "task not
        cancelled. Current status: …"}`. Other answers are those of `check_task_status`.

        Args:
            task_id: The task.
            reason: Why, for people.

        Raises as `check_task_status`, and:
            Unavailable: Kafka does not acknowledge the request, or there is no verdict on it. The
                same call may be repeated.
            Rejected: The processor rejects the request.
            Invalid: The reason is no text that an event can carry.
            ClientClosed: The client is closed.
        """
        return TaskReads(self.core).cancel(task_id, reason)

    def on_cleanup(self, handler: CleanupHandler) -> None:
        """Release the resources of this service's ended sessions. Call once per client.

        `handler(request)` is called on a dedicated thread, also for sessions that ended before this
        client was made. After a crash it may be called again for the same `cleanup_id`. The answer
        carries the session's data classes. For sessions of other clients the control API is asked;
        without an answer within 2 s they are left out, and `on_error` is notified.

        Requests are read in the order of their partition. One that this version cannot read because
        its schema is newer stops its partition, and `on_error` gets `UnreadableRequest`; a newer
        client of the service continues with that request.

        Args:
            handler: Takes a `CleanupRequest`. Returns or yields one `CleanupAction` per action
                of `request.actions`, in order, or returns None if all are done. If it raises,
                the first action without a report is reported as failed. It raises `HostLost` if
                the resources are gone with their machine.

        Raises:
            ProducerError: The client already has a handler.
        """
        self.core.answer_cleanups(handler)

    def accept_migrations(self, function: OnMigrated, *, concurrency: int = CONCURRENCY) -> None:
        """Take the sessions that migrate to this client's service. Call once per client.

        Each session is loaded while its owner still works, and accepted once the processor holds it
        and this process has read the same state. Then `function(session)` is called, on a thread of
        the pool: the session belongs to this service, has its former state, and sends heartbeats.
        The program must keep the object: heartbeats stop once nothing refers to it.

            client.accept_migrations(sessions_at_work.put)

        If a process dies before it accepted a session, its successor or another process of the
        service takes the session. After the acceptance there is no further request: `claim` the
        session. A request that is delivered again, or whose migration is over, is dropped quietly.

        Args:
            function: Takes the `Session`. Its exceptions go to `on_error`.
            concurrency: How many sessions are taken at once, from the first request until
                `function` returns. Others wait until then, or until their time is over: first held
                sessions, then the others in the order of their offers. At most half of the sessions
                taken are only being loaded; the other half is reserved for held sessions.

        Raises:
            ProducerError: The client takes migrations already, or its ports serve none.
            Invalid: `concurrency` is no whole number from 1 on.
            SettingsError: `SESSIONARY_CONTROL_URL` is not set.
            ClientClosed: The client is closed.
        """
        take_migrations(self.core, function, concurrency)

    def for_tenant(self, tenant_id: str, *, api_token: str | None = None) -> Self:
        """Return a client of another tenant that uses this one's producer, spool and heartbeats.

        The new client has the same service and agent, but its own sessions and clean-up handler.
        Counters and backlog are those of all tenants of the producer. Closing the new client stops
        only its own heartbeats and clean-ups; closing this client closes the new one too. Does not
        block.

        Args:
            tenant_id: The tenant.
            api_token: The tenant's token for the control API. This client's own names its own
                tenant, so it is never used for another one.

        Raises:
            Invalid: The name is not allowed.
            SettingsError: The token is malformed.
            ClientClosed: This client is closed.
            ProducerError: The client was made with `ports` that serve one tenant only.
        """
        return over_core(type(self), self.core.for_tenant(tenant_id, api_token))

    def replay(
        self,
        session: "SessionId | Session | AsyncSession",
        *,
        at: int | str | None = None,
        mode: "ReplayMode" = "strict",
        stub: "ReplayStub | None" = None,
        allow: Collection[str] = (),
        baseline: "Callable[[Replay], object] | None" = None,
        timeout_s: float = 30.0,
    ) -> "Replay":
        """Return a replay of a session, for use in `with`: the agent's code runs again, alone.

            with client.replay(session_id) as replay, replay.session() as session:
                agent(session)
            print(replay.counts)

        In the block the agent's own code runs unchanged, in `replay.session()` or with
        `replay.client`. Calls of tools, of captured functions (`@traced(..., capture=True)`) and
        steps are answered from the record, by name and canonical arguments, in their order. What
        people and other services did is done again. Time and chance are those of the record
        (`Session.now`, `Session.random`). Nothing is executed and nothing is sent: all of it
        happens in a memory with the processor's own rules.

        A step of a run is answered by its output, unless the record has the calls in it: then its
        code runs again. A block of `Session.llm` needs a captured function in it.

        Args:
            session: The session, or its id. It may have ended.
            at: Where the replay ends, included: an offset, or the id of an event or a snapshot. The
                agent's code is stopped there. Default: the end of the record.
            mode: What becomes of a call that the record does not have. `strict`: the replay stops
                with an error. `stub`: `stub` gives the result. `fork`: the work goes on live, in a
                new session that has this one as parent; a tool with an effect is blocked.
            stub: Takes the call, and returns its result.
            allow: Names of tools with an effect that a fork may call.
            baseline: The unchanged agent, a function that takes a replay. It is replayed strictly
                before a fork, which counts only if that reproduces the record.
            timeout_s: Longest wait for Kafka, for each batch of the record.

        Returns:
            The replay. Entering its block reads the record.

        Raises:
            Invalid: The parameters make no sense together.

        Entering the block raises:
            SessionLost: The tenant has no such session.
            PointNotFound: The session has no such snapshot, event or offset.
            NotReplayable: The record is not whole, or of a newer version, or not of this client's
                service and agent.
            AuthenticationFailed: The client may not read the topic of events.
            Unavailable: Kafka does not answer.

        Calls in the block raise `ReplayMiss`, `NotReplayable` or `ReplayBlocked`; leaving it raises
        the first of these once more if the agent's code hid it, in mode `strict`.
        """
        from sessionary.producers import Replay  # few programs replay

        return Replay(self.core, baseline, session, at, mode, stub, allow, timeout_s)

    def traced(
        self,
        kind: str,
        *,
        name: str | None = None,
        side_effect: bool = False,
        capture: bool = False,
        omit: str | Iterable[str] = (),
    ) -> Callable[[F], F]:
        """Decorate a function so that each call is reported in the current session.

        The same as `sessionary.producers.traced`, which needs no client; the session may be of any
        client. For functions, coroutine functions, generators and asynchronous generators. The
        function's arguments, result and exceptions are unchanged.

        Args:
            kind: `tool` for the events of a tool call; any other word for those of a step.
            name: Name of the tool or the step. Default: the function's name.
            side_effect: The tool changes something outside.
            capture: The events have the call's arguments and its result.
            omit: Names of arguments that are not kept, such as secrets.
        """
        return traced(kind, name=name, side_effect=side_effect, capture=capture, omit=omit)

    def flush(self, timeout_s: float = 10.0) -> int:
        """Wait until Kafka has acknowledged all events sent so far.

        Returns the number of events that are not acknowledged after `timeout_s` seconds. Raises
        `AuthenticationFailed` as soon as Kafka rejects our credentials.
        """
        return 0 if self.core.is_left else self.core.ports.transport.flush(timeout_s)

    def close(self, timeout_s: float | None = None) -> None:
        """Stop heartbeats, deliver queued events, disconnect. Does not end sessions. Never raises.

        Blocks for at most `timeout_s` seconds, while events are not acknowledged, a clean-up
        handler runs, the verdict is open on a session that was left, or a thread of the client is
        at work. A spool keeps the remaining events for the next client, and `on_error` gets their
        number. A second call does nothing.

        Closes the clients that `for_tenant` made, too; on such a client, delivers nothing, and
        leaves the other tenants as they are.

        Args:
            timeout_s: Default: the setting `close_timeout_s`.
        """
        self.core.close(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self.core.close()
        return False
