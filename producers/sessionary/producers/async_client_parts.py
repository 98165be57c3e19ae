"""The part of `AsyncSessionClient` that is written by hand: its block, and opening sessions."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, TypeVar

from sessionary.producers.async_follower import AsyncSessionFollower
from sessionary.producers.client import SessionClient
from sessionary.producers.client_core.core import ClientCore, over_core
from sessionary.producers.client_core.sessions import (
    KnownSession,
    NewSession,
    begin_attach,
    create_core,
    find_core,
    follow_session,
)
from sessionary.producers.context.scope import EventMetadata, active_session, envelope_fields
from sessionary.producers.migrations import HandOver
from sessionary.producers.ports import OnError
from sessionary.producers.process.guards import Lease
from sessionary.producers.session.async_opening import AsyncStep, Opening, open_core, run_session_flow_async
from sessionary.producers.session.async_session import AsyncSession
from sessionary.producers.session.core import SessionCore
from sessionary.producers.session.heartbeat import BeatsWith, lifeline_of
from sessionary.producers.session.session import Session
from sessionary.schemas.ids import SessionId

if TYPE_CHECKING:
    pass


# Lets an event loop await the program's function with a session that has arrived.


def hand_over_to_loop(function: Callable[[SessionCore], Awaitable[object]], on_error: OnError) -> HandOver:
    """Return a hand-over that lets the running event loop await `function`.

    Raises `RuntimeError` without one.
    """
    loop = asyncio.get_running_loop()

    async def call(core: SessionCore) -> None:
        await function(core)

    def hand_over(core: SessionCore, done: Callable[[], None]) -> None:
        def end(future: "Future[None]") -> None:
            done()
            if not future.cancelled() and isinstance(error := future.exception(), Exception):
                on_error(error)

        work = call(core)
        try:
            asyncio.run_coroutine_threadsafe(work, loop).add_done_callback(end)
        except RuntimeError as error:  # the loop is closed
            work.close()
            done()
            on_error(error)

    return hand_over


T = TypeVar("T")
AsyncOnMigrated = Callable[[AsyncSession], Awaitable[object]]
"""A coroutine function that takes a session that has arrived. The program keeps it."""


class AsyncClientBlock:
    """The members that only an `AsyncSessionClient` has."""

    core: ClientCore
    _lease: Lease  # of the core

    @classmethod
    def wrap(cls, client: SessionClient) -> Self:
        """Return a client for asyncio over `client`, for example over one of `memory_client`.

        Closing either closes both.
        """
        return over_core(cls, client.core)

    @property
    def sync_client(self) -> SessionClient:
        """The `SessionClient` underneath."""
        return over_core(SessionClient, self.core)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        await asyncio.to_thread(self.core.close)
        return False


async def create_core_async(client: ClientCore, new: NewSession) -> SessionCore:
    """Create a session without blocking the event loop."""
    is_alive = lifeline_of(new.beats_with)
    opened = partial(create_core, client, new._replace(beats_with="process"))
    core = await open_core(opened, may_block=_may_block(client, new))
    core.beats.bind(is_alive)
    return core


def start_core_async(
    client: ClientCore,
    new: NewSession,
    validate: AsyncStep | None,
    connect: AsyncStep | None,
    quota_wait_s: float | None,
) -> Opening:
    """Return how `async with` creates and starts a session."""
    return _opening_by(create_core, client, new, validate, connect, quota_wait_s)


def open_core_async(
    client: ClientCore,
    new: NewSession,
    validate: AsyncStep | None,
    connect: AsyncStep | None,
    quota_wait_s: float | None,
) -> Opening:
    """Return how `await` or `async with` attaches to a session, or creates and starts it."""
    return _opening_by(find_core, client, new, validate, connect, quota_wait_s)


def _opening_by(
    make_core: Callable[[ClientCore, NewSession], SessionCore],
    client: ClientCore,
    new: NewSession,
    validate: AsyncStep | None,
    connect: AsyncStep | None,
    quota_wait_s: float | None,
) -> Opening:
    envelope_fields(new.metadata)  # an unknown name is an error here, not in `async with`
    opened = partial(make_core, client, new._replace(beats_with="process"))
    how = (_may_block(client, new), new.beats_with, validate, connect, quota_wait_s, new.metadata)
    return Opening(opened, *how, client.lease())


def _may_block(client: ClientCore, new: NewSession) -> bool:
    """Return whether a creation may wait: for room in the queue, or for the processor."""
    return client.ports.transport.may_block or new.session_id is not None or new.start_from[0] is not None


async def attach_core_async(
    client: ClientCore,
    session_id: SessionId,
    user_id: str | None,
    *,
    take_over: bool,
    beats_with: BeatsWith,
    snapshots: bool,
    metadata: EventMetadata,
) -> SessionCore:
    """Continue a session that exists without blocking the event loop."""
    return await run_session_flow_async(
        *begin_attach(
            client,
            session_id,
            user_id,
            take_over=take_over,
            beats_with=beats_with,
            snapshots=snapshots,
            metadata=metadata,
        )
    )


def follow_session_async(
    client: ClientCore, session: SessionId | KnownSession, timeout_s: float | None
) -> AsyncSessionFollower:
    """Follow a session by `async for`."""
    return AsyncSessionFollower(follow_session(client, session, None), timeout_s)


def take_migrations_async(client: ClientCore, function: AsyncOnMigrated, concurrency: int) -> None:
    """Let the running event loop await `function` with each session that arrives."""

    def pass_on(core: SessionCore) -> Awaitable[object]:
        return function(AsyncSession(core))

    client.take_migrations(hand_over_to_loop(pass_on, client.on_error), concurrency)


async def iterate_off_loop(items: Iterator[T]) -> AsyncIterator[T]:
    """Yield the values of an iterator, and wait for them in a thread."""
    while (found := await asyncio.to_thread(next, items, None)) is not None:
        yield found


# The session whose block the current code runs in.


def current_session() -> Session | AsyncSession | None:
    """Return the session whose `with` block the current code runs in; None outside any.

    Tasks, and threads and calls of thread pools that begin in the block, inherit it; those that
    live longer no longer see it once the block was left. In another process it is None.
    """
    found = active_session()
    return found if isinstance(found, Session | AsyncSession) else None
