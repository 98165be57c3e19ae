"""The inside of a memory, which its ports share: the judged log, under one lock."""

import threading
import time
from typing import TYPE_CHECKING

from sessionary.producers.testing.fake_heartbeats import FakeHeartbeats
from sessionary.producers.testing.fake_polls import FakePolls
from sessionary.producers.testing.judged_event import MemoryQuota
from sessionary.producers.testing.memory_requests import Deliveries

if TYPE_CHECKING:
    from sessionary.producers.testing.judge import Judge


class MemoryCore:
    """The log of a memory, its judge, and the clients' heartbeats, polls and readers.

    Attributes:
        lock: Guards the others.
        log: What was sent, and how it was judged.
        timers: The heartbeats of the clients.
        deliveries: Passes requests to the clients.
        polls: Lets the clients ask about their sessions.
        is_silent: The control API does not answer.
    """

    def __init__(self, partitions: int, quota: MemoryQuota | None) -> None:
        """Begin empty, at the present time."""
        from sessionary.producers.testing.judged_log import JudgedLog  # loads the processor's rules

        self.lock = threading.RLock()
        self.log: JudgedLog = JudgedLog(partitions, time.time_ns() // 1_000_000, quota)
        self.judge: Judge = self.log.judge
        self.timers: list[FakeHeartbeats] = []
        self.deliveries = Deliveries(self.judge, self.lock)
        self.polls = FakePolls()
        self.is_silent = False

    def new_heartbeats(self) -> FakeHeartbeats:
        """Return the heartbeats of a client, which moving the clock sends."""
        timer = FakeHeartbeats(lambda: self.judge.now_ms)
        with self.lock:
            self.timers.append(timer)
        return timer
