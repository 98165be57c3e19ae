"""One partition's fold: records of the log in; rows, audit records, refusals and clean-up requests out.

    fold = PartitionFold(partition, settings, decoder)
    fold.load(key, row) …  fold.load_position(position)  fold.loaded()      # what the changelog holds
    batch = fold.begin()
    while batch.apply(record): …                                            # an overlay: the fold itself is untouched
    outcome = batch.finish()                                                # written in one transaction
    fold.merge(batch)                                                       # after its acknowledgement

The table is a pure function of the log: the same records give the same outcome, however they are cut into batches, and
whoever folds them. Each record first moves the partition's clock and fires, in due order, every deadline that is now
past; then it is judged. How one event is judged is in `verdict.py`.
"""

import heapq
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import NamedTuple

from sessionary.schemas.codec import Decoder
from sessionary.schemas.ids import SessionKey
from sessionary.schemas.records import (
    AuditRecord,
    CleanupRequest,
    Gravestone,
    Position,
    RejectedEvent,
    SessionState,
)
from sessionary.stream_processors.core import trail
from sessionary.stream_processors.core import verdict as judging
from sessionary.stream_processors.core.clock import Clock
from sessionary.stream_processors.core.session.machine import deadline, fire
from sessionary.stream_processors.core.timers import Timers

Row = SessionState | Gravestone
RECORD_OVERHEAD_BYTES = 100


class LogRecord(NamedTuple):
    """A record as it stands in the log; `timestamp_ms` is its append time."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]] = ()


class Standing(NamedTuple):
    """When a row is next looked at (ms of log time), and whether it is a session's: else it is a gravestone."""

    key: bytes
    due_ms: int
    lives: bool


def due_of(row: Row) -> int:
    """Return when a row is next looked at: a session's deadline, a gravestone's end; ms of log time."""
    return deadline(row).due_ms if isinstance(row, SessionState) else row.expires_at


def _only_later(before: SessionState, row: SessionState) -> bool:
    """Whether the deadline cannot have come nearer: within Active limits stand, and every clock only runs forward."""
    return row.state == "Active" == before.state


class FoldSettings(NamedTuple):
    """What a fold depends on besides the log, and the bounds of one batch."""

    events_topic: str
    partitions: int
    hole_ms: int = 5_000
    quiet_ms: int = 25_000
    records_max: int = 5_000
    bytes_max: int = 8 << 20
    timers_max: int = 5_000
    gravestone_ms: int = 1_209_600_000  # 14 days: the topic's retention + the spool's age limit


class Counts(NamedTuple):
    """What became of a batch's records; applied + duplicate + refused + ticks = records."""

    applied: int
    duplicate: int
    refused: int
    audited: int
    timers: int
    ticks: int
    first_offset: int
    last_offset: int


class Outcome(NamedTuple):
    """What one transaction writes; a row of None is a tombstone."""

    rows: Mapping[bytes, Row | None]
    audits: Sequence[tuple[bytes, AuditRecord]]
    rejected: Sequence[tuple[bytes | None, RejectedEvent]]
    cleanups: Sequence[tuple[bytes, CleanupRequest]]
    position: Position
    counts: Counts


