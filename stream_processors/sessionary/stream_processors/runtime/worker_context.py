"""The shared parts of the owners of a worker's partitions."""

import asyncio
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from sessionary.schemas.records import AuditRecord, BatchAcknowledged, Position, RejectedEvent
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.schemas.telemetry.log_fields import ERROR_CLASS, OFFSET, PARTITION, session_fields
from sessionary.schemas.telemetry.role_logs import role_logger
from sessionary.schemas.types import RuleSet
from sessionary.stream_processors.core.model import BatchResult, JudgedRecords, LogRecord
from sessionary.stream_processors.errors import Lost
from sessionary.stream_processors.metrics import CommitCosts, Metrics
from sessionary.stream_processors.runtime.executor import wait_unless_hung
from sessionary.stream_processors.runtime.job import Job
from sessionary.stream_processors.runtime.log_identity import TopicIds
from sessionary.stream_processors.runtime.pending_records import FetchControl
from sessionary.stream_processors.runtime.transaction import BatchLimits, CommitReceipt, TransactionWriter
from sessionary.stream_processors.settings import ProcessorSettings
from sessionary.stream_processors.store.stores import SavedPosition, Store

# Traces a committed batch: partition, records, what was judged, and from when to when (µs).
TraceBatch = Callable[[int, Sequence[LogRecord], JudgedRecords, int, int], None]
_log = role_logger(__name__)
_P = ParamSpec("_P")
_T = TypeVar("_T")
CALL_S_MAX = 12.0  # longer than the time-out of each call into librdkafka
# Recoveries at a time in a worker. Each has a thread, and all want the interpreter's lock: with 64
# the event loop waited for seconds, longer than the group waits for a heartbeat.
RECOVERIES_MAX = 4
# A transaction costs the brokers some 4 ms of one core: 270 a second kept one busy. So a worker
# keeps at most one busy, until the cap: beyond 25 partitions, latency matters more.
MS_PER_PARTITION = 4
SPREAD_MS_MAX = 100
# The number of a worker's transactions under way at a time. More of them only wait for each other
# in slow brokers, and load these: librdkafka asks every 20 ms whether a partition's former
# transaction has ended. With 64 at once, some took as long as their time-out.
UNDER_WAY_MAX = 32
SLOW_MS_MAX = 1_000  # beyond it, latency matters more
_NEWEST_SHARE = 1 / 32  # of the last commit in the mean
# A partition is busy for so long after it began a transaction. It is longer than the longest
# interval, so that one that never pauses stays busy.
BUSY_S = 2.0


def spread_interval_ms(commit_interval_ms: int, busy_partitions: int, commit_ms: float = 0.0) -> float:
    """Return how far apart each partition's transactions begin if several of a worker are busy.

    `commit_interval_ms` is the setting: the least, and 0 turns this off. `commit_ms`: how long a
    transaction takes.
    """
    if commit_interval_ms == 0:
        return 0
    brokers_ms = min(SPREAD_MS_MAX, MS_PER_PARTITION * busy_partitions)
    return max(commit_interval_ms, brokers_ms, min(SLOW_MS_MAX, commit_ms * busy_partitions / UNDER_WAY_MAX))


class CommitTimes:
    """How long a worker's transactions take: a mean of the last ones, in ms.

    A transaction longer than a second counts as one second: it may hang, and the others need not.
    """

    def __init__(self) -> None:
        self.mean_ms = 0.0

    def add_commit(self, elapsed_s: float) -> None:
        """Take the time of a transaction that was committed."""
        self.mean_ms += (min(elapsed_s * 1_000, SLOW_MS_MAX) - self.mean_ms) * _NEWEST_SHARE


class BusyPartitions:
    """The partitions of a worker that began a transaction within the last two seconds.

    Others cost the brokers nothing. Times are in seconds on the monotonic clock, and never go back.
    """

    def __init__(self) -> None:
        self._begun_s: dict[int, float] = {}  # when each one's last transaction began, in order

    def note_begin(self, partition: int, now_s: float) -> None:
        """Note that a transaction of a partition begins."""
        self._begun_s.pop(partition, None)
        self._begun_s[partition] = now_s

    def count(self, now_s: float) -> int:
        """Return how many partitions are busy; forget the others."""
        while self._begun_s:
            partition, begun_s = next(iter(self._begun_s.items()))
            if begun_s + BUSY_S >= now_s:
                break
            del self._begun_s[partition]
        return len(self._begun_s)


class RecoveryTurn:
    """One owner's wait for one of the worker's recoveries, which it may give up."""

    def __init__(self, turns: asyncio.Semaphore) -> None:
        self._turns = turns
        self._wait: asyncio.Timeout | None = None

    async def take(self) -> bool:
        """Wait for a turn, which is then to be released. Return False if it is given up."""
        try:
            async with asyncio.timeout(None) as self._wait:
                await self._turns.acquire()
        except TimeoutError:
            return False
        self._wait = None
        return True

    def give_up(self) -> None:
        """End the waiting, if there is one."""
        if self._wait is not None:
            self._wait.reschedule(0.0)
            self._wait = None


