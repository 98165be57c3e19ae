"""The local view of a session and the verbs for its work, for asyncio, over a `Session`."""

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import ParamSpec, TypeVar

from sessionary.producers.ports import Json
from sessionary.producers.session.life import Session
from sessionary.schemas.events import Payload

P = ParamSpec("P")
T = TypeVar("T")


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
        run_id: str | None = None,
        run_seq: int | None = None,
        step_id: str | None = None,
        causation_id: str | None = None,
        actor: str | None = None,
        traceparent: str | None = None,
        occurred_at: datetime | None = None,
    ) -> str:
        """Send an event of any class in `sessionary.schemas.events`.

        Does not change `local_state`: prefer the other verbs for events of the session's life.

        Args:
            payload: The event.
            run_id: The run that the event belongs to.
            run_seq: The event's number within the run.
            step_id: The step that the event belongs to.
            causation_id: Id of the event that caused this one.
            actor: The principal that asked for it, instead of the client's `actor`.
            traceparent: W3C trace context, sent as a record header.
            occurred_at: When it happened; must have a timezone. None means now.

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
            run_id=run_id,
            run_seq=run_seq,
            step_id=step_id,
            causation_id=causation_id,
            actor=actor,
            traceparent=traceparent,
            occurred_at=occurred_at,
        )

    async def activity(self, kind: str, text: str | None = None) -> str:
        """Report work of some kind (`llm`, `tool`, `user` …). It counts as a sign of life.

        Returns the event's id. Raises as `emit` does.
        """
        return await self._run_verb(self.sync_session.activity, kind, text)

    async def info(self, text: str) -> str:
        """Report a text for people, as an activity of kind `info`.

        Returns the event's id. Raises as `emit` does.
        """
        return await self._run_verb(self.sync_session.info, text)

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> str:
        """Report progress of the current work: `progress` out of `total`, in any unit.

        Returns the event's id. Raises as `emit` does.
        """
        return await self._run_verb(self.sync_session.progress, progress, total, message)

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
    ) -> str:
        """Report tokens and cost of one call of a model or a tool.

        Args:
            model: Name of the model.
            tokens_in: Tokens of the prompt.
            tokens_out: Tokens of the answer.
            model_cost_usd_micros: Cost of the model, in millionths of a US dollar.
            tool_cost_usd_micros: Cost of the tool, in millionths of a US dollar.
            is_timeout_retry: True if the call repeats one that timed out.
            retry_of: Id of the call that this one repeats.

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
        )

    async def update_state(self, state: Mapping[str, Json]) -> int:
        """Replace the session's content.

        The processor refuses an update that is based on a version which is no longer the last
        one; `sync` shows what it has. The verb does not wait for that.

        Args:
            state: The new content, a JSON object of at most about 1 MiB.

        Returns:
            The version of the new content; the old one if the session is not Active.

        Raises:
            Invalid: `state` cannot be written as JSON, or is too large.

        Otherwise raises as `emit` does.
        """
        return await self._run_verb(self.sync_session.update_state, state)

    async def snapshot(self) -> str:
        """Record a snapshot of the content.

        Returns the snapshot's id. Raises as `emit` does.
        """
        return await self._run_verb(self.sync_session.snapshot)

    # For verbs

    async def _run_verb(self, verb: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if self._may_block:
            return await asyncio.to_thread(verb, *args, **kwargs)
        return verb(*args, **kwargs)


__all__ = ["AsyncSessionWork"]
