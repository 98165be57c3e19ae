"""What happens to clients when their process exits, forks or gets SIGTERM."""

import atexit
import logging
import os
import signal
import threading
import weakref
from types import FrameType
from typing import Protocol

from sessionary.producers.delivery.emitter import SendGate
from sessionary.producers.errors import SessionaryError

_log = logging.getLogger("sessionary.producers")
_SIGTERM_EXIT_CODE = 128 + signal.SIGTERM


class _Client(Protocol):
    def close(self) -> None: ...


_clients: "weakref.WeakSet[_Client]" = weakref.WeakSet()
_gates: "weakref.WeakSet[SendGate]" = weakref.WeakSet()


def log_error(error: Exception) -> None:
    """Log `error` as a warning of the logger `sessionary.producers`."""
    _log.warning("%s", error)


def bind_to_process(client: _Client, gate: SendGate) -> None:
    """Close `client` when the process exits, and shut `gate` in forked children."""
    _clients.add(client)
    _gates.add(gate)


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
        except SessionaryError as error:
            log_error(error)


def _shut_gates() -> None:
    for gate in list(_gates):
        gate.open = False


atexit.register(_close_clients)
os.register_at_fork(after_in_child=_shut_gates)

__all__ = ["bind_to_process", "exit_on_sigterm", "log_error"]
