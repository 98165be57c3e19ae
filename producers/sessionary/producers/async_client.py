"""The client of an agent process for asyncio, over `SessionClient`."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, Unpack

from sessionary.producers.artifacts.library import ArtifactLibrary
from sessionary.producers.client import SessionClient
from sessionary.producers.context.marks import Marks, envelope_fields
from sessionary.producers.context.traced_calls import F
from sessionary.producers.control.cleanup_responder import CleanupHandler
from sessionary.producers.judgement.notices import OnFenced, OnPaused, OnRefused, OnResumed, OnTimedOut
from sessionary.producers.lifetime.async_migration_verbs import AsyncMigrationVerbs
from sessionary.producers.lifetime.async_questions import AsyncQuestions
from sessionary.producers.ports import Backlog, Counters, Json, OnError, PolicyInForce, Ports
from sessionary.producers.process.process_exit import log_error
from sessionary.producers.session.async_opening import AsyncStep, Opening, open_core, run_session_flow_async
from sessionary.producers.session.async_session import AsyncSession
from sessionary.producers.session.core import SessionCore
from sessionary.producers.session.heartbeat import BeatsWith, lifeline_of
from sessionary.producers.session.opening import attach_flow
from sessionary.producers.session.session import Session
from sessionary.producers.settings import ProducerSettings
from sessionary.schemas.types import DataClass, Limits


class AsyncSessionClient(AsyncQuestions, AsyncMigrationVerbs):
    """Makes sessions as `SessionClient` does, for asyncio, with the same arguments and errors.

    None blocks the event loop. Create one per process; `for_tenant` makes those of further tenants.

        client = AsyncSessionClient(tenant_id="acme", service_id="billing", agent_id="agent-1")
        async with client:
            async with client.session(user_id="u1", state={"step": 0}) as session:
                await session.activity("llm")

    What happens in a forked child, and at the process's exit, is said at `SessionClient`.
    """

    _client: SessionClient

    def __init__(
        self,
        *,
        tenant_id: str,
        service_id: str,
        agent_id: str,
        agent_role: str | None = None,
        actor: str | None = None,
        settings: ProducerSettings | None = None,
        on_error: OnError = log_error,
        on_refused: OnRefused | None = None,
        on_timed_out: OnTimedOut | None = None,
        on_fenced: OnFenced | None = None,
        on_paused: OnPaused | None = None,
        on_resumed: OnResumed | None = None,
        ports: Ports | None = None,
        artifacts: ArtifactLibrary | Path | str | None = None,
    ) -> None:
        """Connect to Kafka in the background. Does not block, whatever does not answer.

        Args:
            tenant_id: The tenant. Names have 1 to 128 letters, digits, `.`, `_` or `-`.
            service_id: The service that owns the sessions and receives their clean-up requests.
            agent_id: The agent.
            agent_role: The agent's role, if it has one.
            actor: The principal on whose behalf the agent works.
            settings: Default: `ProducerSettings.from_env()`.
            on_error: As in `SessionClient`, and so are all that follow. Called on any thread.
            on_refused: Called with each event that the processor refused.
            on_timed_out: Called if a clock of a session has fired.
            on_fenced: Called if another process took over a session of this client.
            on_paused: Called if others paused one.
            on_resumed: Called once it goes on.
            ports: Replaces Kafka and the control API, for tests.
            artifacts: Where results above 256 KiB are kept.

        Raises as `SessionClient` does.
        """
        self._client = SessionClient(
            tenant_id=tenant_id,
            service_id=service_id,
            agent_id=agent_id,
            agent_role=agent_role,
            actor=actor,
            settings=settings,
            on_error=on_error,
            on_refused=on_refused,
            on_timed_out=on_timed_out,
            on_fenced=on_fenced,
            on_paused=on_paused,
            on_resumed=on_resumed,
            ports=ports,
            artifacts=artifacts,
        )

    @classmethod
    def wrap(cls, client: SessionClient) -> Self:
        """Return a client for asyncio over `client`, for example over one of `memory_client`.

        Closing either closes both.
        """
        wrapper = cls.__new__(cls)
        wrapper._client = client
        return wrapper

    @property
    def sync_client(self) -> SessionClient:
        """The `SessionClient` underneath."""
        return self._client

    @property
    def artifacts(self) -> ArtifactLibrary | None:
        """Keeps what is too large for events; None if the client has no library."""
        return self._client.artifacts

    @property
    def producer_id(self) -> str:
        """The client's UUID, in the envelope of its events."""
        return self._client.producer_id

    @property
    def counters(self) -> Counters:
        """Numbers of events and heartbeats sent, delivered and lost so far."""
        return self._client.counters

    @property
    def backlog(self) -> Backlog:
        """The events that Kafka has not acknowledged: how many, where, and how old."""
        return self._client.backlog

    @property
    def delivery_policy(self) -> PolicyInForce:
        """What becomes of events, as `SessionClient.delivery_policy` describes it."""
        return self._client.delivery_policy

    @property
    def may_block(self) -> bool:
        """True if verbs may wait, in a thread, for room in the queue: delivery policy `block`."""
        return self._client.may_block

    async def create(
        self,
        *,
        user_id: str,
        state: Mapping[str, Json] | None = None,
        limits: Limits | None = None,
        data_classes: Sequence[DataClass] = (),
        session_id: str | None = None,
        state_schema_version: int = 1,
        parent: str | Session | AsyncSession | None = None,
        restored_from_snapshot_id: str | None = None,
        beats_with: BeatsWith = "process",
        **marks: Unpack[Marks],
    ) -> AsyncSession:
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
            beats_with: What the heartbeats end with: the process, or this thread or task.
            marks: Of its first event, as in `Marks`.

        Raises:
            Invalid: A value is not allowed.
            QueueFull: Under delivery policy `block` there was no room in time.
            ClientClosed: The client is closed.
        """

        def open_it() -> SessionCore:
            return self._client.create(
                user_id=user_id,
                state=state,
                limits=limits,
                data_classes=data_classes,
                session_id=session_id,
                state_schema_version=state_schema_version,
                parent=parent,
                restored_from_snapshot_id=restored_from_snapshot_id,
                **marks,
            ).core

        is_alive = lifeline_of(beats_with)
        core = await open_core(open_it, may_block=self.may_block)
        core.beats.bind(is_alive)
        return AsyncSession(core)

    def session(
        self,
        *,
        user_id: str,
        state: Mapping[str, Json] | None = None,
        limits: Limits | None = None,
        data_classes: Sequence[DataClass] = (),
        session_id: str | None = None,
        parent: str | Session | AsyncSession | None = None,
        validate: AsyncStep | None = None,
        connect: AsyncStep | None = None,
        beats_with: BeatsWith = "process",
        quota_wait_s: float | None = None,
        **marks: Unpack[Marks],
    ) -> AsyncSession:
        """Return a session that `async with` creates, starts and ends. Not a coroutine.

        Args:
            user_id: The user that the session serves.
            state: The session's content, a JSON object of at most about 1 MiB.
            limits: Time and size limits that differ from the defaults.
            data_classes: Classes of the data that the session handles.
            session_id: A UUID; default: a new one.
            parent: The session that this one belongs to, or its id.
            validate: Awaited in phase `validating`. If it raises, the session ends with
                `invalid_config`, and the exception is raised again.
            connect: Awaited in phase `connecting`; if it raises: `connection_failed`, as above.
            beats_with: What the heartbeats end with: the process, or the entering thread or task.
            quota_wait_s: Longest wait for the tenant's quota; default: the client's setting.
            marks: Of all events up to the start's last one, as in `Marks`.

        Returns:
            The session, not created yet. Entering it raises as `create` and `Session.start` do.
        """

        def open_it() -> SessionCore:
            return self._client.create(
                user_id=user_id,
                state=state,
                limits=limits,
                data_classes=data_classes,
                session_id=session_id,
                parent=parent,
                **marks,
            ).core

        envelope_fields(marks)  # an unknown name is an error here, not in `async with`
        return AsyncSession(Opening(open_it, self.may_block, beats_with, validate, connect, quota_wait_s, marks))

    async def attach(
        self,
        session_id: str,
        *,
        user_id: str | None = None,
        take_over: bool = False,
        beats_with: BeatsWith = "process",
        **marks: Unpack[Marks],
    ) -> AsyncSession:
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

        Waits as `AsyncSession.sync` does, for at most the setting `verdict_timeout_s`; for the
        verdict on a take-over as long again.

        Args:
            session_id: The session's UUID.
            user_id: The user in the envelope of further events.
            take_over: Take the session over from the process that holds it. A call that is
                cancelled before the verdict may still take it over, but sends no heartbeat.
            beats_with: What the session's heartbeats end with: the process, or the thread or task
                that calls this. See `AsyncSession`.
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
        is_alive = lifeline_of(beats_with)
        core = self._client._open_attached(session_id, user_id, is_alive, may_beat=not take_over)
        return AsyncSession(await run_session_flow_async(core, attach_flow(core, take_over, marks)))

    def for_tenant(self, tenant_id: str, *, api_token: str | None = None) -> Self:
        """Return a client of another tenant that uses this one's producer, spool and heartbeats.

        It has the same service and agent, and sessions and a clean-up handler of its own. Its
        counters and backlog are those of all tenants of the producer. Closing it stops its
        heartbeats and its clean-ups, and nothing of the other tenants; closing this client closes
        it too. Not a coroutine.

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
        return self.wrap(self._client.for_tenant(tenant_id, api_token=api_token))

    def traced(self, kind: str, *, name: str | None = None, side_effect: bool = False) -> Callable[[F], F]:
        """Decorate a function so that each call is reported in the current session.

        The same as `sessionary.producers.traced`, which needs no client; the session may be of any
        client. For functions, coroutine functions, generators and asynchronous generators. What the
        function takes, returns and raises stays as it is; arguments and results are not reported.

        Args:
            kind: `tool` for the events of a tool call; any other word for those of a step.
            name: Name of the tool or the step. Default: the function's name.
            side_effect: The tool changes something outside.
        """
        return self._client.traced(kind, name=name, side_effect=side_effect)

    def on_cleanup(self, handler: CleanupHandler) -> None:
        """Release the resources of this service's ended sessions. Call once per client.

        `handler(request)` is a plain function, called on a thread of its own, also for sessions
        that ended before this client was made; after a crash maybe again. Not a coroutine.

        Requests are read in the order of their partition. One that this version cannot read, as its
        schema is newer, stops it, and `on_error` gets `UnreadableRequest`.

        Args:
            handler: Takes a `CleanupRequest`. Returns or yields one `CleanupAction` per action
                of `request.actions`, in order, or returns None if all are done. If it raises,
                the first action without a report is reported as failed.

        Raises:
            ProducerError: The client already has a handler.
        """
        self._client.on_cleanup(handler)

    async def flush(self, timeout_s: float = 10.0) -> int:
        """Wait until Kafka has acknowledged all events sent so far.

        Returns the number of events that are not acknowledged after `timeout_s` seconds. Raises
        `AuthenticationFailed` as soon as Kafka rejects our credentials.
        """
        return await asyncio.to_thread(self._client.flush, timeout_s)

    async def close(self, timeout_s: float | None = None) -> None:
        """Stop heartbeats, deliver what is queued, disconnect. Does not end sessions. Never raises.

        Waits for at most `timeout_s` seconds (default: the setting `close_timeout_s`), while events
        are not acknowledged, a clean-up handler runs, the verdict is open on a session that was
        left, or a thread of the client is at work; a spool keeps the rest for the next client, and
        `on_error` is told how many. A second call does nothing. Closes the clients that
        `for_tenant` made, too; on such a client, delivers nothing, and leaves the others open.
        """
        await asyncio.to_thread(self._client.close, timeout_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        await self.close()
        return False


__all__ = ["AsyncSessionClient"]
