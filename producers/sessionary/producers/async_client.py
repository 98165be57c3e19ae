"""The asyncio face: the same verbs over the same core, all awaitable.

Verbs that only hand an event over run in place, as they take microseconds; those that wait (`resume`, `recover`,
`sync`, `attach`, `flush`, `close`, and all of them under policy `block`) run in the loop's executor.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, ParamSpec, Self, TypeVar

from sessionary.producers.client import SessionClient
from sessionary.producers.control.cleanup_responder import CleanupHandler
from sessionary.producers.ports import Counters, Json, SessionView
from sessionary.producers.session.life import Session
from sessionary.schemas.events import Payload
from sessionary.schemas.types import DataClass, ErrorInfo, Limits, PauseKind, StartFailureReason

P = ParamSpec("P")
T = TypeVar("T")
AsyncStep = Callable[[], Awaitable[object]]


class AsyncSession:
    """One session; see `session.Session` for what each verb means and raises. An async context manager.

    Opened by `AsyncSessionClient.session`, entering it registers and starts the session.
    """

    def __init__(
        self,
        open_: Callable[[], Session],
        *,
        may_block: bool,
        starts: bool = False,
        validate: AsyncStep | None = None,
        connect: AsyncStep | None = None,
    ) -> None:
        self._open = open_
        self._opened: Session | None = None
        self._may_block = may_block
        self._starts = starts
        self._validate = validate
        self._connect = connect

    @property
    def sync_session(self) -> Session:
        """The handle underneath. Raises `RuntimeError` before the session is entered."""
        if self._opened is None:
            raise RuntimeError("use `async with client.session(...)`")
        return self._opened

    @property
    def session_id(self) -> str:
        """The session's UUID."""
        return self.sync_session.session_id

    @property
    def state(self) -> dict[str, Json]:
        """A copy of the content this handle knows."""
        return self.sync_session.state

    @property
    def local_state(self) -> str:
        """The state this handle believes in."""
        return self.sync_session.local_state

    async def emit(self, payload: Payload, **marks: Any) -> str:
        """Send any payload; `marks` as of `Session.emit`."""
        return await self._run(self.sync_session.emit, payload, **marks)

    async def activity(self, kind: str, text: str | None = None) -> str:
        """Report work of a kind."""
        return await self._run(self.sync_session.activity, kind, text)

    async def info(self, text: str) -> str:
        """Report something worth reading."""
        return await self._run(self.sync_session.info, text)

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> str:
        """Report progress."""
        return await self._run(self.sync_session.progress, progress, total, message)

    async def usage(self, **usage: Any) -> str:
        """Report tokens and cost; arguments as of `Session.usage`."""
        return await self._run(self.sync_session.usage, **usage)

    async def update_state(self, state: Mapping[str, Json]) -> int:
        """Replace the content."""
        return await self._run(self.sync_session.update_state, state)

    async def snapshot(self) -> str:
        """Add a snapshot to the chain."""
        return await self._run(self.sync_session.snapshot)

    async def start(self, *, validate: AsyncStep | None = None, connect: AsyncStep | None = None) -> Self:
        """T02; the steps are coroutine functions here."""
        session = self.sync_session
        with session.starting("validating", "invalid_config"):
            if validate is not None:
                await validate()
        with session.starting("connecting", "connection_failed"):
            if connect is not None:
                await connect()
        await self._run(session.started)
        return self

    async def fail_start(self, reason: StartFailureReason, message: str | None = None) -> None:
        """T03."""
        await self._run(self.sync_session.fail_start, reason, message)

    async def pause(self, reason: str | None = None, kind: PauseKind = "manual") -> str:
        """T04."""
        return await self._run(self.sync_session.pause, reason, kind)

    async def resume(self, resume_plan: str | None = None) -> dict[str, Json]:
        """T05, T07: waits for the verdict."""
        return await self._wait(self.sync_session.resume, resume_plan)

    async def error(self, error: BaseException | ErrorInfo, *, retryable: bool | None = None) -> None:
        """T10."""
        await self._run(self.sync_session.error, error, retryable=retryable)

    async def recover(self, resume_plan: str | None = None) -> dict[str, Json]:
        """T11: waits for the verdict."""
        return await self._wait(self.sync_session.recover, resume_plan)

    async def sync(self) -> SessionView:
        """Adopt what the processor knows."""
        return await self._wait(self.sync_session.sync)

    async def complete(self, message: str | None = None) -> None:
        """T13."""
        await self._run(self.sync_session.complete, message)

    async def cancel(self, message: str | None = None) -> None:
        """T09, T13."""
        await self._run(self.sync_session.cancel, message)

    async def force_close(self, message: str | None = None) -> None:
        """T12."""
        await self._run(self.sync_session.force_close, message)

    async def close(self, message: str | None = None) -> None:
        """End with the legal event."""
        await self._run(self.sync_session.close, message)

    def detach(self) -> None:
        """Stop beating without a word."""
        self.sync_session.detach()

    async def __aenter__(self) -> Self:
        if self._opened is None:
            await self._enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        # In place even under policy `block`: a cancelled task must not lose its farewell at an await.
        return self.sync_session.__exit__(kind, error, trace)

    async def _enter(self) -> Self:
        self._opened = await asyncio.to_thread(self._open) if self._may_block else self._open()
        self._opened.adopt_thread()
        if self._starts:
            await self.start(validate=self._validate, connect=self._connect)
        return self

    async def _run(self, verb: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if self._may_block:
            return await self._wait(verb, *args, **kwargs)
        return verb(*args, **kwargs)

    async def _wait(self, verb: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await asyncio.to_thread(verb, *args, **kwargs)
        finally:
            self.sync_session.adopt_thread()  # the agent lives here, not in the executor


class AsyncSessionClient:
    """`SessionClient` for asyncio; takes the same arguments. An async context manager."""

    def __init__(self, *, client: SessionClient | None = None, **arguments: Any) -> None:
        """`client` wraps one that exists; else `arguments` are those of `SessionClient`."""
        self.sync_client = client or SessionClient(**arguments)

    @property
    def counters(self) -> Counters:
        """What the client did so far."""
        return self.sync_client.counters

    def session(
        self,
        *,
        user_id: str,
        state: Mapping[str, Json] | None = None,
        limits: Limits | None = None,
        data_classes: Sequence[DataClass] = (),
        session_id: str | None = None,
        validate: AsyncStep | None = None,
        connect: AsyncStep | None = None,
    ) -> AsyncSession:
        """Return a session that `async with` registers, starts and ends."""

        def open_() -> Session:
            return self.sync_client.create(
                user_id=user_id, state=state, limits=limits, data_classes=data_classes, session_id=session_id
            )

        return AsyncSession(
            open_, may_block=self.sync_client.may_block, starts=True, validate=validate, connect=connect
        )

    async def create(self, *, user_id: str, **arguments: Any) -> AsyncSession:
        """T01: as `SessionClient.create`."""
        made = AsyncSession(
            lambda: self.sync_client.create(user_id=user_id, **arguments), may_block=self.sync_client.may_block
        )
        return await made.__aenter__()

    async def attach(self, session_id: str, *, user_id: str | None = None) -> AsyncSession:
        """Take up a session that exists."""
        found = await asyncio.to_thread(self.sync_client.attach, session_id, user_id=user_id)
        return await AsyncSession(lambda: found, may_block=self.sync_client.may_block).__aenter__()

    def on_cleanup(self, handler: CleanupHandler) -> None:
        """As `SessionClient.on_cleanup`; the handler runs on a thread of its own, not in the loop."""
        self.sync_client.on_cleanup(handler)

    async def flush(self, timeout_s: float = 10.0) -> int:
        """As `SessionClient.flush`."""
        return await asyncio.to_thread(self.sync_client.flush, timeout_s)

    async def close(self) -> None:
        """As `SessionClient.close`."""
        await asyncio.to_thread(self.sync_client.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        await self.close()
        return False


__all__ = ["AsyncSession", "AsyncSessionClient"]
