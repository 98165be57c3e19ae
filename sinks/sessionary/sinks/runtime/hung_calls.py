"""Ends the process if a call hangs: one thread watches all calls that may never return.

librdkafka waits for the answer to a commit without a limit. If the answer is lost when a broker
restarts, the call cannot be ended; a new process repeats the block.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sessionary.schemas.telemetry.role_logs import end_hung_process, role_logger

_log = role_logger(__name__)


class CallWatchdog:
    """Watches the calls of one thread. Has no effect before `start`."""

    def __init__(self, limit_s: float, check_every_s: float = 1.0) -> None:
        """`limit_s`: longest time that a call may take."""
        self._limit_s, self._check_every_s = limit_s, check_every_s
        self._since: float | None = None

    @contextmanager
    def watch_call(self) -> Iterator[None]:
        """Watch the call made in the context. Contexts must not be nested."""
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._since = None

    def start(self, on_hung: Callable[[], None] = end_hung_process) -> None:
        """Start the watching thread. It calls `on_hung` once if a call hangs, and ends."""
        threading.Thread(target=self._watch, args=(on_hung,), name="watchdog", daemon=True).start()

    def _watch(self, on_hung: Callable[[], None]) -> None:
        while True:
            time.sleep(self._check_every_s)
            since = self._since
            if since is not None and time.monotonic() - since > self._limit_s:
                _log.critical("the process ends: a call has been hanging for %(limit_s)g s", limit_s=self._limit_s)
                on_hung()
                return
