"""Repeats a question to ClickHouse on a dedicated thread."""

import threading
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from sessionary.schemas.errors import SessionaryError

Answer = TypeVar("Answer")
# A slow question is not repeated at once: nine times its duration may pass in between.
_REST: Final = 9.0
# An answer is served until the third question after it should have been answered.
_KEPT_PAUSES: Final = 3.0
_KEPT_S_MIN: Final = 10.0
# The longest question ends after two minutes; one that takes longer hangs.
_HUNG_S: Final = 300.0


class QuestionWatch(Generic[Answer]):
    """The last answer to one question. An unreachable ClickHouse delays nothing."""

    def __init__(
        self,
        name: str,
        ask: Callable[[], Answer],
        every_s: float,
        on_fault: Callable[[Exception], None],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Ask nothing yet. `ask` blocks, and raises `SessionaryError` if there is no answer.

        It is called every `every_s` seconds, or less often: at most a tenth of the time goes into
        answers. `name` is the thread's. `on_fault` is called on it, once per outage; also for an
        error that `ask` should not raise. `clock_s` is monotonic.
        """
        self._name, self._ask, self._every_s, self._on_fault = name, ask, every_s, on_fault
        self._clock_s = clock_s
        self._stopping, self._first = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run_watch, name=name, daemon=True)
        self._asked_s: float | None = None  # when the question under way began
        self._last: tuple[Answer, float] | None = None  # with the time until which it is served
        self._fault: str | None = None

    @property
    def answer(self) -> Answer | None:
        """The last answer; None if there is none now, or it is too old."""
        last = self._last
        return last[0] if last is not None and self._clock_s() <= last[1] else None

    @property
    def fault(self) -> str | None:
        """Why there is no answer; None if there is one, or none yet."""
        if self._fault is None and self._last is not None and self.answer is None:
            return "the last answer is too old"
        return self._fault

    def start(self) -> None:
        """Begin to ask. The thread ends with the process, or soon after `stop`."""
        self._thread.start()

    def wait_answer(self, timeout_s: float) -> None:
        """Block until there was an answer or a fault."""
        self._first.wait(timeout_s)

    def stop(self) -> None:
        """Ask no more. Never blocks."""
        self._stopping.set()

    def health(self) -> tuple[bool, str]:
        """Return whether questions are asked at all, and a line for people. Any thread may call it.

        A server that is away is no fault of the watch.
        """
        asked_s = self._asked_s
        if asked_s is not None and (age_s := self._clock_s() - asked_s) > _HUNG_S:
            return False, f"{self._name}: a question has had no end for {age_s:.0f} s"
        if self._thread.ident is not None and not self._thread.is_alive() and not self._stopping.is_set():
            return False, f"{self._name}: its thread has ended"
        return True, "ok"

    def _run_watch(self) -> None:
        while not self._stopping.is_set():
            self._asked_s, pause_s = self._clock_s(), self._every_s
            try:
                answer, now_s = self._ask(), self._clock_s()
                pause_s = max(pause_s, _REST * (now_s - self._asked_s))
                self._last, self._fault = (answer, now_s + max(_KEPT_S_MIN, _KEPT_PAUSES * pause_s)), None
            except Exception as error:  # noqa: BLE001 - without this thread there is no further answer
                if self._fault is None:
                    self._on_fault(error)
                # The text of another error may repeat a row.
                self._last, self._fault = (
                    None,
                    str(error) if isinstance(error, SessionaryError) else type(error).__name__,
                )
            self._asked_s = None
            self._first.set()
            self._stopping.wait(pause_s)
