"""The local view of a session and the verbs for its work, for asyncio, over a `Session`."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from functools import partial
from typing import Unpack

from sessionary.producers.context.marks import BlockMarks, Marks
from sessionary.producers.context.model_call import ModelCall
from sessionary.producers.context.scope import CallReporter, P, T, bind_function
from sessionary.producers.durable.recorder import Recorder
from sessionary.producers.durable.run_block import Run
from sessionary.producers.ports import Json
from sessionary.producers.process.off_loop import run_anyway, run_unless_left
from sessionary.producers.session.life import Session
from sessionary.schemas.events import Payload
from sessionary.schemas.types import RunMode


class AsyncSessionWork:
    """The properties and the verbs for the work in a session, for asyncio."""

    def __init__(self, *, may_block: bool) -> None:
        self._session: Session | None = None
        self._may_block = may_block

    @property
    def sync_session(self) -> Session:
        """The `Session` underneath. Raises `RuntimeError` before `async with` is entered."""
        if self._session is None:
            raise RuntimeError("the session is not open yet: use `async with client.session(...)`")
        return self._session

    @property
    def session_id(self) -> str:
        """The session's UUID."""
        return self.sync_session.session_id

    @property
    def local_state(self) -> str:
        """The session's state as far as this object knows it.

        One of Idle, Active, Paused, Timeout, Error and Terminated. `sync` brings it up to date.
        """
        return self.sync_session.local_state

    @property
    def epoch(self) -> int:
        """The ownership epoch: 1, and one more after each resume and each recovery."""
        return self.sync_session.epoch

    @property
    def version(self) -> int:
        """The version of `state`, from 1."""
        return self.sync_session.version

    @property
    def state(self) -> dict[str, Json]:
        """A copy of the session's content as far as this object knows it."""
        return self.sync_session.state

    @property
    def lost(self) -> bool:
        """True if the processor refuses what this object sends, as far as this object knows.

        It was timed out for good, ended or taken over by others, or its creation was refused. Verbs
        go on as before: what they send is kept on the rejected topic.
        """
        return self.sync_session.lost

    @property
    def context_bytes(self) -> int | None:
        """Size of the agent's context in bytes, sent with each further event; None if unknown."""
        return self.sync_session.context_bytes

    @context_bytes.setter
    def context_bytes(self, value: int | None) -> None:
        self.sync_session.context_bytes = value

    async def emit(
        self,
        payload: Payload,
        *,
        occurred_at: datetime | None = None,
        **marks: Unpack[Marks],
    ) -> str:
        """Send an event of any class in `sessionary.schemas.events`.

        Does not change `local_state`: prefer the other verbs for events of the session's life.

        Args:
            payload: The event.
            occurred_at: When it happened; must have a timezone. None means now.
            marks: What else the envelope says, as in `Marks`; every verb takes them.

        Returns:
            The event's id, a UUID.

        Raises:
            Invalid: A value does not fit the event's schema, the event is larger than 1 MiB, or
                `occurred_at` has no timezone.
            QueueFull: Under delivery policy `block` there was no room in time.
            SessionEnded: This object has ended the session.
            SessionFenced: Another process took the session over, and `sync` has found out.
            VerdictPending: A verdict is awaited.
            ClientClosed: The client is closed.
        """
        return await self._run_verb(
            self.sync_session.emit,
            payload,
            occurred_at=occurred_at,
            **marks,
        )

    async def activity(self, kind: str, text: str | None = None, **marks: Unpack[Marks]) -> str:
        """Report work of some kind (`llm`, `tool`, `user` …). It counts as a sign of life.

        Returns the event's id. Raises as `emit` does.
        """
        return await self._run_verb(self.sync_session.activity, kind, text, **marks)

    async def info(self, text: str, **marks: Unpack[Marks]) -> str:
        """Report a text for people, as an activity of kind `info`.

        Returns the event's id. Raises as `emit` does.
        """
        return await self._run_verb(self.sync_session.info, text, **marks)

    async def progress(
        self, progress: float, total: float | None = None, message: str | None = None, **marks: Unpack[Marks]
    ) -> str:
        """Report progress of the current work: `progress` out of `total`, in any unit.

        Returns the event's id. Raises as `emit` does.
        """
        return await self._run_verb(self.sync_session.progress, progress, total, message, **marks)

    async def usage(
        self,
        *,
        model: str | None = None,
        tokens_in: int = 0,
        tokens_out: int = 0,
        model_cost_usd_micros: int = 0,
        tool_cost_usd_micros: int = 0,
        is_timeout_retry: bool = False,
        retry_of: str | None = None,
        **marks: Unpack[Marks],
    ) -> str:
        """Report tokens and cost of one call of a model or a tool.

        Args:
            model: Name of the model.
            tokens_in: Tokens of the prompt.
            tokens_out: Tokens of the answer.
            model_cost_usd_micros: Cost of the model, in millionths of a US dollar.
            tool_cost_usd_micros: Cost of the tool, in millionths of a US dollar.
            is_timeout_retry: True if the call repeats one that timed out.
            retry_of: Id of the usage event that this call repeats.
            marks: As in `emit`.

        Returns:
            The event's id. Raises as `emit` does.
        """
        return await self._run_verb(
            self.sync_session.usage,
            model=model,
            tokens_in=tokens_in,
            tokens_out=tokens_out,
            model_cost_usd_micros=model_cost_usd_micros,
            tool_cost_usd_micros=tool_cost_usd_micros,
            is_timeout_retry=is_timeout_retry,
            retry_of=retry_of,
            **marks,
        )

    async def update_state(self, state: Mapping[str, Json], *, wait: bool = True, **marks: Unpack[Marks]) -> int:
        """Replace the session's content, and wait until Kafka has the update.

        The processor refuses an update that is based on a version which is no longer the last
        one; `sync` shows what it has. The verb does not wait for that.

        Args:
            state: The new content, a JSON object of at most about 1 MiB.
            wait: Return once the broker has acknowledged the update, so that an answer that is
                given after it cannot be ahead of the recorded content. False: as `emit`, at once.
            marks: As in `emit`.

        Returns:
            The version of the new content; the old one if the session is not Active.

        Raises:
            Invalid: `state` cannot be written as JSON, or is too large.
            Unavailable: The broker has not acknowledged the update within `verdict_timeout_s`, or
                it is lost. If it is not lost it is still sent: do not repeat it.

        Otherwise raises as `emit` does.
        """
        sent, version = await self._run_verb(self.sync_session._send_update, state, marks)
        if wait:
            await asyncio.to_thread(self.sync_session._wait_update, sent, version)
        return version

    async def snapshot(self, **marks: Unpack[Marks]) -> str:
        """Record a snapshot of the content.

        Returns the snapshot's id. Raises as `emit` does.
        """
        return await self._run_verb(self.sync_session.snapshot, **marks)

    def llm(self, model: str, **marks: Unpack[Marks]) -> ModelCall:
        """Return a call of a model, to be used in `async with`: it reports duration, usage, error.

            async with session.llm("large") as call:
                answer = await ask_model(prompt)
                call.tokens_in, call.tokens_out = answer.tokens_in, answer.tokens_out

        Its events are `step_started`, then `step_succeeded` or `step_failed`, and `usage_recorded`;
        they have one step id. A call that raises has a usage only if tokens or cost were set.
        Entering and leaving raise as `emit` does, but never hide what the block raised.

        Args:
            model: Name of the model.
            marks: As in `emit`.
        """
        return self.sync_session.llm(model, **marks)

    def run(
        self,
        task_type: str,
        *,
        mode: RunMode = "attached",
        expected_ms: int | None = None,
        input: Json = None,
        plan: Json = None,
        resume: bool = False,
        quota_wait_s: float | None = None,
        **marks: Unpack[Marks],
    ) -> Run:
        """Return a run of a task, to be used in `async with`: events in the block belong to it.

            async with session.run("report", input={"month": "2026-10"}) as run:
                run.result = await write_report()

        Its events are `run_started` and `run_running`, then `run_completed`, `run_failed` or
        `run_cancelled`. Entering and leaving raise as `emit` does, but never hide what the block
        raised. With quotas, entering waits for the tenant's: `QuotaExceeded` if that rejects it.

        Args:
            task_type: What kind of task it is.
            mode: An `attached` run lives with its session: it is paused if the session times out,
                fails if the session ends, and may take `attached_run_ms`. A `detached` one goes on
                while the session is held or has timed out, and the session is not archived before
                the run ends. An attached run that is silent sends a heartbeat every five seconds.
            expected_ms: How long the run is expected to take. Raises `Invalid` if that is more than
                an attached run may take.
            input: What the run is given, as JSON can hold it.
            plan: Its plan, if there is one yet: for a resumption, a list of its steps' names.
            resume: If the session has a run of this `run_id`, go on with it, as `resume_run` does.
            quota_wait_s: Longest wait for the quota; default: the client's setting.
            marks: As in `emit`. `run_id`: the run's own id; by default a new UUID.
        """
        return self.sync_session.run(
            task_type,
            mode=mode,
            expected_ms=expected_ms,
            input=input,
            plan=plan,
            resume=resume,
            quota_wait_s=quota_wait_s,
            **marks,
        )

    def resume_run(self, run_id: str, /, **marks: Unpack[Marks]) -> Run:
        """Return a run of this session that has begun before, for `async with`: it goes on.

            async with session.resume_run("report-7") as run:
                facts = await run.step("collect", collect_facts)  # not run again if it succeeded

        It works and raises as `Session.resume_run`; asking for what is known does not block the
        event loop.

        Args:
            run_id: The run's id.
            marks: As in `emit`, of the run's own events. `actor`: a person who lets a run go on
                although it has failed for good.
        """
        return self.sync_session.resume_run(run_id, **marks)

    async def start_task(
        self, task_type: str, input: Json = None, *, timeout_s: float = 1.0, **marks: Unpack[Marks]
    ) -> str:
        """Ask the workers of this session's service to carry out a task; return the task's id.

        As `Session.start_task`, which says more; it waits for Kafka's acknowledgement.
        """
        asked = await self._run_verb(self.sync_session._ask_task, task_type, input, marks)
        return await asyncio.to_thread(self.sync_session._await_task, asked, timeout_s)

    def marks(self, **marks: Unpack[BlockMarks]) -> AbstractContextManager[None]:
        """Return a block in which this session's events carry marks, unless a verb is given others.

            with session.marks(run_id="run-7"):
                await session.activity("llm")

        Tasks and threads that begin in the block inherit them.

        Args:
            marks: The marks, as in `BlockMarks`.
        """
        return self.sync_session.marks(**marks)

    def bind(self, function: Callable[P, T]) -> Callable[P, T]:
        """Return `function` with this session as the current one, and with the marks of this call.

        For a plain function that other code will call, in a context that inherits nothing: a
        callback, or a thread pool that is none of `concurrent.futures`.
        """
        return bind_function(self, function)

    # For `context`

    def _call_reporter(self) -> CallReporter:
        return self.sync_session._call_reporter()

    def _recorder(self) -> Recorder:
        return self.sync_session._recorder()

    # For verbs

    async def _run_verb(self, verb: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a verb that only hands events over; it does nothing later if it is cancelled now."""
        if not self._may_block:
            return verb(*args, **kwargs)
        return await run_unless_left(self.sync_session._lock, partial(verb, *args, **kwargs))

    async def _run_end(self, verb: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a verb that ends the session, also if it is cancelled."""
        if not self._may_block:
            return verb(*args, **kwargs)
        return await run_anyway(partial(verb, *args, **kwargs), self.sync_session._services.on_error)


__all__ = ["AsyncSessionWork"]
