"""Guards of the client's threads: callbacks that raise, threads that do not end in time."""

import atexit
import contextlib
import logging
import os
import signal
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Protocol, TypeVar

from sessionary.schemas.telemetry.log_fields import error_subject

# Hooks for clients when their process exits, forks or gets SIGTERM.


_log = logging.getLogger("sessionary.producers")
_SIGTERM_EXIT_CODE = 128 + signal.SIGTERM


class _Client(Protocol):
    def close(self) -> None: ...

    def leave_parent(self) -> None: ...


_LEFT_BY_PARENTS: list[object] = []
_clients: "weakref.WeakSet[_Client]" = weakref.WeakSet()


def log_error(error: Exception) -> None:
    """Log `error` as a warning of the logger `sessionary.producers`.

    The line has the error's class and session as fields (`extra`), named as roles name them.
    """
    _log.warning("%s", error, extra=error_subject(error))


def bind_to_process(client: _Client) -> None:
    """Close `client` when the process exits; part it from its parent's threads in a fork."""
    _clients.add(client)


def keep_forever(left_by_parent: object) -> None:
    """Hold the objects of a forked child's parent until the child ends.

    Freeing a librdkafka client waits for its threads, and the child has none of them.
    """
    _LEFT_BY_PARENTS.append(left_by_parent)


def exit_on_sigterm() -> None:
    """Make SIGTERM an orderly exit: sessions in `with` end, clients are closed.

    Does nothing if SIGTERM has a handler, or outside the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _raise_exit)


def _raise_exit(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(_SIGTERM_EXIT_CODE)


def _close_clients() -> None:
    for client in list(_clients):
        try:
            client.close()
        except Exception as error:  # noqa: BLE001 - one client must not keep the others open
            log_error(error)


def _leave_parent() -> None:
    for client in list(_clients):
        client.leave_parent()


atexit.register(_close_clients)
if hasattr(os, "register_at_fork"):  # Windows has none, and no fork
    os.register_at_fork(after_in_child=_leave_parent)


_Given = TypeVar("_Given")


def guard_callback(callback: Callable[[_Given], object]) -> Callable[[_Given], None]:
    """Return a form of the user's `callback` that raises nothing; its exceptions are logged.

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
