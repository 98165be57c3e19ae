"""Lets plain threads and thread pools inherit the current session.

Tasks, `asyncio.to_thread` and `call_soon` copy the context by themselves. Plain threads begin with
an empty one before Python 3.14, and the threads of a pool serve many sessions. So two methods of
the standard library are wrapped, once in a process: `Thread.start` and `ThreadPoolExecutor.submit`.
Outside a session the wrappers only look at one context variable. They carry this variable and no
other, so that no other library's context changes.
"""

import functools
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sessionary.producers.context.scope import Scope, bind_scope, current_scope, keep_scope, open_block

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

_lock = threading.Lock()
_installed = False


def inherit_in_threads() -> None:
    """Wrap `Thread.start` and `ThreadPoolExecutor.submit`; a second call does nothing."""
    global _installed
    with _lock:
        if not _installed:
            _installed = True
            if not getattr(sys.flags, "thread_inherit_context", 0):  # 3.14 can do it itself
                _wrap_start()
            _wrap_submit()


def _wrap_start() -> None:
    start: Callable[[threading.Thread], None] = threading.Thread.start

    def start_in_scope(self: threading.Thread) -> None:
        # `_context`: from 3.14 on, the context that the program chose for the thread.
        if open_block() is not None and getattr(self, "_context", None) is None:
            scope, run = current_scope(), self.run

            def run_in_scope() -> None:
                self.__dict__.pop("run", None)
                keep_scope(scope)
                run()

            self.run = run_in_scope  # type: ignore[method-assign]
        start(self)

    threading.Thread.start = functools.wraps(start)(start_in_scope)  # type: ignore[method-assign]


def _wrap_submit() -> None:
    from concurrent.futures import ThreadPoolExecutor  # takes long to load

    submit: Callable[..., Future[Any]] = ThreadPoolExecutor.submit

    def submit_in_scope(
        self: "ThreadPoolExecutor", fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> "Future[Any]":
        if open_block() is None:
            return submit(self, fn, *args, **kwargs)
        # A thread that the pool starts now serves other sessions later: it inherits none itself.
        return bind_scope(Scope(), submit)(self, bind_scope(current_scope(), fn), *args, **kwargs)

    ThreadPoolExecutor.submit = functools.wraps(submit)(submit_in_scope)  # type: ignore[method-assign, assignment]
