"""Following the sessions of a memory: a stream tells the state as it is when it is asked."""

import threading
import time
from collections.abc import Sequence

from sessionary.producers.errors import SessionLost, Unavailable
from sessionary.producers.session_ports import FollowedState, StateStream
from sessionary.producers.testing.memory import InMemoryTransport

_LOOK_S = 0.5  # a memory that falls silent wakes none that waits


class MemoryStream:
    """`StateStream` of one session of a memory. Waits in real time, for another thread's doing."""

    def __init__(self, memory: InMemoryTransport, session_id: str) -> None:
        self._memory, self._session_id = memory, session_id
        self._told: FollowedState | None = None
        self._closed = threading.Event()

    def read_states(self, timeout_s: float) -> Sequence[FollowedState]:
        """Return the state if it differs from the last one. Raises `Unavailable`."""
        judge, deadline = self._memory.core.judge, time.monotonic() + timeout_s
        while True:
            if self._closed.is_set() or self._memory.core.is_silent:
                raise Unavailable("the control API is silent", 0.1)
            with self._memory.core.lock:
                folded, found = judge.folded, self._find_state()
            if found is None:
                return (FollowedState(None),)
            if self._told is None or found.view != self._told.view:
                self._told = found
                return (found,)
            left_s = min(deadline - time.monotonic(), _LOOK_S)
            with judge.news:
                judge.news.wait_for(lambda: judge.folded != folded or self._closed.is_set(), max(left_s, 0.0))  # noqa: B023
            if judge.folded == folded and time.monotonic() >= deadline:
                return ()

    def _find_state(self) -> FollowedState | None:
        try:
            return self._memory.core.log.follow_session(self._session_id)
        except SessionLost:
            if self._told is None:
                raise
            return None  # archived so long ago that nothing is left of it

    def close(self) -> None:
        """End the stream."""
        self._closed.set()
        with self._memory.core.judge.news:
            self._memory.core.judge.news.notify_all()


class MemoryFollows:
    """`Follows` of a memory. Thread-safe."""

    def __init__(self, memory: InMemoryTransport) -> None:
        """Follow the sessions of `memory`."""
        self._memory = memory

    def check_configured(self) -> None:
        """Do nothing: a memory needs no settings."""

    def open_states(self, session_id: str, after: tuple[int, int] | None, timeout_s: float) -> StateStream:
        """Return a stream. Raises `SessionLost`, `Unavailable` if the memory is silent."""
        if self._memory.core.is_silent:
            raise Unavailable("the control API is silent", 0.1)
        with self._memory.core.lock:
            self._memory.core.log.follow_session(session_id)
        return MemoryStream(self._memory, session_id)
