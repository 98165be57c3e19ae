"""The rows that a batch touches, until the merge: live ones, and gravestones that vanish.

Rows are never written before the merge. Entries of the committed timers and expiries do move
meanwhile, because every deadline is looked up there; see `PartitionState.begin`.
"""

import heapq
from collections.abc import Hashable, Mapping
from typing import Any

from sessionary.stream_processors.core.children.index import ChildChanges
from sessionary.stream_processors.core.clock import Clock
from sessionary.stream_processors.core.committed import CommittedState
from sessionary.stream_processors.core.gravestones.chunk_index import end_of_day, is_chunk_key
from sessionary.stream_processors.core.gravestones.packing import Changes, plan_packing, wait_again
from sessionary.stream_processors.core.model import RECORD_OVERHEAD_BYTES
from sessionary.stream_processors.core.rows import REMAINS, AnyRows

# The row under a key before and after, whether its deadline moves or it only vanishes from now on,
# when, its estimated bytes, and the label of the row before.
RowPlan = tuple[bytes, Any, Any, bool, bool, int, int, Hashable]


class BatchRows:
    """What a batch does to rows. `rows` are those it touched (None: gone).

    `live` and `vanishing` are numbers of rows with those of the batch, as in `CommittedState`.
    `labels_before`: those that the committed rows have of which the batch touched the rows.
    `is_output_full`: what the batch writes is enough for one transaction.
    """

    def __init__(self, committed: CommittedState) -> None:
        self._committed = committed
        self._families = committed.families
        self.rows: dict[bytes, Any] = {}
        self.live, self._vanishing, self.unpacked = committed.live, committed.vanishing, committed.unpacked
        self.labels_before: dict[bytes, Hashable] = {}
        self.is_output_full = False
        self._output_bytes = 0
        position = committed.position
        self._clock = Clock(position.clock_ms, position.quiet_until_ms)
        self._repairs, self._decisions = position.clock_repairs, position.decisions
        self._rules = position.rules
        self.children = ChildChanges(committed.child_index)
        self._chunks_due_ms = committed.chunks.earliest_ms
        self._packing: Changes = {}  # as `finish` planned it last

    @property
    def written_rows(self) -> Mapping[bytes, Any]:
        """The rows that the transaction writes, as of the last `finish`: with what it packs."""
        return {**self.rows, **self._packing} if self._packing else self.rows

    @property
    def vanishing(self) -> int:
        """The number of rows that only vanish, as of the last `finish`, without chunks."""
        return self._vanishing - sum(not is_chunk_key(key) for key in self._packing)

    def get_row(self, key: bytes) -> Any:
        """Return the row under a key as it is in this batch; None if there is none."""
        row = self.rows.get(key)
        if row is not None or key in self.rows:
            return row
        row = self._committed.rows.get(key)
        return self._committed.repair_times(row, self._repairs) if self._repairs else row

    def count_children(self, parent: bytes) -> int:
        """Return how many children the row under a key has."""
        return self.children.count(parent)

    def _judged_row(self, key: bytes) -> Any:
        """Return the row under a record's key as the judge gets it."""
        row, committed = self.get_row(key), self._committed
        if type(row) in self._families.live_classes:
            return row
        if row is None or is_chunk_key(key):  # any client may send a record with the key of a chunk
            return REMAINS if committed.chunks.holds(key, self._clock.now_ms) else None
        expires_ms = committed.expiry_ms(row)
        if expires_ms is None:
            return row
        return REMAINS if expires_ms > self._clock.now_ms else None

    def _put_row(self, family: AnyRows, key: bytes, before: Any, row: Any) -> None:
        live_classes = self._families.live_classes
        is_live = type(row) in live_classes and type(before) in live_classes
        if is_live and key in self.rows and family.is_only_postponed(before, row):
            self.rows[key] = row  # as most rows that a batch touches again: nothing else changes
        else:
            self._keep_row(self._plan_row(family, key, before, row))

    def _plan_row(self, family: AnyRows, key: bytes, before: Any, row: Any) -> RowPlan:
        """Work out all that may raise, so that a failure leaves nothing half done."""
        live_classes = self._families.live_classes
        is_live, was_live = type(row) in live_classes, type(before) in live_classes
        is_begun = row is not None and (before is None or was_live)
        is_expiring = is_begun and not is_live and type(row) not in self._families.child_classes
        is_moved = is_live and not (was_live and family.is_only_postponed(before, row))
        due_ms = family.due_ms(row) if is_moved else self._expiry_ms(row) if is_expiring else 0
        if is_expiring and due_ms <= self._clock.now_ms:
            row, is_expiring = None, False
        if key in self.rows:
            return key, before, row, is_moved, is_expiring, due_ms, 0, None
        size = RECORD_OVERHEAD_BYTES if row is None else family.estimate_bytes(row)
        return key, before, row, is_moved, is_expiring, due_ms, size, self._committed.tally.label_of(before)

    def _keep_row(self, plan: RowPlan) -> None:
        key, before, row, is_moved, is_expiring, due_ms, size, label = plan
        live_classes = self._families.live_classes
        is_live, was_live = type(row) in live_classes, type(before) in live_classes
        if key not in self.rows:
            self._count_output(len(key) + size)
            self.labels_before[key] = label
        self.rows[key] = row
        if not (is_live and was_live):
            self._count_rows(key, before, row)
        if is_moved:  # if not, its timer is early, and asks the row again when it comes up
            self._committed.timers.schedule(key, due_ms)
        elif is_expiring:
            heapq.heappush(self._committed.expiries_of(type(row)), (due_ms, key))

    def _count_rows(self, key: bytes, before: Any, row: Any) -> None:
        """Count a row that begins, ends, or is live only before or after."""
        families, former, latter = self._families, type(before), type(row)
        is_live, was_live = latter in families.live_classes, former in families.live_classes
        self.live += is_live - was_live
        if latter in families.child_classes or former in families.child_classes:
            if before is None:
                self.children.add(key)
            return
        self._vanishing += (row is not None and not is_live) - (before is not None and not was_live)
        self.unpacked += (latter in families.unpacked_classes) - (former in families.unpacked_classes)
        if row is None or latter in families.expiries_ms:
            self._drop_children(key)

    def _drop_children(self, parent: bytes) -> None:
        """Drop the rows that vanish with another one."""
        keys = self.children.keys_of(parent)
        if not keys:
            return
        for key in keys:
            row = self.get_row(key)
            self.live -= self._committed.is_live(row)
            self._drop_row(key, row)
        self.children.drop(parent)

    def _drop_expired(self) -> bool:
        """Drop every row that vanishes; False if the batch is full before the last one."""
        now_ms, committed = self._clock.now_ms, self._committed
        if self._chunks_due_ms <= now_ms:
            for key in committed.chunks.expired_keys(now_ms):
                self._drop_row(key, None)
            self._chunks_due_ms = end_of_day(now_ms + 1)
        return self._drop_due(committed.expiries, now_ms) and self._drop_due(committed.unpacked_expiries, now_ms)

    def _drop_due(self, expiries: list[tuple[int, bytes]], now_ms: int) -> bool:
        """Drop the rows of a heap that vanish by now; False if the batch is full before that."""
        while expiries and expiries[0][0] <= now_ms:
            if self.is_output_full:
                return False
            _, key = heapq.heappop(expiries)
            row = self.get_row(key)
            if row is None or self._committed.is_live(row):
                continue
            due_ms = self._expiry_ms(row)
            if due_ms <= now_ms:
                self._drop_row(key, row)
                self._drop_children(key)
                self._vanishing -= 1
                self.unpacked -= type(row) in self._families.unpacked_classes
                self._leave_gravestone(key, row)
            else:  # the entry was a hint, and early
                heapq.heappush(expiries, (due_ms, key))
        return True

    def _leave_gravestone(self, key: bytes, row: Any) -> None:
        """Put what remains of a row that vanished in its place, if its time is not over too."""
        remains = self._families.remains.get(type(row))
        grave = None if remains is None else remains(row)
        if grave is not None and (ends_ms := self._expiry_ms(grave)) > self._clock.now_ms:
            self.rows[key] = grave
            self._vanishing += 1
            heapq.heappush(self._committed.expiries, (ends_ms, key))

    def _drop_row(self, key: bytes, row: Any) -> None:
        if key not in self.rows:
            self._count_output(len(key) + RECORD_OVERHEAD_BYTES)
            self.labels_before[key] = self._committed.tally.label_of(row)
        self.rows[key] = None

    def _expiry_ms(self, row: Any) -> int:
        """Return when a row that is not live vanishes."""
        committed = self._committed
        expires_ms = committed.expiry_ms(row)
        return committed.due_ms(row) if expires_ms is None else expires_ms

    def _live_due_ms(self, key: bytes) -> int | None:
        row = self.get_row(key)
        return self._committed.due_ms(row, self._hole_end_ms) if self._committed.is_live(row) else None

    @property
    def _hole_end_ms(self) -> int:
        return self._committed.hole_end_ms(self._clock)

    def _plan_packing(self) -> None:
        """Decide which gravestones are packed; that changes no verdict."""
        self._undo_packing()
        self._packing = plan_packing(
            *(self._committed.expiries, self._committed.chunks, self._committed.settings.chunk_sizes),
            *(self._clock.now_ms, lambda key: self._committed.expiry_ms(self.get_row(key))),
        )

    def _undo_packing(self) -> None:
        wait_again(self._committed.expiries, self._packing)
        self._packing = {}

    def _count_output(self, size: int) -> None:
        self._output_bytes += size
        if self._output_bytes >= self._committed.settings.output_bytes_max:
            self.is_output_full = True
