"""An executor for calls that may never return.

A pool would lose a thread to each of them, in the end all, and the interpreter would wait for them when it ends. Here
each call has a thread of its own, which nobody waits for; calls are few (one per transaction) and long.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

_T = TypeVar("_T")


class OwnThreads(Executor):
    """Runs each call in a daemon thread of its own."""

    def submit(self, fn: Callable[..., _T], /, *args: Any, **kwargs: Any) -> "Future[_T]":
        """Start the call; the future is cancelled only for the caller, the call goes on."""
        future: Future[_T] = Future()
        future.set_running_or_notify_cancel()

        def run() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is the caller's to see
                future.set_exception(error)

        threading.Thread(target=run, daemon=True, name=getattr(fn, "__name__", "call")).start()
        return future


async def unless_hung(call: Coroutine[Any, Any, _T], began_s: Callable[[], float], step_s_max: float) -> _T:
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


__all__ = ["OwnThreads", "unless_hung"]
