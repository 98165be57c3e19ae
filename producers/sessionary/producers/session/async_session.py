"""The verbs of a session's life for asyncio."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from types import TracebackType
from typing import Literal, Self, Unpack

from sessionary.producers.context.marks import Marks
from sessionary.producers.context.scope import SessionBlock, active_session, enter_block, leave_block
from sessionary.producers.durable.flow import run_flow_async
from sessionary.producers.ports import Json, SessionView
from sessionary.producers.process.off_loop import open_or_leave
from sessionary.producers.session.async_conversation import AsyncSessionAgents
from sessionary.producers.session.collaboration.migration import TTL_S_DEFAULT, MigrationResult
from sessionary.producers.session.heartbeat import BeatsWith, IsAlive, lifeline_of
from sessionary.producers.session.life import Session
from sessionary.schemas.types import Answer, ErrorInfo, PauseKind, Phase, StartFailureReason

AsyncStep = Callable[[], Awaitable[object]]
"""A step of a session's start, a coroutine function; what it raises ends the session."""


class AsyncSession(AsyncSessionAgents):
    """One session, for asyncio. Made by `AsyncSessionClient`; an async context manager.

    Has the verbs of `Session`, with the same arguments and errors. None blocks the event loop:
    verbs hand their events over in place, which takes microseconds, and wait in a thread if they
    wait for Kafka, for the processor or for a store. Under delivery policy `block` they do all in a
    thread. Only the last event of an `async with` block is always sent in place, so that a
    cancelled task ends its session.

    Leaving the `async with` block ends the session with the event that is legal in its state:

    | left by | Active | Paused | Error |
    |---|---|---|---|
    | the end of the block | `closed` | `cancelled` | `unrecoverable` |
    | an exception | an error, then `unrecoverable` | `cancelled` | `unrecoverable` |
    | cancellation, `KeyboardInterrupt` | `abnormal_termination` | `cancelled` | `forced` |

    A session that was detached, or that the processor has timed out, is left as it is. In the block
    the session is the current one: see `current_session`.

    Every verb may be cancelled, for example by `asyncio.timeout`. What it had handed over stays
    sent, before all that is sent later; what it had not is never sent. Only verbs that end the
    session end it all the same. A cancelled `resume` or `recover` may still be granted: call it
    again to go on waiting. If the block is left instead, the session ends too: the client waits for
    the verdict on another thread, and ends it once more if that was granted.

    Heartbeats go on and stop as those of `Session` do; `beats_with="task"` ties them to the task
    that entered the block, or that awaited `create` or `attach`.
    """

    def __init__(
        self,
        open_session: Callable[[], Session],
        *,
        may_block: bool,
        starts: bool = False,
        validate: AsyncStep | None = None,
        connect: AsyncStep | None = None,
        beats_with: BeatsWith = "process",
        quota_wait_s: float | None = None,
        marks: Marks | None = None,
    ) -> None:
        """`marks`: of the events of the start, which entering `async with` sends if it `starts`."""
        super().__init__(may_block=may_block)
        self._open_session = open_session
        self._beats_with: BeatsWith = beats_with
        self._starts = starts
        self._validate = validate
        self._connect, self._quota_wait_s = connect, quota_wait_s
        self._marks: Marks = marks or {}
        self._block: SessionBlock | None = None  # while in `async with`

    async def start(
        self,
        *,
        validate: AsyncStep | None = None,
        connect: AsyncStep | None = None,
        quota_wait_s: float | None = None,
        **marks: Unpack[Marks],
    ) -> Self:
        """Start a created session: validate, connect, become Active.

        With quotas (setting `quotas`) it waits for its tenant's before; it beats meanwhile.

        Args:
            validate: Awaited in phase `validating`. If it raises, the session ends with
                `invalid_config`, and the exception is raised again.
            connect: Awaited in phase `connecting`. If it raises, the session ends with
                `connection_failed`, and the exception is raised again.
            quota_wait_s: Longest wait for the quota; default: the client's setting.
            marks: As in `emit`; of all events of the start.

        Returns:
            This session. Raises as `Session.start` does.
        """
        session = self.sync_session
        await run_flow_async(session._wait_admitted(quota_wait_s), session._waits.pause)
        await self._take_start_step("validating", "invalid_config", validate, marks)
        await self._take_start_step("connecting", "connection_failed", connect, marks)
        await self._run_verb(self.sync_session._mark_started, marks)
        return self

    async def fail_start(self, reason: StartFailureReason, message: str | None = None, **marks: Unpack[Marks]) -> None:
        """End a session that was created and could not be started. Raises as `emit` does.

        Args:
            reason: `invalid_config` or `connection_failed`.
            message: Details, for people.
            marks: As in `emit`.
        """
        await self._run_end(self.sync_session.fail_start, reason, message, **marks)

    async def enter_phase(self, phase: Phase, **marks: Unpack[Marks]) -> None:
        """Set the session's phase, an attribute beside its state. Raises as `emit` does.

        The other verbs send the phases that they need themselves. Only the owning service may
        change the phase; the processor refuses a phase that is out of order.
        """
        await self._run_verb(self.sync_session.enter_phase, phase, **marks)

    async def pause(self, reason: str | None = None, kind: PauseKind = "manual", **marks: Unpack[Marks]) -> str:
        """Pause an Active session, with a snapshot of its content. `resume` continues it.

        A pause may last as long as the limit `hold_ms`; then the processor ends the session.

        Args:
            reason: Why, for people.
            kind: `manual`, `review` or `migration`.
            marks: As in `emit`.

        Returns:
            The snapshot's id. Raises as `emit` does.
        """
        return await self._run_verb(self.sync_session.pause, reason, kind, **marks)

    async def ask(self, question: str, deadline: timedelta | float | None = None, **marks: Unpack[Marks]) -> Answer:
        """Pause the session with a question to a person, and wait for the answer.

        Args:
            question: What is asked, for people.
            deadline: For so long it may be answered, in seconds or as a `timedelta`; default: the
                limit `hold_ms`. Then it is refused.
            marks: As in `emit`.

        Returns:
            The answer. Raises as `Session.ask` does, which says more.
        """
        session = self.sync_session
        return await run_flow_async(session._ask_person(question, deadline, marks), session._waits.pause)

    async def resume(self, resume_plan: str | None = None, **marks: Unpack[Marks]) -> dict[str, Json]:
        """Make a Paused or timed-out session Active again. Waits for the processor's verdict.

        Waits for at most the setting `verdict_timeout_s`. After `Unavailable`, call `resume`
        again to go on waiting: nothing is sent twice.

        Args:
            resume_plan: How the work continues, for people.

        Returns:
            The session's content: that of the snapshot after a pause.

        Raises:
            Refused: The processor refused; the session is unchanged.
            Unavailable: There is no verdict yet.
            DeliveryFailed: The event could not be delivered.
            SessionLost: The session does not exist, or is archived.
            AuthenticationFailed: Kafka or the control API rejects our credentials.
            SettingsError: `SESSIONARY_CONTROL_URL` is not set.

        Otherwise raises as `emit` does.
        """
        # Sent before anything is awaited. Under policy `block` a thread sends it, which a cancelled
        # call does not stop; after the end of the block it raises there, as the session has ended.
        pending = await self._run_verb(self.sync_session._ask_resume, resume_plan, marks)
        return await asyncio.to_thread(self.sync_session._await_content, pending)

    async def migrate(
        self, *, to: str, ttl_s: float = TTL_S_DEFAULT, reason: str | None = None, **marks: Unpack[Marks]
    ) -> MigrationResult:
        """Move the session to another service, and wait until it is there.

        A client of that service takes it by `accept_migrations`. Then this object has left the
        session: it beats no more, and its verbs raise `SessionFenced`. A call that is cancelled
        calls nothing off: `sync` tells later where the session is.

        Args:
            to: The service that is to own the session.
            ttl_s: After so many seconds the migration is aborted; from 1 s to a day.
            reason: Why, for people.
            marks: As in `emit`.

        Returns what was completed. Raises as `Session.migrate` does.
        """
        session = self.sync_session
        offered = await self._run_verb(session._offer, to, ttl_s, reason, marks)
        return await run_flow_async(session._migration_flow(offered), session._waits.pause)

    async def error(
        self, error: BaseException | ErrorInfo, *, retryable: bool | None = None, **marks: Unpack[Marks]
    ) -> None:
        """Report an error from which the agent tries to recover; the session enters state Error.

        `recover` leads back to Active, if the error is retryable. Raises as `emit` does.

        Args:
            error: The exception, or an `ErrorInfo`.
            retryable: None means: time-outs, lost connections and `Unavailable` are retryable.
                Has no effect on an `ErrorInfo`.
            marks: As in `emit`.
        """
        await self._run_verb(self.sync_session.error, error, retryable=retryable, **marks)

    async def recover(self, resume_plan: str | None = None, **marks: Unpack[Marks]) -> dict[str, Json]:
        """Return from state Error to Active. Waits for the processor's verdict.

        Waits for at most the setting `verdict_timeout_s`. After `Unavailable`, call `recover`
        again to go on waiting: nothing is sent twice.

        Args:
            resume_plan: How the work continues, for people.

        Returns:
            The session's content. Raises as `resume` does.
        """
        pending = await self._run_verb(self.sync_session._ask_recovery, resume_plan, marks)
        return await asyncio.to_thread(self.sync_session._await_content, pending)

    async def complete(self, message: str | None = None, **marks: Unpack[Marks]) -> None:
        """End the session because its work is done. Raises as `emit` does."""
        await self._run_end(self.sync_session.complete, message, **marks)

    async def cancel(self, message: str | None = None, **marks: Unpack[Marks]) -> None:
        """End the session because its work was called off. Raises as `emit` does."""
        await self._run_end(self.sync_session.cancel, message, **marks)

    async def force_close(self, message: str | None = None, **marks: Unpack[Marks]) -> None:
        """End the session at once, with the most severe reason that is legal in its state.

        `forced` from Error, `cancelled` from Paused, else `abnormal_termination`. Raises as `emit`
        does.
        """
        await self._run_end(self.sync_session.force_close, message, **marks)

    async def close(self, message: str | None = None, **marks: Unpack[Marks]) -> None:
        """End the session with the event that is legal in its state.

        Does nothing if the session has ended, or if the processor has timed it out. Raises as
        `emit` does.
        """
        await self._run_end(self.sync_session.close, message, **marks)

    def detach(self) -> None:
        """Stop the heartbeats without ending the session, as if the agent had died.

        Another agent may `attach` and continue. `resume` starts the heartbeats again. Raises
        `ClientClosed` in a forked child whose parent made the session. Not a coroutine: it sends
        nothing.
        """
        self.sync_session.detach()

    async def sync(self) -> SessionView:
        """Read the session from the processor, and adopt its state, epoch, version and content.

        Waits until the processor has judged the last event that this client sent in the session,
        for at most the setting `verdict_timeout_s`. It does not wait for other clients' events.

        Returns:
            The session; its `verdict` is the one on that event.

        Raises:
            Unavailable: The event is not delivered yet, or the control API does not answer.
            SessionLost: The session does not exist, or is archived.
            SessionFenced: Another process took the session over from this object. Its heartbeats
                stop, and all its verbs raise this from now on.
            ClientClosed: This is a forked child, and its parent made the session.
            AuthenticationFailed: The control API rejects our token.
            SettingsError: `SESSIONARY_CONTROL_URL` is not set.
        """
        session = self.sync_session
        return await asyncio.to_thread(session._sync_unless_left, session._departures)

    async def __aenter__(self) -> Self:
        await self._open()
        self._block = enter_block(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        # In place even under policy `block`: a cancelled task must still send its last event.
        try:
            return self.sync_session.__exit__(kind, error, trace)
        finally:
            if self._block is not None:
                leave_block(self._block)

    # For the client

    async def _open(self) -> Self:
        """Create the session, and start it if asked, without making it the current one."""
        if self._session is None:
            is_alive = lifeline_of(self._beats_with)
            session = await self._open_in_thread() if self._may_block else self._open_session()
            self._use_session(session, is_alive)
            if self._starts:
                try:
                    await self.start(
                        validate=self._validate,
                        connect=self._connect,
                        quota_wait_s=self._quota_wait_s,
                        **self._marks,
                    )
                except BaseException as error:
                    session.__exit__(type(error), error, None)  # nothing else ends it: the block is not entered
                    raise
        return self

    # Inside

    def _use_session(self, session: Session, is_alive: IsAlive | None) -> None:
        session._bind_heartbeats(is_alive)
        self._session = session

    async def _open_in_thread(self) -> Session:
        """Open the session in a thread; if the caller is cancelled, end what the thread opens."""

        def leave(session: Session, error: BaseException) -> None:
            session.__exit__(type(error), error, None)

        return await open_or_leave(self._open_session, leave)

    async def _take_over(self, marks: Marks) -> None:
        """Take an attached session over, as `AsyncSessionClient.attach` describes it."""
        pending = await self._run_verb(self.sync_session._ask_take_over, marks)
        await asyncio.to_thread(self.sync_session._await_take_over, pending)

    async def _take_start_step(
        self, phase: Phase, failure: StartFailureReason, step: AsyncStep | None, marks: Marks
    ) -> None:
        await self._run_verb(self.sync_session.enter_phase, phase, **marks)
        if step is None:
            return
        try:
            await step()
        except BaseException as error:
            self.sync_session._abort_start(failure, error, marks)  # in place, as in `__aexit__`
            raise


def current_session() -> Session | AsyncSession | None:
    """Return the session whose `with` block the current code runs in; None outside any.

    Tasks, and threads and calls of thread pools that begin in the block, inherit it; those that
    live longer no longer see it once the block was left. In another process it is None.
    """
    found = active_session()
    return found if isinstance(found, Session | AsyncSession) else None


__all__ = ["AsyncSession", "AsyncStep", "current_session"]
