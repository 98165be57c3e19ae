"""Guards of the client's threads: callbacks that raise, threads that do not end in time."""

import _thread
import atexit
import contextlib
import logging
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Protocol, TypeVar

from sessionary.producers.errors import ProducerError
from sessionary.schemas.telemetry.log_fields import error_subject

# Hooks for clients when their process exits, forks or gets SIGTERM.


_log = logging.getLogger("sessionary.producers")
_SIGTERM_EXIT_CODE = 128 + signal.SIGTERM


class _Client(Protocol):
    def begin_exit(self) -> float: ...

    def close(self, timeout_s: float | None = None) -> None: ...

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


class Lease:
    """Keeps a client open while it exists: the client's faces and sessions hold it."""


def close_without(lease: Lease, client: _Client) -> "weakref.finalize[..., Lease]":
    """Close a client once its lease is gone: no object of the program can use it any more.

    Whatever collects the lease may hold a lock of the client or of `threading`, so the client is
    closed on a thread of its own, and `_thread` starts the one that starts it, without a lock.
    """

    def close_client() -> None:
        with _logging_errors():
            client.close()

    def start_closing() -> None:
        with contextlib.suppress(RuntimeError):
            threading.Thread(target=close_client, name="sessionary-close", daemon=True).start()

    def close_soon() -> None:
        with contextlib.suppress(RuntimeError):  # no thread can be had: its events are in the spool
            _thread.start_new_thread(start_closing, ())

    watch = weakref.finalize(lease, close_soon)
    watch.atexit = False  # then all clients are closed together
    return watch


def check_threads() -> None:
    """Raise `ProducerError` if a library has replaced this process's threads.

    librdkafka's calls wait in C. In a greenlet such a wait stops all others, for ever.
    """
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    if gevent is not None and gevent.is_module_patched("threading"):
        name = "gevent"
    elif eventlet is not None and eventlet.is_monkey_patched("thread"):
        name = "eventlet"
    else:
        return
    raise ProducerError(
        f"{name} has replaced the threads of this process, and Kafka's client would stop all its greenlets: let the "
        "server use threads (gunicorn -k gthread, celery -P threads), patch all but threads (thread=False), or turn "
        "the client off (SESSIONARY_DISABLED=1)"
    )


def no_thread_error(error: RuntimeError) -> ProducerError:
    """Return the error of a client that may start no thread."""
    return ProducerError(
        f"this process may start no further thread ({error}), and the client needs some: raise the limit of threads "
        "(ulimit -u, TasksMax of systemd, pids of a container), close clients that are not used, or make the client "
        "before the interpreter exits"
    )


def start_thread(thread: threading.Thread) -> None:
    """Start a thread. Raises `ProducerError` if the process may start none."""
    try:
        thread.start()
    except RuntimeError as error:
        raise no_thread_error(error) from None


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
    """Close all clients at the exit. They wait at the same time: while one does, all deliver."""
    began_s, longest_s = time.monotonic(), {}
    for client in list(_clients):
        with _logging_errors():
            longest_s[client] = client.begin_exit()
    for client, wait_s in longest_s.items():
        with _logging_errors():
            client.close(max(began_s + wait_s - time.monotonic(), 0.0))


@contextlib.contextmanager
def _logging_errors() -> Iterator[None]:
    try:
        yield
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
    if thread is None or thread.ident is None or thread is threading.current_thread():
        return True
    thread.join(max(timeout_s, 0.0))
    return not thread.is_alive()
