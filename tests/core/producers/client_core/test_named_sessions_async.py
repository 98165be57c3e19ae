"""The same of the client for asyncio: `open` may be awaited, or entered."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import ParamSpec

import pytest

from sessionary.producers import AsyncSession, AsyncSessionClient, Invalid, SessionExists
from sessionary.producers.client_core import opening
from sessionary.producers.session.core import SessionCore
from sessionary.producers.session.lifecycle import Lifecycle
from sessionary.producers.testing import InMemoryTransport, memory_client

P = ParamSpec("P")


def in_a_loop(test: Callable[P, Coroutine[None, None, None]]) -> Callable[P, None]:
    """Run a test in an event loop of its own."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


def new_client(memory: InMemoryTransport | None = None) -> tuple[AsyncSessionClient, InMemoryTransport]:
    client, memory = memory_client(memory=memory)
    return AsyncSessionClient.wrap(client), memory


@in_a_loop
async def test_open_can_be_awaited_and_entered() -> None:
    client, memory = new_client()
    other, _ = new_client(memory)
    called: list[str] = []

    async def connect() -> None:
        called.append("connect")

    first = await client.open("thread-42", user_id="u1", state={"n": 1}, connect=connect)
    await first.message("user", "one")
    async with other.open("thread-42", user_id="u1", state={"n": 2}, connect=connect) as second:
        assert (second.session_id, second.state, second.local_state) == (first.session_id, {"n": 1}, "Active")
        await second.message("user", "two")
        assert [turn.content for turn in await first.conversation.read()] == ["one", "two"]
    assert called == ["connect"]
    assert memory.view_session("thread-42").state == "Terminated"


@in_a_loop
async def test_a_session_that_was_awaited_can_be_entered() -> None:
    client, memory = new_client()
    session = await client.open("thread-42", user_id="u1")
    assert await session is session
    async with session:
        await session.activity("llm")
    assert memory.view_session(session).state == "Terminated"
    assert memory.rejections() == []


@in_a_loop
async def test_a_new_session_can_be_awaited() -> None:
    client, memory = new_client()
    session = await client.session(user_id="u1")
    assert memory.view_session(session).state == "Active"


@pytest.mark.parametrize("verb", ["session", "create"])
@in_a_loop
async def test_a_new_session_of_an_id_that_exists_raises_and_changes_nothing(verb: str) -> None:
    client, memory = new_client()
    other, _ = new_client(memory)
    async with client.session(user_id="u1", session_id="thread-42") as first:
        opened: Awaitable[AsyncSession] = getattr(other, verb)(user_id="u1", session_id="thread-42")
        with pytest.raises(SessionExists):
            await opened
        assert memory.view_session(first).state == "Active"
    assert [judged.event.envelope.event_type for judged in memory.rejections()] == ["session_created"]


@in_a_loop
async def test_opening_never_blocks_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    client, _ = new_client()
    find, threads = opening.find_place, list[int]()

    def find_here(at: opening.Opening, session_id: str) -> opening.Place:
        threads.append(threading.get_ident())
        return find(at, session_id)

    monkeypatch.setattr(opening, "find_place", find_here)
    await client.open("thread-42", user_id="u1")
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


@pytest.mark.parametrize("exists", [False, True])
@in_a_loop
async def test_a_cancelled_open_ends_only_a_session_of_its_own(
    *, exists: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, memory = new_client()
    if exists:
        await new_client(memory)[0].open("thread-42", user_id="u1")
    entered, go_on, left = asyncio.Event(), threading.Event(), threading.Event()
    loop, find = asyncio.get_running_loop(), opening.find_place

    def find_late(at: opening.Opening, session_id: str) -> opening.Place:
        loop.call_soon_threadsafe(entered.set)
        assert go_on.wait(60)
        return find(at, session_id)

    def leaving(verb: Callable[P, None]) -> Callable[P, None]:
        def leave(*args: P.args, **kwargs: P.kwargs) -> None:
            verb(*args, **kwargs)
            left.set()

        return leave

    monkeypatch.setattr(opening, "find_place", find_late)
    monkeypatch.setattr(SessionCore, "abandon", leaving(SessionCore.abandon))
    monkeypatch.setattr(Lifecycle, "leave", leaving(Lifecycle.leave))

    async def open_it() -> None:
        await client.open("thread-42", user_id="u1")

    opened = asyncio.create_task(open_it())
    await entered.wait()
    opened.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opened
    go_on.set()
    assert await asyncio.to_thread(left.wait, 60)
    assert memory.view_session("thread-42").state == ("Active" if exists else "Terminated")


@pytest.mark.parametrize("faulty", ["", "x" * 257, "thread\n42"])
@in_a_loop
async def test_each_verb_refuses_what_cannot_be_an_id(faulty: str) -> None:
    client, memory = new_client()
    verbs: list[Callable[[], Awaitable[object]]] = [
        lambda: client.open(faulty, user_id="u1"),
        lambda: client.session(user_id="u1", session_id=faulty),
        lambda: client.session(user_id="u1", parent=faulty),
        lambda: client.create(user_id="u1", session_id=faulty),
        lambda: client.attach(faulty),
        lambda: client.claim(faulty),
        lambda: client.conversation(faulty),
    ]
    for verb in verbs:
        with pytest.raises(Invalid):
            await verb()
    with pytest.raises(Invalid):
        client.follow(faulty)
    assert memory.events() == []
