"""The partition's clock: time is in the log.

The clock is the running maximum of the records' append times (`LogAppendTime`, ms); no other source
of time exists. After an outage, a stretch without any record while rows were live, no timer fires
for a while: clients that were cut off get the time to be heard. A timeout may be late, but never
false. The clocks of activity also start again at the outage's end, because an agent that could
not be heard may have worked.

If a broker's clock leapt, an operator may have a partition's clock repaired. It is set
to the broker's time, forward or back, and the records that were stamped before that move it no
more. All times in rows are then read as if the clock had stood still while it went forward, or had
never been ahead: so no limit ends early by what the clock made of the leap.

`Timers` says which rows are due.
"""

import heapq
import math
from array import array
from collections.abc import Callable, Sequence
from typing import Final, final

from sessionary.schemas.types import ClockRepair

NEVER_MS: Final = 253_402_300_799_000  # the end of the year 9999: later than any deadline
_REPAIRS_KEPT: Final = 8


@final
class Clock:
    """A partition's time: now, and until when the grace after an outage lasts; ms of log time."""

    __slots__ = ("now_ms", "outage_grace_until_ms")

    def __init__(self, now_ms: int, outage_grace_until_ms: int = 0) -> None:
        self.now_ms = now_ms
        self.outage_grace_until_ms = outage_grace_until_ms

    @property
    def is_in_outage_grace(self) -> bool:
        """Whether no timer may fire yet."""
        return self.now_ms < self.outage_grace_until_ms

    def outage_end_ms(self, outage_grace_ms: int) -> int:
        """Return when the last outage ended, 0 if there was none; `outage_grace_ms` as in
        `advance_to`.
        """
        return self.outage_grace_until_ms - outage_grace_ms if self.outage_grace_until_ms else 0

    def advance_to(self, appended_ms: int, *, live: bool, outage_ms: int, outage_grace_ms: int) -> "Clock":
        """Return the clock after a record appended at `appended_ms`; `live`: was any row live?"""
        if appended_ms <= self.now_ms:
            return self
        outage = live and appended_ms - self.now_ms > outage_ms
        return Clock(appended_ms, appended_ms + outage_grace_ms if outage else self.outage_grace_until_ms)


def add_repair(
    repairs: Sequence[ClockRepair], until_offset: int, former_ms: int, clock_ms: int
) -> tuple[ClockRepair, ...]:
    """Return the repairs of a partition's clock after one that sets it from `former_ms`.

    The last eight are kept. An older one becomes part of the next, so that a row that includes only
    one of both may be due later, but never earlier.
    """
    number = repairs[-1].number + 1 if repairs else 1
    forward_ms = clock_ms - former_ms
    added = (*repairs, ClockRepair(number, until_offset, clock_ms, max(0, forward_ms), max(0, -forward_ms)))
    if len(added) <= _REPAIRS_KEPT:
        return added
    first, second, *others = added
    both = second._replace(shift_ms=first.shift_ms + second.shift_ms, back_ms=first.back_ms + second.back_ms)
    return (both, *others)


def stands_at_repair(now_ms: int, repairs: Sequence[ClockRepair]) -> bool:
    """Return whether a clock is where the last repair set it."""
    return bool(repairs) and now_ms == repairs[-1].clock_ms


def believed_from(repairs: Sequence[ClockRepair]) -> int:
    """Return the first offset whose record moves the clock."""
    return repairs[-1].until_offset if repairs else 0


def format_seconds(limit_ms: int) -> str:
    """Return a limit as people read it: 60000 becomes `60s`."""
    return f"{limit_ms / 1000:g}s"


DueOf = Callable[[bytes], int | None]


class Timers:
    """Deadlines by row key, ms of log time. Each entry is at its row's deadline or before it."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, bytes]] = []
        self._entries: dict[bytes, int] = {}  # of the keys that are in the heap
        # The entries that were filled in and have not come up, the earliest last.
        self._filled_due_ms: array[int] = array("q")
        self._filled_keys: list[bytes] = []

    def keys(self) -> list[bytes]:
        """Return the keys of all entries, in any order; one may be there twice."""
        return [*self._entries, *self._filled_keys]

    def fill(self, due_ms: Sequence[int], keys: Sequence[bytes]) -> None:
        """Replace all entries by these; each key has the deadline in its place of `due_ms`."""
        order = sorted(range(len(keys)), key=due_ms.__getitem__, reverse=True)
        self._filled_due_ms = array("q", [due_ms[place] for place in order])
        self._filled_keys = [keys[place] for place in order]
        self._heap, self._entries = [], {}

    def schedule(self, key: bytes, due_ms: int) -> None:
        """Note a deadline. An entry that comes up earlier stays: it asks the row again."""
        entry_ms = self._entries.get(key)
        if entry_ms is None or due_ms < entry_ms:
            self._entries[key] = due_ms
            heapq.heappush(self._heap, (due_ms, key))

    def move_earlier(self, by_ms: int) -> None:
        """Move every entry to an earlier time, because each row may be due by so much earlier."""
        due_ms = dict(zip(self._filled_keys, self._filled_due_ms, strict=True)) | self._entries
        self.fill([entry_ms - by_ms for entry_ms in due_ms.values()], list(due_ms))

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
        for key, due_ms in zip(reversed(self._filled_keys), reversed(self._filled_due_ms), strict=True):
            if due_ms > until_ms or len(found) >= keys_max:
                break
            if key not in entries:
                found.append(key)
        return found

    def may_be_due(self, until_ms: int) -> bool:
        """Return whether an entry is at `until_ms` or before; if not, no row is due by then."""
        filled = self._filled_due_ms
        return (bool(self._heap) and self._heap[0][0] <= until_ms) or (bool(filled) and filled[-1] <= until_ms)

    def next_due(self, due_of: DueOf, until_ms: int) -> tuple[int, bytes] | None:
        """Return the earliest true deadline at or before `until_ms`, and its key.

        If several rows are due at the same time, the least key wins. `due_of` returns a row's
        current deadline, or None if the row is no longer live.
        """
        while self._raise_filled(until_ms, ties=True) and self._heap[0][0] <= until_ms:
            if self._check_earliest(due_of):
                return self._heap[0]
        return None

    def next_due_ms(self, due_of: DueOf) -> int | None:
        """Return the earliest true deadline of all rows; None if no row has one."""
        while self._raise_filled(math.inf, ties=False):
            if self._check_earliest(due_of):
                return self._heap[0][0]
        return None

    def _raise_filled(self, until_ms: float, *, ties: bool) -> bool:
        """Put filled entries into the heap, as long as one of them is before its first entry.

        None is put there that is after `until_ms`. `ties`: also those at the same time as the first
        entry, which may be many. Returns whether the heap has an entry.
        """
        heap, filled = self._heap, self._filled_due_ms
        while filled and filled[-1] <= until_ms:
            if heap and (filled[-1] > heap[0][0] or (filled[-1] == heap[0][0] and not ties)):
                break
            due_ms, key = filled.pop(), self._filled_keys.pop()
            if key not in self._entries:
                self.schedule(key, due_ms)
        return bool(heap)

    def _check_earliest(self, due_of: DueOf) -> bool:
        """Return whether the heap's first entry is true; if not, move it to its row's deadline."""
        due_ms, key = self._heap[0]
        if self._entries.get(key) == due_ms:
            true_ms = due_of(key)
            if true_ms == due_ms:
                return True
            del self._entries[key]
            heapq.heappop(self._heap)
            if true_ms is not None:
                self.schedule(key, true_ms)
        else:
            heapq.heappop(self._heap)
        return False
