"""A thread that looks at a running stack every second or so, for the time of a context."""

import threading
from types import TracebackType
from typing import Self


class WatchThread:
    """Calls `look` again and again; a subclass says what it looks at."""

    def __init__(self, name: str, pause_s: float) -> None:
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def look(self) -> None:
        """Look once."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End with the look that is under way. Blocks for some seconds at most."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._pause_s):
            self.look()
