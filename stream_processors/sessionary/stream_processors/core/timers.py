"""Which sessions are due: a lazy heap over deadlines that are derived from state.

One entry per session. An event that moves a deadline out leaves the entry where it is; when the entry comes up too
early, it goes back in at the session's deadline of that time. Nothing here is stored: the heap is built from the rows.
"""

import heapq
import math
from collections.abc import Callable, Iterable

DueOf = Callable[[bytes], int | None]


class Timers:
    """Deadlines by session key, ms of log time. Each entry stands at its session's deadline or before it."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, bytes]] = []
        self._standing: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._standing)

    def fill(self, deadlines: Iterable[tuple[int, bytes]]) -> None:
        """Begin anew with these."""
        self._heap = list(deadlines)
        heapq.heapify(self._heap)
        self._standing = {key: due_ms for due_ms, key in self._heap}

    def schedule(self, key: bytes, due_ms: int) -> None:
        """Take note of a deadline; does nothing where an earlier entry will ask again anyway."""
        standing = self._standing.get(key)
        if standing is None or due_ms < standing:
            self._standing[key] = due_ms
            heapq.heappush(self._heap, (due_ms, key))

    def next_due(self, due_of: DueOf, until_ms: float = math.inf) -> tuple[int, bytes] | None:
        """Return the earliest true deadline at or before `until_ms`, and its key.

        `due_of` gives a session's own deadline of now, None where the session is gone.
        """
        while self._heap and self._heap[0][0] <= until_ms:
            due_ms, key = self._heap[0]
            if self._standing.get(key) != due_ms:
                heapq.heappop(self._heap)
                continue
            true_ms = due_of(key)
            if true_ms == due_ms:
                return due_ms, key
            heapq.heappop(self._heap)
            del self._standing[key]
            if true_ms is not None:
                self.schedule(key, true_ms)
        return None


__all__ = ["DueOf", "Timers"]
