"""Kafka in memory: log with a clock, transactions, changelog, outputs, and the sinks' offsets.

The end of a transaction may come late, in another one of the same producer, as the network may
deliver it (tests/late_requests).
"""

from bisect import bisect_left
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from sessionary.schemas.records import AuditRecord
from tests.simulation.adapter import JUDGE, BatchResult, Counts, Judge, LogRecord, Stored, changelog_of
from tests.support.signing import Headers

Mark = Callable[[str], None]
NOTHING_COUNTED = Counts(0, 0, 0, 0, 0, 0, 0, 0)


class Fenced(Exception):
    """The broker refuses a producer: another owner has taken over the partition."""


class Unended(NamedTuple):
    """Records of the open transaction; `first` is their first offset on the audit topic."""

    outcome: BatchResult
    changelog: list[Stored]
    first: int


class LateEnd(NamedTuple):
    """A request to end a transaction, which the network still has after its repetition came."""

    epoch: int
    commits: bool


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

    def __init__(self, rng: Random, late_rng: Random, partitions: int, mark: Mark, judge: Judge = JUDGE) -> None:
        """`late_rng` decides about late ends; `judge` how rows are written to the changelog."""
        self._rng, self._late_rng, self._mark, self._judge = rng, late_rng, mark, judge
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
        self._open: list[list[Unended]] = [[] for _ in range(partitions)]
        self._last_commits = [True] * partitions  # whether the last end was a commit
        self._late: list[list[LateEnd]] = [[] for _ in range(partitions)]

    def append(
        self, partition: int, key: bytes | None, value: bytes | None, now_ms: int, headers: Headers = ()
    ) -> LogRecord:
        """Append a record with a timestamp; sometimes leave offsets without records before it."""
        if self._rng.random() < 0.03:
            self.leave_gap(partition)
        record = LogRecord(self._next[partition], now_ms + self.skew_ms, key, value, headers)
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
        if self._open[partition]:
            self._mark("transaction: aborted by the next owner")
            self.end(partition, self._epochs[partition], commits=False)
        return self._epochs[partition]

    def write(self, partition: int, epoch: int, outcome: BatchResult) -> None:
        """Write a transaction's records, uncommitted; a late end may come after half of them."""
        self._check(partition, epoch)
        changelog = changelog_of(outcome, self._judge, self._tables[partition].get)
        waiting, rng = self._late[partition], self._late_rng
        late = waiting.pop(0) if waiting and rng.random() < 0.8 else None
        is_within = late is not None and rng.random() < 0.8
        parts = _halves(outcome, changelog) if is_within else [(outcome, changelog)]
        for part in parts:
            self._append_unended(partition, *part)
            if late is not None:
                self._deliver(partition, late)
                late = None

    def _append_unended(self, partition: int, outcome: BatchResult, changelog: list[Stored]) -> None:
        log = self.audits[partition]
        self._open[partition].append(Unended(outcome, changelog, log.next))
        log.next += len(outcome.records_on("audit"))

    def end(self, partition: int, epoch: int, *, commits: bool) -> None:
        """Commit or abort the open transaction; the same end again has no effect.

        Raises `Fenced`, also if it has ended in the other way: then a driver gives up its producer.
        """
        self._check(partition, epoch)
        ended, self._open[partition] = self._open[partition], []
        if not ended:
            if commits != self._last_commits[partition]:
                raise Fenced
            return
        log, self._last_commits[partition] = self.audits[partition], commits
        if commits:
            for part in ended:
                lines = part.outcome.records_on("audit")
                log.records.extend((part.first + n, line) for n, (_, line) in enumerate(lines))
                self.changelogs[partition].extend(part.changelog)
                self._tables[partition].update(part.changelog)
            emitted = [each for part in ended for each in part.outcome.emitted]
            self.outcomes[partition].append(ended[-1].outcome._replace(emitted=emitted))
        log.mark()

    def delay_end(self, partition: int, epoch: int, *, commits: bool, trouble: int) -> bool:
        """Sometimes let the network keep the first request to end a transaction; return if it does.

        It comes in a later transaction of the partition.
        """
        is_delayed = self._late_rng.random() < (0.1 if commits else 0.5) * trouble
        if is_delayed:
            self._late[partition].append(LateEnd(epoch, commits))
        return is_delayed

    def _deliver(self, partition: int, late: LateEnd) -> None:
        try:
            self.end(partition, late.epoch, commits=late.commits)
        except Fenced:
            self._mark("late end: refused")
        else:
            self._mark("late end: ended another transaction")

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


def _halves(outcome: BatchResult, changelog: list[Stored]) -> list[tuple[BatchResult, list[Stored]]]:
    """Return two parts of a transaction's records; the second one has position and counts."""
    middle, row = (len(outcome.emitted) + 1) // 2, len(changelog) // 2
    first = outcome._replace(emitted=outcome.emitted[:middle], counts=NOTHING_COUNTED)
    rest = outcome._replace(emitted=outcome.emitted[middle:])
    return [(first, changelog[:row]), (rest, changelog[row:])]
