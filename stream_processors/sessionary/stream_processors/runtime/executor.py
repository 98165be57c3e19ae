"""An executor for calls that may never return.

A pool of so many threads would lose one to each of them, in the end all, and the interpreter would wait for them when
it ends. Here a call takes a thread that has nothing to do, or a new one where there is none, and nobody waits for
threads. They are kept: to start one costs its caller, the event loop, a wait until that thread has had the
interpreter's lock.
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
    """Runs each call at once in a daemon thread, which has no other call until this one has returned."""

    def __init__(self) -> None:
        self._idle: list[queue.SimpleQueue[Callable[[], None]]] = []  # of each thread that waits for a call

    def submit(self, fn: Callable[..., _T], /, *args: Any, **kwargs: Any) -> "Future[_T]":
        """Start the call; the future is cancelled only for the caller, the call goes on."""
        future: Future[_T] = Future()
        future.set_running_or_notify_cancel()

        def run() -> None:
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is the caller's to see
                self._idle.append(calls)
                future.set_exception(error)
            else:
                self._idle.append(calls)
                future.set_result(result)

        try:
            calls = self._idle.pop()
        except IndexError:
            calls = queue.SimpleQueue()
            threading.Thread(target=_work, args=(calls,), daemon=True, name="call").start()
        calls.put(run)
        return future


def _work(calls: "queue.SimpleQueue[Callable[[], None]]") -> None:
    while True:
        calls.get()()  # bound to no name, so that nothing of a call outlives it


async def wait_unless_hung(call: Coroutine[Any, Any, _T], began_s: Callable[[], float], step_s_max: float) -> _T:
    """Return what `call` returns; it may take any number of steps, but none longer than `step_s_max`.

    `began_s` tells when the step under way began, on the monotonic clock. Raises `TimeoutError`: `call` is cancelled
    then, but a thread that it waits for goes on.
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
