"""An executor for calls that may never return.

A pool would lose a thread to each of them, in the end all, and the interpreter would wait for them when it ends. Here
each call has a thread of its own, which nobody waits for; calls are few (one per transaction) and long.
"""

import threading
from collections.abc import Callable
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


__all__ = ["OwnThreads"]
