"""Which rows are due: a lazy heap over deadlines that are derived from the rows.

There is one entry per row. Postponing a deadline leaves its entry in place: an entry that comes up
too early is scheduled again at the row's deadline of that moment. Nothing is stored: the heap is
built from the rows.
"""

import heapq
import math
from collections.abc import Callable

DueOf = Callable[[bytes], int | None]


class Timers:
    """Deadlines by row key, ms of log time. Each entry is at its row's deadline or before it."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, bytes]] = []
        self._entries: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def keys(self) -> list[bytes]:
        """Return the keys of all entries, in any order."""
        return list(self._entries)

    def fill(self, deadlines: list[tuple[int, bytes]]) -> None:
        """Replace all entries by these; the list becomes the timers' own."""
        # First, while the list has the order in which the keys were made: in that of the heap,
        # nearly each of them is a miss of the processor's cache.
        self._entries = {key: due_ms for due_ms, key in deadlines}
        heapq.heapify(deadlines)
        self._heap = deadlines

    def schedule(self, key: bytes, due_ms: int) -> None:
        """Note a deadline. An entry that comes up earlier stays: it asks the row again."""
        entry_ms = self._entries.get(key)
        if entry_ms is None or due_ms < entry_ms:
            self._entries[key] = due_ms
            heapq.heappush(self._heap, (due_ms, key))

    def move_earlier(self, by_ms: int) -> None:
        """Move every entry to an earlier time, because each row may be due by so much earlier."""
        self.fill([(due_ms - by_ms, key) for key, due_ms in self._entries.items()])

    def keys_until(self, until_ms: int, keys_max: int) -> list[bytes]:
        """Return the keys whose entries are at `until_ms` or before, `keys_max` of them at most."""
        heap, entries = self._heap, self._entries
        found: list[bytes] = []
        places = [0]
        while places and len(found) < keys_max:
            place = places.pop()
            if place < len(heap) and heap[place][0] <= until_ms:
                due_ms, key = heap[place]
                if entries.get(key) == due_ms:
                    found.append(key)
                places += 2 * place + 1, 2 * place + 2
        return found

    def may_be_due(self, until_ms: int) -> bool:
        """Return whether an entry is at `until_ms` or before; if not, no row is due by then."""
        return bool(self._heap) and self._heap[0][0] <= until_ms

    def next_due(self, due_of: DueOf, until_ms: float = math.inf) -> tuple[int, bytes] | None:
        """Return the earliest true deadline at or before `until_ms`, and its key.

        `due_of` gives a row's deadline as it is now, or None if the row is no longer live.
        """
        while self._heap and self._heap[0][0] <= until_ms:
            due_ms, key = self._heap[0]
            if self._entries.get(key) != due_ms:
                heapq.heappop(self._heap)
                continue
            true_ms = due_of(key)
            if true_ms == due_ms:
                return due_ms, key
            heapq.heappop(self._heap)
            del self._entries[key]
            if true_ms is not None:
                self.schedule(key, true_ms)
        return None


__all__ = ["DueOf", "Timers"]
