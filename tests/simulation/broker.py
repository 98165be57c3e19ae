"""Kafka in memory: log with a clock, transactions, changelog, outputs, and the sinks' offsets."""

from bisect import bisect_left
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from sessionary.schemas.records import AuditRecord
from tests.simulation.adapter import JUDGE, BatchResult, Judge, LogRecord, Stored, changelog_of

Mark = Callable[[str], None]


class Fenced(Exception):
    """Another owner has taken over the partition."""


class Transaction(NamedTuple):
    """Records that are not committed yet; `first` is their first offset on the audit topic."""

    epoch: int
    outcome: BatchResult
    changelog: list[Stored]
    first: int


class AuditLog:
    """A partition of the audit topic as a read-committed consumer sees it."""

    def __init__(self) -> None:
        self.records: list[tuple[int, AuditRecord]] = []
        self.next = 0
        self.end = 0  # the last stable offset

    def mark(self) -> None:
        """End a transaction; its marker takes an offset."""
        self.next += 1
        self.end = self.next

    def since(self, offset: int) -> list[tuple[int, AuditRecord]]:
        return self.records[bisect_left(self.records, offset, key=lambda pair: pair[0]) :]


class Broker:
    """All partitions. `skew_ms` is its clock's error; while not `up` it accepts nothing."""

    def __init__(self, rng: Random, partitions: int, mark: Mark, judge: Judge = JUDGE) -> None:
        """`judge` says how rows are written to the changelog."""
        self._rng, self._mark, self._judge = rng, mark, judge
        self.up, self.skew_ms = True, 0
        self.events: list[list[LogRecord]] = [[] for _ in range(partitions)]
        self.changelogs: list[list[Stored]] = [[] for _ in range(partitions)]
        self._tables: list[dict[bytes, bytes | None]] = [{} for _ in range(partitions)]  # the changelogs compacted
        self.outcomes: list[list[BatchResult]] = [[] for _ in range(partitions)]
        self.audits = [AuditLog() for _ in range(partitions)]
        self.groups: list[tuple[int | None, str]] = [(None, "")] * partitions
        self.generations = [0] * partitions
        self._next = [0] * partitions
        self._epochs = [0] * partitions
        self._open: list[Transaction | None] = [None] * partitions

    def append(self, partition: int, key: bytes | None, value: bytes | None, now_ms: int) -> LogRecord:
        """Append a record with a timestamp; sometimes leave offsets without records before it."""
        if self._rng.random() < 0.03:
            self.leave_gap(partition)
        record = LogRecord(self._next[partition], now_ms + self.skew_ms, key, value)
        self._next[partition] += 1
        self.events[partition].append(record)
        return record

    def leave_gap(self, partition: int) -> None:
        """Leave the next offsets without records."""
        self._mark("log: offsets without records")
        self._next[partition] += self._rng.randint(1, 3)

    def from_offset(self, partition: int, offset: int) -> int:
        """Return the index of the first record at or after an offset."""
        return bisect_left(self.events[partition], offset, key=lambda record: record.offset)

    def fence(self, partition: int) -> int:
        """Begin a new owner's epoch and abort the former owner's open transaction."""
        self._epochs[partition] += 1
        if self._open[partition] is not None:
            self._mark("transaction: aborted by the next owner")
            self.abort(partition, self._epochs[partition])
        return self._epochs[partition]

    def write(self, partition: int, epoch: int, outcome: BatchResult) -> None:
        """Write a transaction's records, uncommitted."""
        self._check(partition, epoch)
        log = self.audits[partition]
        changelog = changelog_of(outcome, self._judge, self._tables[partition].get)
        self._open[partition] = Transaction(epoch, outcome, changelog, log.next)
        log.next += len(outcome.records_on("audit"))

    def commit(self, partition: int, epoch: int) -> None:
        """Commit the open transaction; committing again after a lost answer has no effect."""
        self._check(partition, epoch)
        transaction = self._open[partition]
        if transaction is None:
            return
        self._open[partition] = None
        log = self.audits[partition]
        lines = transaction.outcome.records_on("audit")
        log.records.extend((transaction.first + n, line) for n, (_, line) in enumerate(lines))
        log.mark()
        self.outcomes[partition].append(transaction.outcome)
        self.changelogs[partition].extend(transaction.changelog)
        self._tables[partition].update(transaction.changelog)

    def abort(self, partition: int, epoch: int) -> None:
        self._check(partition, epoch)
        self._open[partition] = None
        self.audits[partition].mark()

    def _check(self, partition: int, epoch: int) -> None:
        if epoch != self._epochs[partition]:
            raise Fenced

    # The sinks' group

    def join(self, partition: int) -> int:
        """Join the sinks' group: begin a new generation."""
        self.generations[partition] += 1
        return self.generations[partition]

    def commit_offset(self, partition: int, generation: int, offset: int, metadata: str) -> None:
        if generation != self.generations[partition]:
            raise Fenced
        self.groups[partition] = (offset, metadata)
