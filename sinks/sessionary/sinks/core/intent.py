"""When a partition's records are written, and what is committed before: the intent protocol, pure.

    commit offset a, metadata {"v":1,"to":b,...}     the batch before is done, and a..b is about to be written
    insert a..b as one block, token = ...:a-b
    commit offset b+1, no metadata                   only where nothing follows (idle, revoked, stopped)

After a crash the committed offset and metadata say which block may have been written wholly, in part or not at all.
The successor gathers exactly a..b and writes it under the same token: ClickHouse keeps what it has and adds what lacks.
The highest offset found in ClickHouse says less: parts of a block appear one by one, and views lag behind them.

States of one assignment of a partition:

    replaying ──(a..b gathered, written)──▶ gathering ──(due)──▶ in flight ──(written)──▶ gathering …
"""

import json
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sessionary.sinks.core.rows.history import RawRecord

_VERSION = 1
# A block that is young and small by comparison with what waits in the log is filled for so many times as long: what an
# insert costs is mostly the same for few rows and many, so small ones would keep the rest waiting all the more.
_PATIENCE = 4

# A cut's condition: (record, records so far, their bytes) -> whether the record belongs to the batch.
_Wanted = Callable[[RawRecord, int, int], bool]


class Limits(NamedTuple):
    """How much is gathered before it is written."""

    rows: int
    bytes: int
    seconds: float


class Intent(NamedTuple):
    """A declared batch: the records from the committed offset to `to`, `records` of them, declared at `at_ms`."""

    to: int
    records: int
    at_ms: int

    def encoded(self) -> str:
        """Return the commit's metadata (Kafka allows 4,096 bytes; this is about 60)."""
        return json.dumps({"v": _VERSION, "to": self.to, "n": self.records, "at": self.at_ms}, separators=(",", ":"))


def parse_intent(metadata: str | None) -> Intent | None:
    """Read a commit's metadata; None where it is not ours (tools that reset offsets wipe it).

    Then a batch may be written under two tokens; its rows still collapse, being equal in every key column.
    """
    try:
        fields = json.loads(metadata or "")
        if fields["v"] != _VERSION:
            return None
        return Intent(int(fields["to"]), int(fields["n"]), int(fields["at"]))
    except (ValueError, TypeError, KeyError):
        return None


class Batch(NamedTuple):
    """Records to be written as one block. `records` may be empty where the log has lost a replay's records."""

    first: int
    last: int
    records: Sequence[RawRecord]
    intent: Intent | None  # To be committed at `first` before anything is written; None where it already was
    replay_of: Intent | None = None

    def token(self, group: str, topic: str, partition: int) -> str:
        """Return the insert's deduplication token: the same for the same records, of the same group."""
        return f"{group}:{topic}:{partition}:{self.first}-{self.last}"


