"""An executor for calls that may never return.

A pool of a fixed size would lose one thread to each call that hangs, in the end all of them, and
the interpreter would wait for those threads when it exits. Here each call takes an idle thread, or
a new one if none is idle, and nothing waits for threads. Idle threads are reused, because starting
one makes the event loop wait until the new thread has had the interpreter's lock.
"""

import asyncio
import functools
import queue
import threading
import time
import traceback
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

_T = TypeVar("_T")
_IDLE_S_MAX = 60.0

_Calls = queue.SimpleQueue[Callable[[], None]]


class UnboundedExecutor(Executor):
    """Runs each call at once, in a daemon thread that has no other call meanwhile."""

    def __init__(self, idle_s_max: float = _IDLE_S_MAX) -> None:
        """`idle_s_max`: how long a thread waits for its next call before it ends."""
        self._idle_s_max = idle_s_max
        # One for each thread that waits for a call. The last is taken first, so others may end.
        self._idle: list[_Calls] = []

    def submit(self, fn: Callable[..., _T], /, *args: Any, **kwargs: Any) -> "Future[_T]":
        """Start the call. Cancelling the future does not stop it."""
        future: Future[_T] = Future()
        future.set_running_or_notify_cancel()
        try:
            calls = self._idle.pop()
        except IndexError:
            calls = queue.SimpleQueue()
            run_calls = functools.partial(_run_calls, calls, self._idle, self._idle_s_max)
            threading.Thread(target=run_calls, daemon=True, name="call").start()
        be_idle = functools.partial(self._idle.append, calls)
        calls.put(functools.partial(_run_call, future, functools.partial(fn, *args, **kwargs), be_idle))
        return future


def free_frames(error: BaseException | None) -> None:
    """Free the objects in the frames of an error and its causes.

    An error keeps the frames that it passed, and the frames keep arguments and local variables:
    clients of librdkafka, partition owners, the error itself. The traceback's lines stay known.
    """
    seen: set[int] = set()
    errors = [error]
    while errors:
        error = errors.pop()
        if error is not None and id(error) not in seen:
            seen.add(id(error))
            traceback.clear_frames(error.__traceback__)
            errors += error.__cause__, error.__context__


def _run_call(future: "Future[_T]", call: Callable[[], _T], be_idle: Callable[[], None]) -> None:
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - every error belongs to the caller
        # Here and not on the event loop: to free a client of librdkafka may block.
        free_frames(error)
        be_idle()
        future.set_exception(error)
        del future, call  # the error holds this frame
    else:
        be_idle()
        future.set_result(result)


def _run_calls(calls: _Calls, idle: list[_Calls], idle_s_max: float) -> None:
    while True:
        try:
            calls.get(timeout=idle_s_max)()  # bound to no name, so that nothing of a call outlives it
        except queue.Empty:
            try:
                idle.remove(calls)
            except ValueError:
                continue  # taken a moment ago: its next call comes
            return


async def wait_unless_hung(call: Coroutine[Any, Any, _T], began_s: Callable[[], float], step_s_max: float) -> _T:
    """Return the result of `call`; it may take any number of steps, each of `step_s_max` at most.

    `began_s` returns when the step under way began, on the monotonic clock. Raises `TimeoutError`;
    `call` is cancelled then, but a thread for which it waits continues.
    """
    waiting = asyncio.ensure_future(call)
    try:
        while (left_s := began_s() + step_s_max - time.monotonic()) > 0:
            await asyncio.wait([waiting], timeout=left_s)
            if waiting.done():
                return waiting.result()
    finally:
        waiting.cancel()
        del waiting  # an error of it holds this frame
    raise TimeoutError


async def free_frames_after(start: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    """Return the result of the started call. If it raises, clear the frames of its error.

    For the body of a task: those frames hold what started the task, which holds the task, which
    holds the error. Only a full garbage collection would free that circle, and a worker nearly
    never makes one. Cleared here and not when the task is done: by then others may have awaited the
    task, and their running frames would be cleared too, which ends their coroutines.
    """
    call = start()
    del start  # this frame stays in the error, and must not hold what the call belongs to
    try:
        return await call
    except BaseException as error:
        free_frames(error)
        raise