class PartitionFold:
    """The committed state of one partition. `rows` may be any mapping; a dict by default."""

    def __init__(
        self,
        partition: int,
        settings: FoldSettings,
        decoder: Decoder,
        rows: MutableMapping[bytes, Row] | None = None,
    ) -> None:
        self.partition = partition
        self.settings = settings
        self.decoder = decoder
        self.rows: MutableMapping[bytes, Row] = {} if rows is None else rows
        self.position = Position(0, 0, 0, 0, 0)
        self.timers = Timers()
        self.graves: list[tuple[int, bytes]] = []
        self.live = 0
        self._open: Batch | None = None
        self._next_before: int | None = None

    def load(self, key: bytes, row: Row | None) -> None:
        """Take one record of the changelog; None is a tombstone."""
        if row is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = row

    def load_position(self, position: Position) -> None:
        """Take the changelog's position record."""
        self.position = position

    def loaded(self, standing: Iterable[Standing] | None = None) -> None:
        """Set timers, once all rows are loaded; `standing` says what else would be derived from the rows here."""
        due = list[tuple[int, bytes]]()
        self.graves = []
        for key, due_ms, lives in standing if standing is not None else self._standing():
            (due if lives else self.graves).append((due_ms, key))
        heapq.heapify(self.graves)
        self.timers.fill(due)
        self.live = len(due)

    def _standing(self) -> Iterable[Standing]:
        return (Standing(key, due_of(row), isinstance(row, SessionState)) for key, row in self.rows.items())

    def begin(self) -> "Batch":
        """Open a batch on the committed state. One that was begun before and not merged is void from here on."""
        if self._open is not None:
            for key in self._open.rows:
                self._restore(key)
            self._open = None
        self._next_before = self.next_deadline_ms
        self._open = Batch(self)
        return self._open

    def merge(self, batch: "Batch") -> None:
        """Make a batch's outcome the committed state."""
        if batch is not self._open:
            raise ValueError("this batch is void: another one was begun after it")
        for key, row in batch.rows.items():
            self.load(key, row)
        self.position, self.live, self._open = batch.position(), batch.live, None

    @property
    def next_deadline_ms(self) -> int | None:
        """The earliest moment at which something fires, ms of log time; None where no session lives.

        While a batch is open: as it was before that batch, as its deadlines are not committed yet.
        """
        if self._open is not None:
            return self._next_before
        earliest = self.timers.next_due(self._committed_due)
        return None if earliest is None else max(earliest[0], self.position.quiet_until_ms)

    def _committed_due(self, key: bytes) -> int | None:
        row = self.rows.get(key)
        return deadline(row).due_ms if isinstance(row, SessionState) else None

    def _restore(self, key: bytes) -> None:
        """Note the committed row's time again: a void batch may have moved it."""
        match self.rows.get(key):
            case SessionState() as row:
                self.timers.schedule(key, deadline(row).due_ms)
            case Gravestone() as grave:
                heapq.heappush(self.graves, (grave.expires_at, key))