@dataclass(frozen=True)
class WorkerContext:
    """The shared parts of all partition owners of a worker.

    `recovery_turns` are taken in order. Each owner notes its transactions in `busy_partitions`.
    `acknowledged` has the last transaction of each partition, until the worker reports it.
    `commit_times` are of all partitions. `trace_batch` does nothing unless there are traces.
    `rules_of_group`: the newest that every worker of the group knows. `topic_ids`, `changelog_end`
    (a partition's high watermark) and `find_traces` (what shows that a partition was folded beyond
    a position) ask the broker, block, and may raise `Lost`; by default nothing is known.
    """

    settings: ProcessorSettings
    job: Job
    metrics: Metrics
    executor: Executor
    fetch_control: FetchControl
    recovery_turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(RECOVERIES_MAX))
    busy_partitions: BusyPartitions = field(default_factory=BusyPartitions)
    batch_limits: BatchLimits = field(default_factory=BatchLimits)
    acknowledged: dict[int, BatchAcknowledged] = field(default_factory=dict)
    commit_times: CommitTimes = field(default_factory=CommitTimes)
    trace_batch: TraceBatch = lambda *_: None
    rules_of_group: Callable[[], RuleSet] = lambda: NEWEST_RULES
    topic_ids: Callable[[], TopicIds] = TopicIds
    changelog_end: Callable[[int], int] = lambda _: 0
    find_traces: Callable[[int, Position], list[str]] = lambda *_: []

    @property
    def commit_interval_s(self) -> float:
        """How far apart a partition's transactions begin, at least."""
        least_ms, commit_ms = self.settings.commit_interval_ms, self.commit_times.mean_ms
        return spread_interval_ms(least_ms, self.busy_partitions.count(time.monotonic()), commit_ms) / 1_000

    def note_commit(self, partition: int, outcome: BatchResult, fold_s: float, written: CommitReceipt) -> None:
        """Count a transaction, log what failed; let the worker report when it was acknowledged.

        `fold_s`: the processor time that its fold took.
        """
        self.commit_times.add_commit(written.elapsed_s)
        costs = CommitCosts(
            elapsed_s=written.elapsed_s,
            work_s=fold_s + written.cpu_s,
            acknowledged_ms=written.acknowledged_at // 1_000,
            written_bytes=written.written_bytes,
            changelog_bytes=written.changelog_bytes,
        )
        self.metrics.count_outcome(outcome, costs)
        if outcome.rejections:
            _log_rejections(partition, outcome)
        if outcome.counts.audited:
            _log_failed_cleanups(partition, outcome)
        if self.job.follower is not None:
            self.job.follower.note_commit(partition, outcome)
        reported = self.job.acknowledgement(partition, written.position, written.acknowledged_at)
        if reported is not None:
            self.acknowledged[partition] = reported

    async def run_blocking(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Make a call that blocks in a thread of the executor."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.executor, functools.partial(call, *args, **kwargs))

    async def wait_for_interval(self, begun_s: float) -> None:
        """Wait until a partition's next transaction may begin, after one at `begun_s` (monotonic).

        Records that arrive until then share its cost.
        """
        pause_s = begun_s + self.commit_interval_s - time.monotonic()
        if pause_s > 0:
            await asyncio.sleep(pause_s)

    async def save_rows(self, store: Store, rows: Mapping[bytes, bytes | None], saved: SavedPosition) -> None:
        """Save packed rows in a store; in a thread if the store waits for a disk."""
        if store.blocks:
            await self.run_blocking(store.save_rows, rows, saved)
        else:
            store.save_rows(rows, saved)

    async def run_bounded(
        self, partition: int, writer: TransactionWriter, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        """Wait for a call of `writer` as long as its calls into librdkafka return in time.

        Raises `Lost` if one hangs. Its thread is left behind: the next producer fences its
        producer, and it touches nothing of ours.
        """
        writer.called_s = time.monotonic()
        try:
            return await wait_unless_hung(self.run_blocking(call, *args, **kwargs), lambda: writer.called_s, CALL_S_MAX)
        except TimeoutError:
            self.metrics.errors.labels("hung").inc()
            raise Lost(f"partition {partition}: a call into librdkafka hangs for {CALL_S_MAX:g} s") from None


def _log_rejections(partition: int, outcome: BatchResult) -> None:
    """Log the rejections for operators: a line per reason, about the reason's first record.

    A reason has one line, however many records it has: an attacker decides about their number.
    """
    found: dict[str, list[RejectedEvent]] = {}
    for _, record in outcome.records_on("rejected"):
        if record.security or record.reason == "internal_error":
            found.setdefault(record.reason, []).append(record)
    for reason, records in found.items():
        fields = {"records": len(records), ERROR_CLASS: reason, **_place_fields(partition, records[0])}
        if reason == "internal_error":
            _log.error("the judge failed at %(records)d records: %(error)s", **fields, error=records[0].detail)
        else:
            _log.warning("%(records)d records are rejected for security: %(error_class)s", **fields)


def _log_failed_cleanups(partition: int, outcome: BatchResult) -> None:
    """Log in one line that hosts report clean-ups that failed, about the first of them.

    The names of the actions are the host's text, which a line does not repeat.
    """
    failed: list[AuditRecord] = [
        record for stream, _, record in outcome.emitted if stream == "audit" and record.actions_failed
    ]
    if failed:
        _log.warning(
            "%(records)d clean-ups failed on their hosts; the first left %(left)d actions undone",
            records=len(failed),
            left=len(failed[0].actions_failed),
            **_place_fields(partition, failed[0]),
        )


def _place_fields(partition: int, record: RejectedEvent | AuditRecord) -> dict[str, object]:
    return {
        PARTITION: partition,
        OFFSET: record.source_offset,
        **session_fields(record.tenant_id, record.session_id),
    }
