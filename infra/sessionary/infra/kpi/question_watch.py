"""Asks ClickHouse a question again and again, on a thread of its own."""

import threading
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from sessionary.schemas.errors import SessionaryError

Answer = TypeVar("Answer")
# An answer that took long is not asked for again at once: nine times as long may pass between.
_REST: Final = 9.0


class QuestionWatch(Generic[Answer]):
    """The last answer to one question. A ClickHouse that is away holds up nothing."""

    def __init__(
        self,
        name: str,
        ask: Callable[[], Answer],
        every_s: float,
        on_fault: Callable[[str], None],
    ) -> None:
        """Ask nothing yet. `ask` blocks, and raises `SessionaryError` if there is no answer.

        It is called every `every_s` seconds, or less often: at most a tenth of the time goes into
        answers. `name` is the thread's. `on_fault` is called on it, once per outage.
        """
        self._name, self._ask, self._every_s, self._on_fault = name, ask, every_s, on_fault
        self._stopping, self._first = threading.Event(), threading.Event()
        self.answer: Answer | None = None  # the last one; None if there is none now
        self.fault: str | None = None  # why there is none

    def start(self) -> None:
        """Begin to ask. The thread ends with the process, or soon after `stop`."""
        threading.Thread(target=self._run_watch, name=self._name, daemon=True).start()

    def wait_answer(self, timeout_s: float) -> None:
        """Block until there was an answer or a fault."""
        self._first.wait(timeout_s)

    def stop(self) -> None:
        """Ask no more. Never blocks."""
        self._stopping.set()

    def _run_watch(self) -> None:
        while not self._stopping.is_set():
            began_s, pause_s = time.monotonic(), self._every_s
            try:
                self.answer, self.fault = self._ask(), None
                pause_s = max(pause_s, _REST * (time.monotonic() - began_s))
            except SessionaryError as error:
                if self.fault is None:
                    self._on_fault(str(error))
                self.answer, self.fault = None, str(error)
            self._first.set()
            self._stopping.wait(pause_s)


__all__ = ["QuestionWatch"]
