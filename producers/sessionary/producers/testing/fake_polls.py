"""When the clients of a memory ask about their sessions: as often as a test's clock is moved."""

import weakref
from collections.abc import Callable
from threading import Lock


class FakePolls:
    """`PollTimer` without a thread: `poll_all` lets each client ask. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._polls: list[weakref.WeakMethod[Callable[[], None]]] = []

    def start_polls(self, poll: Callable[[], None]) -> None:
        """Call `poll`, a bound method whose object is held weakly, with each `poll_all`."""
        with self._lock:
            self._polls.append(weakref.WeakMethod(poll))

    def poll_all(self) -> None:
        """Let each client ask, in the order in which they were made, and tell what it finds."""
        with self._lock:
            self._polls = [poll for poll in self._polls if poll() is not None]
            current = list(self._polls)
        for each in current:
            poll = each()
            if poll is not None:
                poll()
