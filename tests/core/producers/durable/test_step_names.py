"""`Run.step` in a loop: names in order, steps at the same time, and arguments on resumption."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sessionary.producers import AsyncSessionClient, Invalid, Run, Session, tool
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.schemas.events import StepSkipped, StepStarted
from tests.core.producers.durable.test_loops import leave_run, other_process

PAGES = ["text of a", "text of b", "text of c"]


def fetch(page: str) -> str:
    return f"text of {page}"


def names(memory: InMemoryTransport, kind: type[StepStarted | StepSkipped] = StepStarted) -> list[str]:
    return [event.payload.name for event in memory.events() if isinstance(event.payload, kind)]


def in_other_process(memory: InMemoryTransport, session: Session, work: Callable[[Run], Any]) -> Any:
    client, same = other_process(memory, session)
    with client, same:
        try:
            with same.resume_run("r") as run:
                return work(run)
        finally:
            same.lifecycle.detach()


def test_a_name_that_was_used_is_the_next_step_of_that_name() -> None:
    def crawl(run: Run) -> list[str]:
        return [run.step("fetch", fetch, page) for page in "abc"]

    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        found: list[list[str]] = []
        leave_run(session, lambda run: found.append(crawl(run)))
        assert found == [PAGES]
        assert in_other_process(memory, session, crawl) == PAGES
    assert names(memory) == ["fetch", "fetch #2", "fetch #3"]
    assert names(memory, StepSkipped) == names(memory)
    assert memory.rejections() == []


def test_a_step_that_failed_is_tried_again_under_its_name() -> None:
    client, memory = memory_client()
    failures = [ConnectionError("gone")]

    def fetch_once(page: str) -> str:
        if page == "b" and failures:
            raise failures.pop()
        return fetch(page)

    with client, client.session(user_id="u") as session, session.run("crawl") as run:
        run.step("fetch", fetch_once, "a")
        with pytest.raises(ConnectionError):
            run.step("fetch", fetch_once, "b")
        assert [run.step("fetch", fetch_once, page) for page in "bc"] == PAGES[1:]
    assert names(memory) == ["fetch", "fetch #2", "fetch #2", "fetch #3"]
    assert memory.rejections() == []


def at_once(client: AsyncSessionClient, session_id: str, **keys: bool) -> list[Any]:
    """Do three steps of a name at once in run `r`; leave it open."""

    async def later(page: str) -> str:
        await asyncio.sleep(0)
        return fetch(page)

    async def work() -> list[Any]:
        session = await client.attach(session_id)
        run = session.run("crawl", run_id="r", resume=True)
        await run.__aenter__()
        steps = [run.step("fetch", later, page, **({"key": page} if keys else {})) for page in "abc"]
        found = await asyncio.gather(*steps, return_exceptions=True)
        run._leave_metadata()
        session.lifecycle.detach()
        return found

    return asyncio.run(work())


def test_steps_of_a_name_at_once_need_keys() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        first, *others = at_once(AsyncSessionClient.wrap(client), session.session_id)
    assert first == PAGES[0]
    assert [type(error) for error in others] == [Invalid, Invalid]
    assert all("key=" in f"{error}" and "'fetch'" in f"{error}" for error in others)
    assert names(memory) == ["fetch"]


def test_steps_at_once_with_keys_are_answered_by_key() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        for _ in range(2):
            other, _ = memory_client(memory=memory)
            with other:
                assert at_once(AsyncSessionClient.wrap(other), session.session_id, keys=True) == PAGES
    assert names(memory) == ["fetch [a]", "fetch [b]", "fetch [c]"]
    assert memory.rejections() == []


def test_steps_of_a_name_in_threads_at_once_need_keys() -> None:
    client, _ = memory_client()
    is_open, may_end = threading.Event(), threading.Event()

    def wait() -> str:
        is_open.set()
        may_end.wait(60)
        return "done"

    with client, client.session(user_id="u") as session, session.run("crawl") as run, ThreadPoolExecutor() as pool:
        first = pool.submit(run.step, "fetch", wait)
        is_open.wait(60)
        with pytest.raises(Invalid, match="key="):
            run.step("fetch", fetch, "b")
        assert run.step("fetch", fetch, "b", key="b") == PAGES[1]
        may_end.set()
        assert first.result(60) == "done"
        assert run.step("fetch", fetch, "c") == PAGES[2]


def test_steps_in_steps_are_counted_in_each() -> None:
    failures = [ConnectionError("gone")]

    def crawl(site: str) -> list[str]:
        run = runs[-1]
        found = [run.step("fetch", fetch, page) for page in site]
        if site == "c" and failures:
            raise failures.pop()
        return found

    def work(run: Run) -> list[str]:
        runs.append(run)
        first = run.step("crawl", crawl, "ab")
        if failures:
            with pytest.raises(ConnectionError):
                run.step("again", crawl, "c")
        return [*first, *run.step("again", crawl, "c"), run.step("fetch", fetch, "a")]

    runs: list[Run] = []
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        results: list[list[str]] = []
        leave_run(session, lambda run: results.append(work(run)))
        results.append(in_other_process(memory, session, work))
    assert results == [[*PAGES, PAGES[0]]] * 2
    assert names(memory) == ["crawl", "crawl/fetch", "crawl/fetch #2", "again", "again/fetch", "again", "fetch"]
    assert memory.rejections() == []


@pytest.mark.parametrize("large", [False, True])
def test_a_resumed_step_with_other_arguments_is_an_error_that_shows_both(large: bool, tmp_path: Path) -> None:
    client, memory = memory_client(artifacts=tmp_path)
    end = "." * (300_000 if large else 1)

    def crawl(run: Run, pages: str) -> list[int]:
        return [run.step("size", lambda page: len(page), f"{page}{end}") for page in pages]

    with client, client.session(user_id="u") as session:
        leave_run(session, lambda run: crawl(run, "ab"))
        other, _ = memory_client(memory=memory, artifacts=tmp_path)
        with other, other.attach(session.session_id) as same:
            with pytest.raises(Invalid) as raised, same.resume_run("r") as run:
                crawl(run, "ac")
            same.lifecycle.detach()
    assert "'size #2'" in raised.value.detail
    assert '"b.' in raised.value.detail
    assert '"c.' in raised.value.detail


class Page:
    """Its text names its place in memory, which is another one in each process."""


@pytest.mark.parametrize("page", [Page(), b"page"])
def test_of_an_argument_that_json_cannot_hold_the_type_is_compared(page: object) -> None:
    def work(run: Run, page: object) -> int:
        return run.step("size", lambda page, of: of + 1, page, 1)

    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        leave_run(session, lambda run: work(run, Page()))
        if isinstance(page, Page):
            assert in_other_process(memory, session, lambda run: work(run, page)) == 2
        else:
            with pytest.raises(Invalid, match=r"'size' was done with .*Page.*is given .*bytes"):
                in_other_process(memory, session, lambda run: work(run, page))
    assert names(memory) == ["size"]
    assert memory.rejections() == []


def test_a_key_that_is_used_with_other_arguments_is_an_error() -> None:
    client, _ = memory_client()
    with client, client.session(user_id="u") as session, session.run("crawl") as run:
        assert run.step("fetch", fetch, "a", key="x") == run.step("fetch", fetch, "a", key="x") == PAGES[0]
        with pytest.raises(Invalid, match=r'"a".*"b"'):
            run.step("fetch", fetch, "b", key="x")


def test_a_tool_in_a_loop_of_steps_has_a_key_in_each() -> None:
    sent: list[str] = []

    @tool(effect="write")
    def send(text: str) -> int:
        sent.append(text)
        return len(sent)

    def work(run: Run) -> list[int]:
        return [run.step("turn", send, "hello") for _ in range(3)]

    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        results: list[list[int]] = []
        leave_run(session, lambda run: results.append(work(run)))
        assert in_other_process(memory, session, work) == [1, 2, 3] == results[0]
    assert sent == ["hello"] * 3


@pytest.mark.parametrize("key", ["", 3])
def test_a_key_of_a_step_is_a_text(key: Any) -> None:
    client, _ = memory_client()
    with (
        client,
        client.session(user_id="u") as session,
        session.run("crawl") as run,
        pytest.raises(Invalid, match="the key of a step"),
    ):
        run.step("fetch", fetch, "a", key=key)


def test_an_object_whose_call_is_a_coroutine_is_a_step() -> None:
    class Fetch:
        async def __call__(self, page: str) -> str:
            await asyncio.sleep(0)
            return fetch(page)

    async def work() -> str:
        client, _ = memory_client()
        asynchronous = AsyncSessionClient.wrap(client)
        async with asynchronous, asynchronous.session(user_id="u") as session, session.run("crawl") as run:
            return await run.step("fetch", Fetch(), "a")

    assert asyncio.run(work()) == PAGES[0]
