"""The hand-written part of `AsyncSession`: it opens late, and never blocks the loop.

Verbs hand their events over in place, which takes microseconds. Waits for Kafka, for the processor
or for a store are in a thread. Under delivery policy `block` all of this is in a thread. Only the
last event of an `async with` block is always sent in place, so that a cancelled task ends its
session.
"""

from collections.abc import Awaitable, Callable, Generator
from functools import partial
from types import TracebackType
from typing import Any, Literal, NamedTuple, ParamSpec, Self, TypeVar

from sessionary.producers.context.scope import EventMetadata, SessionBlock, enter_block, leave_block
from sessionary.producers.durable.flow import Flow, run_flow_async
from sessionary.producers.process.guards import Lease
from sessionary.producers.process.off_loop import open_or_leave, run_anyway, run_unless_left
from sessionary.producers.session.core import SessionCore
from sessionary.producers.session.heartbeat import BeatsWith, lifeline_of
from sessionary.producers.session.lifecycle import Lifecycle
from sessionary.producers.session.session import Session

P = ParamSpec("P")
T = TypeVar("T")

AsyncStep = Callable[[], Awaitable[object]]
"""A step of a session's start, a coroutine function; what it raises ends the session."""


class Opening(NamedTuple):
    """Opens a session for `async with` or `await`, and starts it if it is new."""

    open_core: Callable[[], SessionCore]
    may_block: bool  # whether opening it may wait: for room in the queue, or for a verdict
    beats_with: BeatsWith
    validate: AsyncStep | None
    connect: AsyncStep | None
    quota_wait_s: float | None
    metadata: EventMetadata  # of the events of the start
    lease: Lease  # keeps the client open until the session does


class OpenedLater:
    """The part of `AsyncSession` that opens and leaves it."""

    def __init__(self, found: SessionCore | Opening) -> None:
        """Take a session that is open, or one for `async with` to open."""
        self._opening = None if isinstance(found, SessionCore) else found
        self._session = Session(found) if isinstance(found, SessionCore) else None
        self._block: SessionBlock | None = None  # while in `async with`

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"<{name}, not open yet>" if self._session is None else f"<{name} {self.core.describe()}>"

    @property
    def core(self) -> SessionCore:
        """The inside of the session, for sessionary's own modules."""
        return self.sync_session.core

    @property
    def sync_session(self) -> Session:
        """The `Session` underneath. Raises `RuntimeError` before `async with` is entered."""
        if self._session is None:
            raise RuntimeError("the session is not open yet: use `async with client.session(...)`")
        return self._session

    def __await__(self) -> Generator[Any, None, Self]:
        """Open the session without a block; the caller ends it, or detaches it."""
        return self._opened().__await__()

    async def _opened(self) -> Self:
        if self._session is None and self._opening is not None:
            await self._open(self._opening)
        return self

    async def __aenter__(self) -> Self:
        await self._opened()
        self._block = enter_block(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        # In place even under policy `block`: a cancelled task must still send its last event.
        try:
            Lifecycle(self.core).leave(error)
        finally:
            if self._block is not None:
                leave_block(self._block)
        return False

    async def _open(self, opening: Opening) -> None:
        """Open a session, and start it if it is new."""
        is_alive = lifeline_of(opening.beats_with)
        core = await open_core(opening.open_core, may_block=opening.may_block)
        core.beats.bind(is_alive)
        self._session, life = Session(core), Lifecycle(core)
        if core.view.local_state != "Idle":
            return  # it exists
        try:
            start = life.start(opening.validate, opening.connect, opening.quota_wait_s, opening.metadata)
            await run_session_flow_async(core, start)
        except BaseException as error:
            life.leave(error)  # nothing else ends it: the block is not entered
            raise


async def open_core(open_it: Callable[[], SessionCore], *, may_block: bool) -> SessionCore:
    """Open a session; leave it if the caller is cancelled meanwhile. Raises as `open_it`."""
    if not may_block:
        return open_it()

    def leave(core: SessionCore, error: BaseException) -> None:
        if core.view.local_state == "Idle":
            Lifecycle(core).leave(error)  # it is new, and nothing else ends it
        else:
            core.abandon()

    return await open_or_leave(open_it, leave)


async def hand_over(core: SessionCore, verb: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a verb that only hands events over; it does nothing later if it is cancelled now."""
    if not core.emitter.may_block:
        return verb(*args, **kwargs)
    return await run_unless_left(core.lock, partial(verb, *args, **kwargs))


async def end_anyway(core: SessionCore, verb: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a verb that ends the session, also if it is cancelled."""
    if not core.emitter.may_block:
        return verb(*args, **kwargs)
    return await run_anyway(partial(verb, *args, **kwargs), core.services.on_error)


async def run_session_flow_async(core: SessionCore, flow: Flow[T]) -> T:
    """Run a flow of a session without blocking the event loop. Raises what the flow raises."""
    return await run_flow_async(flow, core.waits.pause, partial(hand_over, core))
