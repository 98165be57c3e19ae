"""Asks how far a sink's log goes, in a thread of its own, and tells whether the sink keeps up.

The loop reports what has landed, and reads the answers. A loop that hangs reports nothing new, and
so is not ready either.
"""

import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import Final

from confluent_kafka import KafkaException

from sessionary.schemas.kafka.log_progress import ASK_EVERY_S, LogAnswer, LogProgress
from sessionary.sinks.runtime.host_clock import HostClock

READY_S: Final = 15.0
_STOP_S: Final = 1.0


class LogWatch:
    """Watches the log of one sink."""

    def __init__(
        self,
        ask_ends: Callable[[], Mapping[int, int]],
        clock: HostClock,
        ask_topic_id: Callable[[], str | None] = lambda: None,
    ) -> None:
        """`ask_ends` returns the ends of the partitions that answer, `ask_topic_id` the topic's id.

        Both may block for seconds. `ask_topic_id` may raise `KafkaException`.
        """
        self._ask_ends = ask_ends
        self._ask_topic_id = ask_topic_id
        self._clock = clock
        self._landed: Mapping[int, int] | None = None
        self._progress = LogProgress()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log-watch", daemon=True)
        self.answer = LogAnswer(0, {})  # the last one; replaced, never changed
        self.topic_id: str | None = None  # by the last answer

    def start(self) -> None:
        """Start asking, every five seconds."""
        self._thread.start()

    def stop(self) -> None:
        """Stop asking. Waits for a second at most; a question under way ends by itself."""
        self._stop.set()
        self._thread.join(_STOP_S)

    def ask_once(self) -> None:
        """Ask now. Blocks."""
        with contextlib.suppress(KafkaException):  # it is asked again soon
            self.topic_id = self._ask_topic_id()
        ends = self._ask_ends()
        self._progress.observe(self._landed or {}, ends, self._clock.monotonic_s())
        self.answer = LogAnswer(self.answer.number + 1, ends)

    def report_landed(self, landed: Mapping[int, int] | None) -> None:
        """Report the offset of each assigned partition below which all is in ClickHouse.

        Partitions that are blocked by name are left out. None: the sink has no assignment of its
        group.
        """
        self._landed = landed

    def readiness(self) -> tuple[bool, str]:
        """Return whether the sink keeps up, and a line for people. Any thread may call it.

        A sink without an assignment does not keep up, nor does one with a partition that has stood
        still for 15 s although its log goes on. A partition that is blocked by name does not count:
        it needs an operator, and the others go on.
        """
        if self._landed is None:
            return False, "the group has given no assignment"
        stalled = self._progress.stalled_partitions(self._clock.monotonic_s(), READY_S)
        if stalled:
            return False, "; ".join(f"partition {partition} stands {one}" for partition, one in stalled.items())
        return True, "ready"

    def _run(self) -> None:
        while not self._stop.wait(ASK_EVERY_S):
            self.ask_once()