class PartitionPlan:
    """One partition during one assignment; made anew at the next, so that no buffer outlives its assignment.

    Not thread-safe. Times `now` are monotonic seconds.
    """

    def __init__(self, limits: Limits, committed: int | None, metadata: str | None) -> None:
        """`committed`: the group's offset for the partition, None where it has none."""
        self._limits = limits
        self._committed = committed
        self._intent = parse_intent(metadata) if committed is not None else None
        self._replay = self._intent
        self._records: deque[RawRecord] = deque()
        self._bytes = 0
        self._since: float | None = None
        self._next = committed  # next offset to be read, as far as is known
        self._end: int | None = None  # end of the log, while nothing lies behind it unread
        self._high = 0  # the log is known to go on until here
        self.in_flight: Batch | None = None
        self.landed = committed  # every row below is in ClickHouse

    @property
    def replaying(self) -> bool:
        """Whether the batch of a former owner is still to be written."""
        return self._replay is not None

    @property
    def waiting(self) -> int:
        """Records gathered and not yet in flight."""
        return len(self._records)

    @property
    def oldest_ms(self) -> int | None:
        """Log time of the oldest record that is not in ClickHouse, None where there is none at hand."""
        if self.in_flight is not None and self.in_flight.records:
            return self.in_flight.records[0].timestamp_ms
        return self._records[0].timestamp_ms if self._records else None

    @property
    def at_end(self) -> bool:
        """Whether the log's end has been read."""
        return self._end is not None

    def add(self, records: Sequence[RawRecord], now: float, high: int = 0) -> None:
        """Take the next records, in their order; those that were already taken are dropped.

        `high`: the offset before which the log ends, as far as is known.
        """
        known, size, taken = self._next or 0, self._bytes, self._records.append
        for record in records:
            if record.offset >= known:
                known = record.offset + 1
                taken(record)
                size += record.size
        if known == (self._next or 0):
            return
        self._next, self._bytes, self._end, self._high = known, size, None, high
        if self._since is None:
            self._since = now

    def reached_end(self, offset: int) -> None:
        """Take note that the log, for the time being, ends before `offset` (behind transaction markers too)."""
        self._end = max(offset, self._next or 0)
        self._next = self._end

    def due(self, now: float) -> bool:
        """Whether a batch is to be taken now."""
        if self.in_flight is not None:
            return False
        if self._replay is not None:
            return self._next is not None and self._next > self._replay.to
        return self._since is not None and (
            len(self._records) >= self._limits.rows
            or self._bytes >= self._limits.bytes
            or now - self._since >= self._limits.seconds * (_PATIENCE if self._far_behind() else 1)
        )

    def _far_behind(self) -> bool:
        return self._next is not None and self._high - self._next > len(self._records)

    def take(self, now: float, now_ms: int) -> Batch:
        """Freeze the next batch: it stays in flight, unchanged, until `wrote`. Call only when `due`, or with `waiting`.

        `now_ms`: wall clock, for the intent.
        """
        assert self.in_flight is None
        replay = self._replay
        if replay is not None:
            assert self._committed is not None
            records = self._cut(lambda record, _rows, _size: record.offset <= replay.to)
            self.in_flight = Batch(self._committed, replay.to, records, None, replay)
        else:
            records = self._cut_due()
            first, last = records[0].offset, records[-1].offset
            self.in_flight = Batch(first, last, records, Intent(last, len(records), now_ms))
        self._since = now if self._records else None
        return self.in_flight

    def _cut_due(self) -> list[RawRecord]:
        """Cut records until there are enough of them: mostly that is what was gathered, without a look at each."""
        limits, gathered = self._limits, self._records
        if len(gathered) > limits.rows or self._bytes - gathered[-1].size >= limits.bytes:
            return self._cut(lambda _record, rows, size: rows < limits.rows and size < limits.bytes)
        records, self._bytes = list(gathered), 0
        gathered.clear()
        return records

    def _cut(self, wanted: _Wanted) -> list[RawRecord]:
        cut: list[RawRecord] = []
        size = 0
        while self._records and wanted(self._records[0], len(cut), size):
            record = self._records.popleft()
            cut.append(record)
            size += record.size
        self._bytes -= size
        return cut

    def declared(self) -> None:
        """The intent of the batch in flight was committed."""
        assert self.in_flight is not None
        self._committed, self._intent = self.in_flight.first, self.in_flight.intent
        self.in_flight = self.in_flight._replace(intent=None)

    def wrote(self) -> None:
        """The batch in flight is in ClickHouse."""
        assert self.in_flight is not None
        self.landed = self.in_flight.last + 1
        self.in_flight = None
        self._replay = None

    def closing_commit(self) -> int | None:
        """Return the offset to commit, without metadata, where nothing is under way; None where that is needless.

        Right when idle, revoked or stopped: records that wait are read again by whoever comes next. An intent whose
        batch is not written must stand.
        """
        if self.in_flight is not None or self._replay is not None:
            return None
        offset = self._end if self._end is not None and not self._records else self.landed
        if offset is None or (offset == self._committed and self._intent is None):
            return None
        return offset

    def closed(self, offset: int) -> None:
        """`closing_commit` was committed."""
        self._committed, self._intent = offset, None
        self.landed = offset


__all__ = ["Batch", "Intent", "Limits", "PartitionPlan", "parse_intent"]