class Batch:
    """An overlay on a fold. `rows` are those touched; drop the batch and nothing happened."""

    def __init__(self, fold: PartitionFold) -> None:
        self._fold = fold
        self.rows: dict[bytes, Row | None] = {}
        self.live = fold.live
        self.records = 0
        self._bytes = 0
        self._before = fold.position
        self._clock = Clock(fold.position.clock_ms, fold.position.quiet_until_ms)
        self._next_offset = fold.position.next_offset
        self._first_offset: int | None = None
        self._n = fold.position.outcome_n
        self._applied = self._duplicate = self._refused = self._fired = self._ticks = 0
        self._audits: list[tuple[bytes, AuditRecord]] = []
        self._rejected: list[tuple[bytes | None, RejectedEvent]] = []
        self._cleanups: list[tuple[bytes, CleanupRequest]] = []

    def apply(self, record: LogRecord) -> bool:
        """Fold one record. False: the batch is full; commit it, then apply the same record to the next.

        Raises `Unavailable` where a schema registry does not answer; the same call may then be made again.
        """
        size = len(record.key or b"") + len(record.value or b"") + RECORD_OVERHEAD_BYTES
        settings = self._fold.settings
        if self.records >= settings.records_max or (self.records and self._bytes + size > settings.bytes_max):
            return False
        if self._first_offset is None:
            self._first_offset = record.offset
        if record.offset != self._next_offset:
            self._next_offset, self._n = record.offset, 0  # offsets between are transaction markers or compacted away
        self._clock = self._clock.advanced(
            record.timestamp_ms, standing=self.live > 0, hole_ms=settings.hole_ms, quiet_ms=settings.quiet_ms
        )
        self._clear_graves()
        if not self._fire_due(record.offset):
            return False
        self._judge(record)
        self.records += 1
        self._bytes += size
        self._next_offset, self._n = record.offset + 1, 0
        return True

    def position(self) -> Position:
        """Return where the fold stands after this batch."""
        return Position(
            next_offset=self._next_offset,
            clock_ms=self._clock.now_ms,
            quiet_until_ms=self._clock.quiet_until_ms,
            batch_number=self._before.batch_number + 1,
            outcome_n=self._n,
        )

    def finish(self) -> Outcome:
        """Return what the transaction has to write."""
        first = self._before.next_offset if self._first_offset is None else self._first_offset
        counts = Counts(
            applied=self._applied,
            duplicate=self._duplicate,
            refused=self._refused,
            audited=len(self._audits),
            timers=self._fired,
            ticks=self._ticks,
            first_offset=first,
            last_offset=max(first, self._next_offset - 1),
        )
        return Outcome(self.rows, self._audits, self._rejected, self._cleanups, self.position(), counts)

    def _row(self, key: bytes) -> Row | None:
        return self.rows[key] if key in self.rows else self._fold.rows.get(key)

    def _put(self, key: bytes, before: Row | None, row: Row) -> None:
        self.rows[key] = row
        if isinstance(row, SessionState):
            if isinstance(before, SessionState):
                if _only_later(before, row):
                    return  # its entry asks again anyway
            else:
                self.live += 1
            self._fold.timers.schedule(key, deadline(row).due_ms)
        elif isinstance(before, SessionState):
            self.live -= 1
            heapq.heappush(self._fold.graves, (row.expires_at, key))

    def _source(self, offset: int) -> trail.Source:
        source = trail.Source(self._fold.partition, offset, self._n, self._clock.now_ms, self._before.batch_number + 1)
        self._n += 1
        return source

    def _due(self, key: bytes) -> int | None:
        row = self._row(key)
        return deadline(row).due_ms if isinstance(row, SessionState) else None

    def _clear_graves(self) -> None:
        graves = self._fold.graves
        while graves and graves[0][0] <= self._clock.now_ms:
            _, key = heapq.heappop(graves)
            row = self._row(key)
            if isinstance(row, Gravestone) and row.expires_at <= self._clock.now_ms:
                self.rows[key] = None

    def _fire_due(self, offset: int) -> bool:
        """Fire what is past; False where the batch is full before all of it was."""
        if self._clock.quiet:
            return True
        while due := self._fold.timers.next_due(self._due, self._clock.now_ms):
            if self._fired >= self._fold.settings.timers_max:
                return False
            self._fire(due[1], offset)
        return True

    def _fire(self, key: bytes, offset: int) -> None:
        row = self._row(key)
        assert isinstance(row, SessionState)
        fact = fire(deadline(row), self._clock.now_ms)
        moved = judging.transitioned(SessionKey(row.tenant_id, row.session_id), row, fact, None, self._source(offset))
        self._fired += 1
        self._take(key, moved)
        archived = fact.transition.target == "Archived"
        self._put(
            key, row, judging.buried(moved.row, self._clock.now_ms, self._fold.settings) if archived else moved.row
        )

    def _take(self, key: bytes, verdict: judging.Applied) -> None:
        if verdict.audits:
            self._audits.extend((key, record) for record in verdict.audits)
        if verdict.cleanup is not None:
            self._cleanups.append((key, verdict.cleanup))

    def _judge(self, record: LogRecord) -> None:
        key = record.key or b""
        row = self._row(key) if key else None
        verdict = judging.judge(
            judging.Arrival(record, row, self._fold.partition, self._fold.settings.partitions, self._clock.now_ms),
            self._fold.decoder,
            lambda: self._source(record.offset),
        )
        match verdict:
            case judging.Ticked():
                self._ticks += 1
            case judging.Duplicate():
                self._duplicate += 1
            case judging.Applied():
                self._applied += 1
                self._take(key, verdict)
                if verdict.row is not row:
                    self._put(key, row, verdict.row)
            case judging.Rejected():
                self._refused += 1
                self._reject(record, row, verdict)

    def _reject(self, record: LogRecord, row: Row | None, verdict: judging.Rejected) -> None:
        key = record.key or b""
        self._audits.extend((key, line) for line in verdict.audits)
        if verdict.row is not None and verdict.row is not row:
            self._put(key, row, verdict.row)
        rejected = verdict.dead_letter(record, self._fold.settings.events_topic, self._fold.partition)
        self._rejected.append((record.key, rejected))


__all__ = [
    "Batch",
    "Counts",
    "FoldSettings",
    "LogRecord",
    "Outcome",
    "PartitionFold",
    "Row",
    "Standing",
    "due_of",
]
