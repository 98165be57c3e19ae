"""A job that counts events by key, in place of the session fold.

Everything else is the unchanged processor: transport, ownership, batches, transactions, stores and
recovery.
"""

from collections.abc import Callable, Iterable, MutableMapping
from itertools import chain, repeat
from typing import Any, cast

from sessionary.schemas.records import Position
from sessionary.stream_processors.core.committed import RowTally
from sessionary.stream_processors.core.model import (
    POSITION_KEY,
    BatchResult,
    Counts,
    DueRow,
    DueRows,
    JudgedRecords,
    LogRecord,
    RowFate,
)
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.runtime.job import Job, Transaction
from sessionary.stream_processors.store.packed_rows import ChangelogRecords, RowSurvey, StoredLookup, nothing_stored

_NEVER_DUE = RowFate(live=False)
RECORDS_MAX = 5_000  # the same number per transaction as the product's fold
_NO_HEADERS = repeat(None)
_digits_of, _line_of = b"%d".__mod__, b"%b %b".__mod__  # a count; a count's digits and an event's value


class CountedEvents(dict[bytes, int]):
    """The counts of a batch: each event's key, count and value.

    It stands where an outcome has rows, and has none itself: counts are counted in place.
    """

    def __init__(self) -> None:
        super().__init__()
        self.event_keys: list[bytes] = []
        self.numbers: list[int] = []
        self.values_read: list[bytes] = []


class CountingBatch:
    """A batch of a fold, with the interface of the product's `UncommittedBatch`.

    It counts in the fold's own dict, as Kafka Streams counts in its store. A batch that is not
    merged is taken back.
    """

    holds_only_ticks = False  # a tick would be an error

    def __init__(self, fold: "CountingFold") -> None:
        self._counts = fold.counts
        self._before = self.position = fold.position
        self._last: LogRecord | None = None
        self.counted = counted = CountedEvents()
        self._keys, self._numbers, self._values = counted.event_keys, counted.numbers, counted.values_read

    def apply(self, record: LogRecord) -> bool:
        """Count one record; return False if the batch is full."""
        numbers = self._numbers
        if len(numbers) >= RECORDS_MAX:
            return False
        key, value, counts = record[2], record[3], self._counts
        if key is None or value is None:
            raise ValueError("an event has a key and a value")
        counts[key] = count = counts.get(key, 0) + 1
        self._keys.append(key)
        numbers.append(count)
        self._values.append(value)
        self._last = record
        return True

    def take_back(self) -> None:
        """Undo what was counted."""
        for key in self._keys:
            self._counts[key] -= 1

    def finish(self, previous_acknowledged_at: int | None = None) -> BatchResult:
        """Return what the transaction has to write."""
        before, number = self._before, len(self._numbers)
        next_offset = before.next_offset if self._last is None else self._last.offset + 1
        position = Position(next_offset, 0, 0, before.batch_number + 1, 0, previous_acknowledged_at)
        counts = Counts(number, 0, 0, 0, 0, 0, before.next_offset, next_offset - 1)
        self.position = position
        return BatchResult(self.counted, [], position, counts, JudgedRecords())


class CountingFold:
    """The counts of one partition, with the interface of the product's `PartitionState`."""

    next_deadline_ms = None  # nothing ever fires

    def __init__(self, partition: int, settings: Any) -> None:
        self.partition = partition
        self.settings = settings
        self.rows: MutableMapping[bytes, Any] = {}
        self.counts: dict[bytes, int] = {}
        self.tally = RowTally({}, {})  # complete: no row has a label
        self.position = Position(0, 0, 0, 0, 0)
        self._open_batch: CountingBatch | None = None

    def load_position(self, position: Position) -> None:
        """Take the changelog's position record."""
        self.position = position

    def finish_loading(self, due_rows: Iterable[DueRows]) -> None:
        """Take the counts that the store has."""
        self.counts = dict(self.rows.items())

    def begin(self) -> CountingBatch:
        """Open a batch on the committed counts; one that was begun before is void."""
        if self._open_batch is not None:
            self._open_batch.take_back()
        self._open_batch = CountingBatch(self)
        return self._open_batch

    def merge(self, batch: CountingBatch) -> None:
        """Make a batch's counts the committed ones."""
        self._open_batch = None
        self.position = batch.position


def _make_transaction(changelog: str, output: str, counted: CountedEvents) -> Transaction:
    keys, digits = counted.event_keys, list(map(_digits_of, counted.numbers))
    lines = map(_line_of, zip(digits, counted.values_read, strict=True))
    # Both records of an event in turn, while its key is in the core's cache.
    records = chain.from_iterable(
        zip(
            zip(repeat(changelog), keys, digits, _NO_HEADERS),
            zip(repeat(output), keys, lines, _NO_HEADERS),
            strict=True,
        )
    )
    return Transaction(records, dict(zip(keys, digits, strict=True)))


class CountCodec:
    """Counts as their digits; no count is ever due."""

    def unpack(self, stored: bytes, read_content: Callable[[], bytes | None]) -> int:
        """Return the count."""
        return int(stored)

    def repack(self, value: bytes, due: bytes | None) -> bytes:
        """Return what a store keeps: the digits."""
        return value

    def repack_usual(self, records: ChangelogRecords, first: int, rows: dict[bytes, bytes | None]) -> int:
        """Take the digits of records, up to a position; return the place of that."""
        for place in range(first, len(records.keys)):
            if (key := records.keys[place]) == POSITION_KEY:
                return place
            rows[key or b""] = records.values[place]
        return len(records.keys)

    def estimate_bytes(self, row: int) -> int:
        """Return about how many bytes a count takes."""
        return 10

    def due_row(self, key: bytes, row: int) -> DueRow:
        """Return a row that is never due."""
        return DueRow(key, 0, _NEVER_DUE)

    def due_stored_row(self, key: bytes, stored: bytes) -> DueRow:
        """Return a row that is never due."""
        return DueRow(key, 0, _NEVER_DUE)

    def survey_rows(self, rows: Iterable[tuple[bytes, bytes]], *, counts: bool) -> RowSurvey:
        """Tell nothing: no count is ever due, and no position counts them."""
        return RowSurvey([], {}, None)


def counting_job(settings: Any, changelog: str, output: str) -> Job:
    """Return the job: one changelog record and one output per event, in the event's partition."""

    def new_state(partition: int) -> PartitionState:
        return cast(PartitionState, CountingFold(partition, settings))

    def transaction(
        partition: int, outcome: BatchResult, started_at: int, stored: StoredLookup = nothing_stored
    ) -> Transaction:
        return _make_transaction(changelog, output, cast(CountedEvents, outcome.rows))

    return Job(new_state, transaction, CountCodec())
