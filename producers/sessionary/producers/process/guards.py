"""Guards of the client's threads: callbacks that raise, threads that do not end in time."""

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from sessionary.schemas.telemetry.log_fields import error_subject

_log = logging.getLogger("sessionary.producers")
_Given = TypeVar("_Given")


def guard_callback(callback: Callable[[_Given], object]) -> Callable[[_Given], None]:
    """Return a form of the user's `callback` that raises nothing; what it raises is logged.

    A `KeyboardInterrupt` in the main thread is the user's own and passes.
    """

    def call_back(given: _Given) -> None:
        try:
            callback(given)
        except BaseException as raised:
            if isinstance(raised, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                raise
            with contextlib.suppress(Exception):  # a handler of the log may raise too
                fields = error_subject(given if isinstance(given, Exception) else raised)
                _log.exception("a callback of the client raised; it was called with %r", given, extra=fields)

    return call_back


def join_thread(thread: threading.Thread | None, timeout_s: float) -> bool:
    """Wait for the end of a thread for at most `timeout_s`; return whether it has ended.

    A thread that never started, or that calls this itself, is not waited for: returns True.
    """
    if thread is None or thread is threading.current_thread():
        return True
    thread.join(max(timeout_s, 0.0))
    return not thread.is_alive()
