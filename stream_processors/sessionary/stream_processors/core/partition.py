"""One partition's state: records of the log in; rows and the judge's records out.

    state = PartitionState(partition, settings, decoder, judge)
    state.load(key, row); state.load_position(position); state.finish_loading()   # the changelog
    uncommitted = state.begin()
    while uncommitted.apply(record): …                                            # fold a batch
    outcome = uncommitted.finish()                                                # to be written
    state.merge(uncommitted)                                                      # acknowledged

The state is a pure function of the log: the same records give the same outcome, however they are
cut into batches, and whichever worker folds them.
"""

import heapq
from collections.abc import Iterable, MutableMapping
from typing import Any

from sessionary.schemas.codec import Decoder
from sessionary.schemas.ids import is_run_key
from sessionary.schemas.records import Position
from sessionary.stream_processors.core.clock import Clock, stands_at_repair
from sessionary.stream_processors.core.committed import ChildIndex, CommittedState, PartitionSettings, TaskIndex
from sessionary.stream_processors.core.judge import Judge
from sessionary.stream_processors.core.model import DueRows, RowFate
from sessionary.stream_processors.core.tombstones import ChunkIndex, is_chunk_key
from sessionary.stream_processors.core.uncommitted_batch import UncommittedBatch


class PartitionState(CommittedState):
    """The state of one partition, loaded from its changelog and moved on batch by batch.

    `judge` defines the rows, and decides on records. `rows` may be any mapping; a dict by default.
    """

    def __init__(
        self,
        partition: int,
        settings: PartitionSettings,
        decoder: Decoder,
        judge: Judge,
        rows: MutableMapping[bytes, Any] | None = None,
    ) -> None:
        super().__init__(partition, settings, decoder, judge, rows)
        self._open: UncommittedBatch | None = None
        self._deadline_before: int | None = None

    def load(self, key: bytes, row: Any) -> None:
        """Take one record of the changelog; None is a deletion."""
        if row is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = row

    def load_position(self, position: Position) -> None:
        """Take the changelog's position record."""
        self.position = position

    def finish_loading(self, due_rows: Iterable[DueRows] | None = None) -> None:
        """Set timers once all rows are loaded. With `due_rows`, no row is read for its deadline."""
        live_due_ms: list[int] = []
        live_keys: list[bytes] = []
        self.expiries, self.unpacked_expiries = [], []
        self.chunks, self.child_index, self.tasks = ChunkIndex(), ChildIndex(), TaskIndex()
        counted: list[bytes] = []
        for rows in self._list_due_rows() if due_rows is None else due_rows:
            fate = rows.fate
            if fate.is_counted:
                counted += rows.keys
            if fate.is_child:
                for key in rows.keys:
                    self.child_index.add(key)
            else:
                for key in [key for key in rows.keys if is_run_key(key)]:
                    self.tasks.add_run(key)
            if fate.live:
                live_due_ms += rows.due_ms
                live_keys += rows.keys
            elif fate.is_packed:
                self.expiries += rows.pairs()
            elif not fate.is_child:
                self._add_unpacked(rows.pairs())
        if back_ms := sum(repair.back_ms for repair in self.position.clock_repairs):
            # The clock was set back, maybe since a row was written: the row may be due earlier.
            live_due_ms = [due_ms - back_ms for due_ms in live_due_ms]
        heapq.heapify(self.expiries)
        heapq.heapify(self.unpacked_expiries)
        self.timers.fill(live_due_ms, live_keys)
        self.unpacked = len(self.unpacked_expiries)
        self.live, self.vanishing = len(live_keys), len(self.expiries) + self.unpacked
        self.tally.start_again(counted)

    def begin(self) -> UncommittedBatch:
        """Open a batch on the committed state. An earlier batch that was not merged is void.

        A void batch wrote no row. It did move entries of `timers` and `expiries`: those of the rows
        that it touched are restored here.
        """
        if self._open is not None:
            for key in self._open.written_rows:
                if not is_chunk_key(key):
                    self._restore_timer(key)
            self._open = None
        self._deadline_before = self.next_deadline_ms
        self._open = UncommittedBatch(self)
        return self._open

    def merge(self, uncommitted: UncommittedBatch) -> None:
        """Make a batch's rows the committed ones. Raises `ValueError` if the batch is void."""
        if uncommitted is not self._open:
            raise ValueError("this batch is void: another one was begun after it")
        for key, row in uncommitted.written_rows.items():
            self.load(key, row)
            if is_chunk_key(key):
                self.chunks.put_chunk(key, row)
            elif is_run_key(key):
                (self.tasks.drop_run if row is None else self.tasks.add_run)(key)
        uncommitted.children.merge()
        self.tally.replace_rows(uncommitted.labels_before, uncommitted.rows)
        self.live, self.vanishing, self.unpacked = uncommitted.live, uncommitted.vanishing, uncommitted.unpacked
        self.position, self._open = uncommitted.final_position, None

    def children(self, parent: bytes) -> list[bytes]:
        """Return the keys of a committed row's children; `parent` is the row's key."""
        return self.child_index.keys_of(parent)

    def keys_to_list(self) -> list[bytes]:
        """Return the keys of the rows that are live, or vanish unpacked; in any order, some twice.

        Reads no row: under some of the keys there may be none. A row that vanishes in the batch
        under way may be missing.
        """
        return [*self.timers.keys(), *(key for _, key in self.unpacked_expiries)]

    @property
    def next_deadline_ms(self) -> int | None:
        """The earliest moment at which a timer fires, ms of log time; None if no row is live.

        While a batch is open, this is the value from before it.
        """
        if self._open is not None:
            return self._deadline_before
        due_ms = self.timers.next_due_ms(self._committed_due_ms)
        return None if due_ms is None else max(due_ms, self.position.outage_grace_until_ms)

    @property
    def may_repair_clock(self) -> bool:
        """Whether the next record has changed nothing, and the clock was not repaired just now.

        A record that is written in parts may have moved the clock alone: then rows are due or over.
        """
        position, deadline_ms = self.position, self.next_deadline_ms
        if position.outputs_written and stands_at_repair(position.clock_ms, position.clock_repairs):
            return False
        if self.has_vanishing(position.clock_ms):
            return False
        return deadline_ms is None or deadline_ms > position.clock_ms

    def deadline_ms(self, row: Any) -> int:
        """Return when a row of the committed state is due, in ms of log time.

        A live row fires with the first record from then on, unless it changes before.
        """
        due_ms = self._live_due_ms(row)
        return self.due_ms(row) if due_ms is None else max(due_ms, self.position.outage_grace_until_ms)

    def count_overdue(self, now_ms: int, rows_max: int) -> int:
        """Return how many rows should have fired by now, if `now_ms` is the time; changes nothing.

        Returns 0 while no timer may fire. At most `rows_max` rows are looked at.
        """
        if self.position.outage_grace_until_ms > now_ms:
            return 0
        deadlines = map(self._committed_due_ms, self.timers.keys_until(now_ms, rows_max))
        return sum(due_ms is not None and due_ms <= now_ms for due_ms in deadlines)

    def _add_unpacked(self, due: Iterable[tuple[int, bytes]]) -> None:
        for due_ms, key in due:
            if is_chunk_key(key):
                self.chunks.put_chunk(key, self.rows[key])
            else:
                self.unpacked_expiries.append((due_ms, key))

    def _list_due_rows(self) -> list[DueRows]:
        found: dict[RowFate, DueRows] = {}
        for key, row in self.rows.items():
            fate = self.families.fates[type(row)]
            rows = found.setdefault(fate, DueRows(fate, [], []))
            rows.due_ms.append(self.due_ms(row))
            rows.keys.append(key)
        return list(found.values())

    def _committed_due_ms(self, key: bytes) -> int | None:
        return self._live_due_ms(self.rows.get(key))

    def _live_due_ms(self, row: Any) -> int | None:
        position = self.position
        if not self.is_live(row):
            return None
        if position.clock_repairs:
            row = self.repair_times(row, position.clock_repairs)
        clock = Clock(position.clock_ms, position.outage_grace_until_ms)
        return self.due_ms(row, self.outage_end_ms(clock))

    def _restore_timer(self, key: bytes) -> None:
        row = self.rows.get(key)
        if self.is_live(row):
            if self.position.clock_repairs:
                row = self.repair_times(row, self.position.clock_repairs)
            self.timers.schedule(key, self.due_ms(row))
        elif row is not None and type(row) not in self.families.child_classes:
            heapq.heappush(self.expiries_of(type(row)), (self.due_ms(row), key))
