"""Calls that may hang: the threads they take, and how long they are waited for."""

import asyncio
import gc
import threading
import time
from types import SimpleNamespace

import pytest

from sessionary.stream_processors.runtime import executor
from sessionary.stream_processors.runtime.executor import UnboundedExecutor, free_frames_after, wait_unless_hung
from tests.support.waiting import wait_until


def test_a_call_of_many_steps_is_awaited_however_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever the time of a step is over, another one has begun."""
    now_s, looks, all_steps = 100.0, 0, threading.Event()
    monkeypatch.setattr(executor, "time", SimpleNamespace(monotonic=lambda: now_s))

    def find_new_step() -> float:
        nonlocal looks
        looks += 1
        if looks == 5:
            all_steps.set()
        return now_s

    async def call() -> bool:
        return await asyncio.get_running_loop().run_in_executor(UnboundedExecutor(), all_steps.wait, 60)

    assert asyncio.run(wait_unless_hung(call(), find_new_step, 0.02))
    assert looks >= 5


def test_a_call_whose_step_hangs_is_left() -> None:
    hang, left = threading.Event(), threading.Event()

    def hangs() -> None:
        hang.wait(60)
        left.set()

    async def story() -> None:
        loop, began_s = asyncio.get_running_loop(), time.monotonic()

        async def call() -> None:
            await loop.run_in_executor(UnboundedExecutor(), hangs)

        with pytest.raises(TimeoutError):
            await wait_unless_hung(call(), lambda: began_s, 0.1)

    asyncio.run(story())
    assert not left.is_set()
    hang.set()
    assert left.wait(60)


def test_threads_that_no_call_needs_end() -> None:
    """Eight calls at once take eight threads; when they are over, one call at a time needs one."""
    threads, before = UnboundedExecutor(idle_s_max=0.2), set(threading.enumerate())
    go_on = threading.Event()
    calls = [threads.submit(go_on.wait, 60) for _ in range(8)]
    assert len(set(threading.enumerate()) - before) == 8
    go_on.set()
    assert all(call.result(60) for call in calls)

    wait_until(lambda: not set(threading.enumerate()) - before, 60, "threads that end")
    assert threads.submit(threading.get_ident).result(60)


def test_a_thread_that_is_about_to_end_loses_no_call() -> None:
    """Calls come at just the moment at which a thread has waited for long enough."""
    threads, pause_s = UnboundedExecutor(idle_s_max=0.001), threading.Event()
    for number in range(500):
        assert threads.submit(lambda number=number: number).result(60) == number
        pause_s.wait(0.001)


def test_an_idle_thread_takes_the_next_call_and_a_hanging_one_takes_none() -> None:
    async def story() -> None:
        loop, threads, go_on = asyncio.get_running_loop(), UnboundedExecutor(), threading.Event()
        first = await loop.run_in_executor(threads, threading.get_ident)
        assert await loop.run_in_executor(threads, threading.get_ident) == first
        hanging = loop.run_in_executor(threads, lambda: (threading.get_ident(), go_on.wait(60)))
        second = [await loop.run_in_executor(threads, threading.get_ident) for _ in range(5)]
        assert set(second).isdisjoint({first, threading.get_ident()})
        assert len(set(second)) == 1
        go_on.set()
        assert await hanging == (first, True)

    asyncio.run(story())


def test_calls_at_the_same_time_have_a_thread_each() -> None:
    async def story() -> None:
        loop, threads, meeting = asyncio.get_running_loop(), UnboundedExecutor(), threading.Barrier(20, timeout=60)
        met = await asyncio.gather(*(loop.run_in_executor(threads, meeting.wait) for _ in range(20)))
        assert sorted(met) == list(range(20))

    asyncio.run(story())


def test_an_error_goes_to_the_caller_and_its_thread_takes_more_calls() -> None:
    async def story() -> None:
        loop, threads = asyncio.get_running_loop(), UnboundedExecutor()
        first = await loop.run_in_executor(threads, threading.get_ident)
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(threads, lambda: 1 // 0)
        with pytest.raises(SystemExit):
            await loop.run_in_executor(threads, exit_thread)
        assert await loop.run_in_executor(threads, threading.get_ident) == first

    asyncio.run(story())


def exit_thread() -> None:
    raise SystemExit(3)


class Part:
    """Something that a call holds; `freed_in` has the thread in which it was freed."""

    def __init__(self, freed_in: list[int]) -> None:
        self.freed_in = freed_in

    def __del__(self) -> None:
        self.freed_in.append(threading.get_ident())

    def fail(self) -> None:
        try:
            raise OSError("the cause")
        except OSError as error:
            raise ValueError("reported so") from error


def test_what_a_failed_call_held_is_freed_in_its_thread_though_its_error_is_kept() -> None:
    freed_in: list[int] = []

    async def story() -> None:
        loop, threads = asyncio.get_running_loop(), UnboundedExecutor()
        call = loop.run_in_executor(threads, Part(freed_in).fail)
        with pytest.raises(ValueError, match="reported so") as caught:
            await call
        assert isinstance(caught.value.__cause__, OSError)
        # The thread frees it a moment after the caller has the error.
        await asyncio.to_thread(wait_until, lambda: bool(freed_in), 60, "the call's part to be freed")
        assert len(freed_in) == 1
        assert freed_in != [threading.get_ident()]

    gc.disable()
    asyncio.run(story())
    gc.enable()


def test_a_failed_call_that_was_awaited_leaves_no_circle() -> None:
    freed_in: list[int] = []

    async def call(part: Part) -> None:
        await asyncio.sleep(0)
        part.fail()

    async def story() -> None:
        try:
            await wait_unless_hung(call(Part(freed_in)), time.monotonic, 10.0)
        except ValueError:
            assert freed_in == []
        assert len(freed_in) == 1

    gc.disable()
    asyncio.run(story())
    gc.enable()


def test_a_failed_task_frees_its_own_frames_and_not_those_that_go_on() -> None:
    freed: list[str] = []

    class Held:
        def __del__(self) -> None:
            freed.append("held")

    async def fail() -> None:
        held = Held()
        raise ValueError(f"{type(held).__name__} is held")

    async def story() -> str:
        task = asyncio.create_task(free_frames_after(fail))
        await asyncio.sleep(0)  # the task is done now, and its callbacks have not run yet
        with pytest.raises(ValueError, match="Held is held") as caught:
            await task
        assert freed == ["held"]
        assert caught.value is task.exception()
        await asyncio.sleep(0.01)  # the callbacks run while this coroutine waits
        return "through"

    assert asyncio.run(asyncio.wait_for(story(), 60)) == "through"
