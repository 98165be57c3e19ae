"""Kafka in memory: the events log with its own clock, transactions, changelog, outputs, and the sinks' offsets."""

from bisect import bisect_left
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from sessionary.schemas.records import AuditRecord
from tests.simulation.adapter import LogRecord, Outcome, Stored, changelog_of

Mark = Callable[[str], None]


class Fenced(Exception):
    """Another owner has taken the partition since."""


class Transaction(NamedTuple):
    """What was written and not yet committed; `first` is its first offset on the audit topic."""

    epoch: int
    outcome: Outcome
    changelog: list[Stored]
    first: int


class AuditLog:
    """A partition of the audit topic as a committed reader sees it."""

    def __init__(self) -> None:
        self.records: list[tuple[int, AuditRecord]] = []
        self.next = 0
        self.end = 0  # nothing of an open transaction is before it

    def mark(self) -> None:
        """A transaction's end takes an offset of its own."""
        self.next += 1
        self.end = self.next

    def since(self, offset: int) -> list[tuple[int, AuditRecord]]:
        return self.records[bisect_left(self.records, offset, key=lambda pair: pair[0]) :]


class Broker:
    """All partitions. `skew_ms` is how far its clock is off; while not `up` nothing can be appended or committed."""

    def __init__(self, rng: Random, partitions: int, mark: Mark) -> None:
        self._rng, self._mark = rng, mark
        self.up, self.skew_ms = True, 0
        self.events: list[list[LogRecord]] = [[] for _ in range(partitions)]
        self.changelogs: list[list[Stored]] = [[] for _ in range(partitions)]
        self.outcomes: list[list[Outcome]] = [[] for _ in range(partitions)]
        self.audits = [AuditLog() for _ in range(partitions)]
        self.groups: list[tuple[int | None, str]] = [(None, "")] * partitions
        self.generations = [0] * partitions
        self._next = [0] * partitions
        self._epochs = [0] * partitions
        self._open: list[Transaction | None] = [None] * partitions

    def append(self, partition: int, key: bytes | None, value: bytes | None, now_ms: int) -> LogRecord:
        """Stamp a record and put it into the log; now and then offsets before it hold none."""
        if self._rng.random() < 0.03:
            self._mark("log: offsets without records")
            self._next[partition] += self._rng.randint(1, 3)
        record = LogRecord(self._next[partition], now_ms + self.skew_ms, key, value)
        self._next[partition] += 1
        self.events[partition].append(record)
        return record

    def from_offset(self, partition: int, offset: int) -> int:
        """Index of the first record at or after an offset."""
        return bisect_left(self.events[partition], offset, key=lambda record: record.offset)

    def fence(self, partition: int) -> int:
        """Begin a new owner's epoch; a former owner's open transaction ends without effect."""
        self._epochs[partition] += 1
        if self._open[partition] is not None:
            self._mark("transaction: aborted by the next owner")
            self.abort(partition, self._epochs[partition])
        return self._epochs[partition]

    def write(self, partition: int, epoch: int, outcome: Outcome) -> None:
        """Put a transaction's records on their topics, uncommitted."""
        self._check(partition, epoch)
        log = self.audits[partition]
        self._open[partition] = Transaction(epoch, outcome, changelog_of(outcome), log.next)
        log.next += len(outcome.records_on("audit"))

    def commit(self, partition: int, epoch: int) -> None:
        """All of it, or nothing; asking again after a lost answer does no harm."""
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

    def abort(self, partition: int, epoch: int) -> None:
        self._check(partition, epoch)
        self._open[partition] = None
        self.audits[partition].mark()

    def _check(self, partition: int, epoch: int) -> None:
        if epoch != self._epochs[partition]:
            raise Fenced

    # The sinks' group

    def join(self, partition: int) -> int:
        """Begin a new generation of the sinks' group."""
        self.generations[partition] += 1
        return self.generations[partition]

    def commit_offset(self, partition: int, generation: int, offset: int, metadata: str) -> None:
        if generation != self.generations[partition]:
            raise Fenced
        self.groups[partition] = (offset, metadata)


__all__ = ["AuditLog", "Broker", "Fenced", "Mark"]
