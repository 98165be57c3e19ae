"""Fetched records of one partition that wait to be folded; too many interrupt the fetching.

A fetch has a `begin_offset`: from there to its last record's offset no other offset holds a record.
So it follows on a position that is not below `begin_offset`.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from sessionary.stream_processors.core.model import RECORD_OVERHEAD_BYTES, LogRecord

PENDING_BYTES_MAX = 8 << 20


class FetchControl(Protocol):
    """How an owner steers the fetching of its partition. Nothing blocks."""

    def fetch_from(self, partition: int, offset: int, believed_from: int) -> None:
        """Fetch from `offset` on; drop what was fetched before.

        What is stamped below `believed_from` does not move the clock, and may be stamped ahead.
        """
        ...

    def pause_partition(self, partition: int) -> None:
        """Interrupt the fetching."""
        ...

    def resume_partition(self, partition: int) -> None:
        """Go on fetching."""
        ...

    def drop_partition(self, partition: int) -> None:
        """Stop fetching."""
        ...

    def add_pending_bytes(self, size: int) -> None:
        """Count bytes that wait to be folded; negative: that wait no longer."""
        ...


class FollowingRecords(NamedTuple):
    """Records in the order of offsets, all that there are from `begin_offset` to the last one."""

    begin_offset: int
    records: Sequence[LogRecord]


class PendingRecords:
    """A queue of batches, as they were fetched. Belongs to the event loop."""

    def __init__(self, partition: int, fetch_control: FetchControl) -> None:
        self._partition = partition
        self._fetch_control = fetch_control
        self._batches: deque[tuple[FollowingRecords, int]] = deque()  # with their bytes
        self._bytes = 0
        self._paused = False

    def __bool__(self) -> bool:
        return bool(self._batches)

    def append_batch(self, fetch: FollowingRecords, size: int | None = None) -> None:
        """Add a fetch (not empty) as the last one; interrupt the fetching if too much waits.

        `size`: `bytes_of` its records, if that is known.
        """
        size = bytes_of(fetch.records) if size is None else size
        self._batches.append((fetch, size))
        self._count_bytes(size)
        if self._bytes > PENDING_BYTES_MAX and not self._paused:
            self._paused = True
            self._fetch_control.pause_partition(self._partition)

    def put_back(self, fetch: FollowingRecords) -> None:
        """Add a fetch (not empty) as the first one."""
        self._batches.appendleft((fetch, bytes_of(fetch.records)))
        self._count_bytes(self._batches[0][1])

    def take_batch(self, position: int, records_max: int) -> FollowingRecords:
        """Remove and return records from `position` on, in order, until a fetch leaves a gap.

        They follow on `position` unless their `begin_offset` is above it. They may be none, and the
        last fetch may exceed `records_max`.
        """
        self._drop_older_fetches(position)
        taken: list[LogRecord] = []
        begin_offset = expected = position
        while self._batches and len(taken) < records_max:
            if taken and self._batches[0][0].begin_offset > expected:
                break
            fetch = self._pop_batch()
            records = fetch.records
            if records[0].offset < expected:
                records = [record for record in records if record.offset >= expected]
            if records and not taken:
                begin_offset = max(position, fetch.begin_offset)
            taken.extend(records)
            if taken:
                expected = taken[-1].offset + 1
        if self._paused and self._bytes < PENDING_BYTES_MAX // 2:
            self._resume_fetching()
        return FollowingRecords(begin_offset, taken)

    def first_ms_from(self, offset: int) -> int | None:
        """Return when the first record from `offset` on was appended (ms), None if none waits."""
        for fetch, _ in self._batches:
            if fetch.records[-1].offset >= offset:
                return next(record.timestamp_ms for record in fetch.records if record.offset >= offset)
        return None

    def drop_all(self) -> None:
        """Remove all records; go on fetching if it was interrupted."""
        self._batches.clear()
        self._count_bytes(-self._bytes)
        if self._paused:
            self._resume_fetching()

    def _drop_older_fetches(self, position: int) -> None:
        """If a fetch holds what follows, drop those before it: folded, or from before a seek."""
        holders = (
            n
            for n, (fetch, _) in enumerate(self._batches)
            if fetch.begin_offset <= position <= fetch.records[-1].offset
        )
        for _ in range(next(holders, 0)):
            self._pop_batch()

    def _pop_batch(self) -> FollowingRecords:
        fetch, size = self._batches.popleft()
        self._count_bytes(-size)
        return fetch

    def _count_bytes(self, size: int) -> None:
        self._bytes += size
        self._fetch_control.add_pending_bytes(size)

    def _resume_fetching(self) -> None:
        self._paused = False
        self._fetch_control.resume_partition(self._partition)


def bytes_of(records: Sequence[LogRecord]) -> int:
    """Return about how much memory records take, in bytes. Headers, still packed, are left out."""
    size = RECORD_OVERHEAD_BYTES * len(records)
    for record in records:
        # By their places: once this is compiled, that spares the look-up of each field's name.
        key, value = record[2], record[3]
        if key is not None:
            size += len(key)
        if value is not None:
            size += len(value)
    return size
