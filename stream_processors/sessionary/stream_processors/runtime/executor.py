"""An executor for calls that may never return.

A pool of a fixed size would lose one thread to each call that hangs, in the end all of them, and
the interpreter would wait for those threads when it exits. Here each call takes an idle thread, or
a new one if none is idle, and nothing waits for threads. Idle threads are reused, because starting
one makes the event loop wait until the new thread has had the interpreter's lock.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

_T = TypeVar("_T")


class UnboundedExecutor(Executor):
    """Runs each call at once, in a daemon thread that has no other call meanwhile."""

    def __init__(self) -> None:
        self._idle: list[queue.SimpleQueue[Callable[[], None]]] = []  # of each thread that waits for a call

    def submit(self, fn: Callable[..., _T], /, *args: Any, **kwargs: Any) -> "Future[_T]":
        """Start the call. Cancelling the future does not stop it."""
        future: Future[_T] = Future()
        future.set_running_or_notify_cancel()

        def run_call() -> None:
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - every error belongs to the caller
                self._idle.append(calls)
                future.set_exception(error)
            else:
                self._idle.append(calls)
                future.set_result(result)

        try:
            calls = self._idle.pop()
        except IndexError:
            calls = queue.SimpleQueue()
            threading.Thread(target=_run_calls, args=(calls,), daemon=True, name="call").start()
        calls.put(run_call)
        return future


def _run_calls(calls: "queue.SimpleQueue[Callable[[], None]]") -> None:
    while True:
        calls.get()()  # bound to no name, so that nothing of a call outlives it


async def wait_unless_hung(call: Coroutine[Any, Any, _T], began_s: Callable[[], float], step_s_max: float) -> _T:
    """Return what `call` returns; it may take any number of steps, each of at most `step_s_max`.

    `began_s` returns when the step under way began, on the monotonic clock. Raises `TimeoutError`;
    `call` is cancelled then, but a thread that it waits for goes on.
    """
    waiting = asyncio.ensure_future(call)
    try:
        while (left_s := began_s() + step_s_max - time.monotonic()) > 0:
            await asyncio.wait([waiting], timeout=left_s)
            if waiting.done():
                return waiting.result()
    finally:
        waiting.cancel()
    raise TimeoutError


__all__ = ["UnboundedExecutor", "wait_unless_hung"]
