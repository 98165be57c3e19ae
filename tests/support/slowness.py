"""How busy the machine is while something is measured: the time that a small process needs."""

import subprocess
import sys
import threading
import time
from typing import Final

_PROGRAM: Final = "import confluent_kafka, pydantic"
# On an idle machine it needs less. Something that is measured beside it has many such pieces of
# work, and waits for other processes that have them too.
_QUICK_S, _PIECES = 2.0, 6
_PAUSE_S = 5.0


def start_process() -> float:
    """Start an interpreter that imports some packages; return how many seconds that took."""
    began_s = time.monotonic()
    subprocess.run([sys.executable, "-c", _PROGRAM], check=True, timeout=300)
    return time.monotonic() - began_s


class Slowness:
    """Starts a small process every few seconds, in a thread, for the context."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="slowness", daemon=True)

    def __enter__(self) -> "Slowness":
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._done.set()
        self._thread.join(300)

    @property
    def slack_s(self) -> float:
        """By how much a limit in seconds is longer here and now; 0 on an idle machine."""
        return _PIECES * max(0.0, self.longest_s - _QUICK_S)

    def _run(self) -> None:
        while not self._done.wait(_PAUSE_S):
            self.longest_s = max(self.longest_s, start_process())
