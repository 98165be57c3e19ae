"""Calls that may hang for ever: one thread for all of them ends the process.

librdkafka waits for the answer to a commit without a limit. Where the answer is lost with a broker that restarts there
is nothing else to be done: the call cannot be ended, and the next process repeats the batch.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_EXIT_STUCK = 70
_log = logging.getLogger(__name__)


def end_process() -> None:
    """Exit at once, without any of the clean-up that might hang too."""
    logging.shutdown()
    os._exit(_EXIT_STUCK)


class Watchdog:
    """Watches one thread's calls, once it was started; before that it only takes note."""

    def __init__(self, limit_s: float, look_s: float = 1.0) -> None:
        """`limit_s`: longest time that a call may take."""
        self._limit_s, self._look_s = limit_s, look_s
        self._since: float | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch what is done in the context. Not nested."""
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._since = None

    def start(self, give_up: Callable[[], None] = end_process) -> None:
        """Look from now on, until the process ends or `give_up` returns."""
        threading.Thread(target=self._look, args=(give_up,), name="watchdog", daemon=True).start()

    def _look(self, give_up: Callable[[], None]) -> None:
        while True:
            time.sleep(self._look_s)
            since = self._since
            if since is not None and time.monotonic() - since > self._limit_s:
                _log.critical("giving up: a call hangs for %g s", self._limit_s)
                give_up()
                return


__all__ = ["Watchdog", "end_process"]
