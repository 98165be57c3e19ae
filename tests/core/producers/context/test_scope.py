"""Which session is the current one: in tasks, threads, pools, nested blocks, forked children."""

import asyncio
import contextvars
import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from sessionary.producers import AsyncSession, AsyncSessionClient, Session, SessionClient, current_session
from sessionary.producers.testing import memory_client


@pytest.fixture
def client() -> Iterator[SessionClient]:
    with memory_client()[0] as made:
        yield made


def seen_in_thread(thread_class: Callable[..., threading.Thread] = threading.Thread) -> Session | AsyncSession | None:
    found: list[Session | AsyncSession | None] = []
    thread = thread_class(target=lambda: found.append(current_session()))
    thread.start()
    thread.join()
    return found[0]


def test_the_current_session_is_that_of_the_innermost_block(client: SessionClient) -> None:
    assert current_session() is None
    with client.session(user_id="u") as outer:
        assert current_session() is outer
        with client.session(user_id="u") as inner:
            assert current_session() is inner
        assert current_session() is outer
        not_entered = client.session(user_id="u")
        assert current_session() is outer
        not_entered.close()
    assert current_session() is None


def test_blocks_may_be_left_in_any_order(client: SessionClient) -> None:
    first, second = client.session(user_id="u"), client.session(user_id="u")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert current_session() is second
    second.__exit__(None, None, None)
    assert current_session() is None


def test_a_block_left_in_another_context_is_left(client: SessionClient) -> None:
    session = client.session(user_id="u")
    contextvars.copy_context().run(session.__enter__)
    assert current_session() is None
    session.__enter__()
    contextvars.copy_context().run(session.__exit__, None, None, None)
    assert current_session() is None


def test_threads_and_calls_of_pools_inherit_the_session(client: SessionClient) -> None:
    with ThreadPoolExecutor(1) as pool:
        with client.session(user_id="u") as first:
            assert seen_in_thread() is first
            assert pool.submit(current_session).result() is first
        with client.session(user_id="u") as second:  # the same thread of the pool
            assert pool.submit(current_session).result() is second
            assert list(pool.map(lambda _: current_session(), range(2))) == [second, second]
        assert pool.submit(current_session).result() is None
    assert seen_in_thread() is None


def test_subclasses_of_thread_inherit_the_session(client: SessionClient) -> None:
    found: list[Session | AsyncSession | None] = []

    class OwnRun(threading.Thread):
        def run(self) -> None:
            found.append(current_session())

    with client.session(user_id="u") as session:
        own = OwnRun()
        own.start()
        own.join()
        timer = threading.Timer(0, lambda: found.append(current_session()))
        timer.start()
        timer.join()
        assert found == [session, session]
    assert "run" not in vars(own)


def test_a_thread_that_outlives_the_block_sees_no_ended_session(client: SessionClient) -> None:
    left, found = threading.Event(), list[Session | AsyncSession | None]()

    def look_twice() -> None:
        found.append(current_session())
        left.wait(30)
        found.append(current_session())

    with client.session(user_id="u") as session:
        thread = threading.Thread(target=look_twice)
        thread.start()
    left.set()
    thread.join()
    assert found in ([session, None], [None, None])


def test_a_context_keeps_no_session_alive(client: SessionClient) -> None:
    with client.session(user_id="u") as session:
        inherited = contextvars.copy_context()
    gone = weakref.ref(session)
    del session
    gc.collect()
    assert gone() is None
    assert inherited.run(current_session) is None


def test_a_bound_function_has_its_session_in_any_context(client: SessionClient) -> None:
    with client.session(user_id="u") as session:
        with session.metadata(run_id="r"):
            bound = session.bind(lambda text: (current_session(), session.info(text)))
        assert contextvars.Context().run(bound, "x")[0] is session
    assert current_session() is None


def test_tasks_and_their_threads_inherit_the_session_of_asyncio() -> None:
    async def main() -> None:
        client = AsyncSessionClient.wrap(memory_client()[0])

        async def look() -> Session | AsyncSession | None:
            await asyncio.sleep(0)
            return current_session()

        async def work() -> None:
            async with client.session(user_id="u") as session:
                assert current_session() is session
                await asyncio.sleep(0)
                assert current_session() is session
                assert await asyncio.create_task(look()) is session
                assert await asyncio.to_thread(current_session) is session
                loop = asyncio.get_running_loop()
                assert await loop.run_in_executor(None, current_session) is session
                assert await asyncio.to_thread(seen_in_thread) is session
            assert current_session() is None

        async with client:
            await asyncio.gather(work(), work(), work())
            created = await client.create(user_id="u")
            assert current_session() is None
            await created.lifecycle.fail_start("invalid_config")

    asyncio.run(main())


# A program with its own interpreter: from Python 3.12 on a fork beside threads is a warning.
_FORKED = """
import os
from sessionary.producers import current_session
from sessionary.producers.testing import memory_client
with memory_client()[0] as client, client.session(user_id="u"):
    child = os.fork()
    if child == 0:
        os._exit(0 if current_session() is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_no_current_session() -> None:
    subprocess.run([sys.executable, "-c", _FORKED], check=True, timeout=300)


_SWITCHED_OFF = """
import threading
from concurrent.futures import ThreadPoolExecutor
from sessionary.producers import ProducerSettings, current_session
from sessionary.producers.testing import memory_client
methods = threading.Thread.start, ThreadPoolExecutor.submit
settings = ProducerSettings.from_env({"SESSIONARY_INHERIT_IN_THREADS": "false"})
client, pool = memory_client(settings=settings)[0], ThreadPoolExecutor(1)
with client, client.session(user_id="u") as session, pool:
    assert (threading.Thread.start, ThreadPoolExecutor.submit) == methods
    assert pool.submit(current_session).result() is None
    assert pool.submit(session.bind(current_session)).result() is session
"""


def test_a_setting_leaves_the_standard_library_as_it_is() -> None:
    subprocess.run([sys.executable, "-c", _SWITCHED_OFF], check=True, timeout=300)


def test_the_standard_library_is_wrapped_once(client: SessionClient) -> None:
    methods = threading.Thread.start, ThreadPoolExecutor.submit
    with memory_client()[0]:
        assert (threading.Thread.start, ThreadPoolExecutor.submit) == methods
    assert threading.Thread.start.__name__ == "start"


def test_a_thread_that_cannot_start_can_be_started_again(
    client: SessionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Session | AsyncSession | None] = []
    thread = threading.Thread(target=lambda: found.append(current_session()))

    def fail(*arguments: object, **more: object) -> None:
        raise RuntimeError("can't start new thread")

    with client.session(user_id="u") as session:
        names = [name for name in ("_start_new_thread", "_start_joinable_thread") if hasattr(threading, name)]
        with monkeypatch.context() as patch:
            for name in names:
                patch.setattr(threading, name, fail)
            with pytest.raises(RuntimeError):
                thread.start()
        thread.start()
        thread.join()
        assert found == [session]
