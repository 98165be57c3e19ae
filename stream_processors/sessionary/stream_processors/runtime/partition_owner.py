"""One partition during one assignment: from fencing the former owner to the last commit.

    open    fence the former owner → wait for a turn → read the changelog → fetch the log from the
            position on
    loop    take pending records → fold into an overlay → one transaction → merge → wake readers
    end     finish the transaction under way; free producer, state, timers and pending records

A `PartitionOwner` is used once: a partition that comes back to the same worker gets a new one.
Readers see committed state only.
"""

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from sessionary.schemas.errors import Unavailable
from sessionary.schemas.records import BatchAcknowledged
from sessionary.stream_processors.core.model import LogRecord, Outcome
from sessionary.stream_processors.core.overlay import Overlay
from sessionary.stream_processors.core.recent_outcomes import RecentOutcomes
from sessionary.stream_processors.errors import EXPECTED_ERRORS, Aborted, Halted, Lost, judge_failed
from sessionary.stream_processors.metrics import Metrics, count_batch
from sessionary.stream_processors.runtime.changelog import recover, seal_with
from sessionary.stream_processors.runtime.executor import free_frames, wait_unless_hung
from sessionary.stream_processors.runtime.fetching.pending_records import FetchControl, FollowingRecords, PendingRecords
from sessionary.stream_processors.runtime.job import Job
from sessionary.stream_processors.runtime.log_probe import probe_log
from sessionary.stream_processors.runtime.transaction import CommitReceipt, TransactionWriter
from sessionary.stream_processors.settings import ProcessorSettings
from sessionary.stream_processors.store.stores import SavedPosition, Store

_log = logging.getLogger(__name__)
_P = ParamSpec("_P")
_T = TypeVar("_T")
CALL_S_MAX = 12.0  # longer than the time-out of each call into librdkafka
# Recoveries at a time in a worker. Each has a thread, and all want the interpreter's lock: with 64
# the event loop waited for seconds, longer than the group waits for a heartbeat.
RECOVERIES_MAX = 4
_SLICE_S = 0.005  # between two yields to the event loop
_LOOK_EACH = 8  # records between two readings of the clock
_SEEK_PAUSE_S = 1.0
_ABORT_PAUSE_S = 0.1
_REGISTRY_PAUSE_S = 0.2
_REPORT_EACH_S = 30.0


@dataclass(frozen=True)
class WorkerContext:
    """What all partition owners of a worker share. `recovery_turns` are taken in order.

    `acknowledged` has the last transaction of each partition, until the worker reports it.
    """

    settings: ProcessorSettings
    job: Job
    metrics: Metrics
    executor: Executor
    fetch_control: FetchControl
    recovery_turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(RECOVERIES_MAX))
    acknowledged: dict[int, BatchAcknowledged] = field(default_factory=dict)


class PartitionOwner:
    """The owner of one partition of one assignment. Belongs to the event loop.

    `task` ends with it; `end_requested` is set if we asked it to end. A failure is the task's
    exception: `Lost` or `Halted`, the latter also in `halted`, and its time in `halted_at_ms`. From
    then on `state` has its position, but no rows.
    """

    def __init__(
        self,
        context: WorkerContext,
        partition: int,
        open_store: Callable[[], Store],
        former: "PartitionOwner | None",
    ) -> None:
        """`open_store` may block. `former`: the last owner in this process; its end is awaited."""
        self.partition = partition
        self.state = context.job.new_state(partition)
        self.recent_outcomes = RecentOutcomes()
        self.is_open = False
        self.end_requested = False
        self._over = False
        self._halt: tuple[int, Halted] | None = None  # no record from this offset on is folded
        self.halted: Halted | None = None
        self.halted_at_ms: int | None = None
        self.commits = 0
        self.committed_s = time.monotonic()
        self._context = context
        self._open_store = open_store
        self._store: Store | None = None
        self._writer: TransactionWriter | None = None
        self._pending = PendingRecords(partition, context.fetch_control)
        self._turn_wait: asyncio.Timeout | None = None  # while this owner waits for its recovery
        self._arrived = asyncio.Event()
        self._advanced = asyncio.Event()
        self._sought_s = self._begun_s = 0.0
        self._reported_s = -_REPORT_EACH_S
        self._acknowledged_at: int | None = None
        self.task = asyncio.create_task(self._run(former), name=f"partition-{partition}")
        self.task.add_done_callback(_free_task_frames)

    def offer_records(self, begin_offset: int, records: Sequence[LogRecord]) -> None:
        """Take a fetch of the partition's records; too many pending ones interrupt the fetching.

        From `begin_offset` to the last record's offset no other offset may hold a record.
        """
        if self.end_requested or self._halt is not None or self.task.done():
            return
        self._pending.append_batch(FollowingRecords(begin_offset, records))
        self._arrived.set()

    def request_end(self) -> None:
        """Finish the transaction under way, then end; await `task` for that."""
        self.end_requested = True
        if self._turn_wait is not None:
            self._turn_wait.reschedule(0.0)
            self._turn_wait = None
        self._arrived.set()
        self._advanced.set()

    def request_halt(self, fault: Halted, offset: int | None = None) -> None:
        """Fold no record from `offset` on, by default from the position on; end with `fault`.

        Nothing happens unless the partition is open and its position is not past `offset`.
        """
        position = self.state.position.next_offset
        if self.is_open and self._halt is None and (offset is None or offset >= position):
            self._halt = position if offset is None else offset, fault
            self._arrived.set()

    async def wait_until_committed(self, offset: int, timeout_s: float) -> bool:
        """Wait until the record at `offset` is committed. Return False after `timeout_s`."""
        deadline_s = time.monotonic() + timeout_s
        while not (self.is_open and self.state.position.next_offset > offset):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or self.end_requested or self._over:
                return False
            try:
                await asyncio.wait_for(self._advanced.wait(), left_s)
            except TimeoutError:
                return False
        return True

    async def _run(self, former: "PartitionOwner | None") -> None:
        if former is not None:
            # Its store becomes ours, so it must be done. All that it waits for is bounded.
            await asyncio.wait([former.task])
            former = None
        try:
            await self._open_partition()
            while not self.end_requested:
                await self._arrived.wait()
                self._arrived.clear()
                while self._pending and not self.end_requested and not self._is_at_halt():
                    await self._wait_for_interval()
                    await self._step()
                if self._halt is not None and not self.end_requested:
                    raise self._halt[1]
        except Halted as fault:
            self.halted, self.halted_at_ms = fault, time.time_ns() // 1_000_000
            raise
        finally:
            self.is_open, self._over = False, True
            self._context.fetch_control.drop_partition(self.partition)
            self._pending.drop_all()
            self._wake_readers()
            self._free_parts()

    def _free_parts(self) -> None:
        """Drop what is large or has threads: an ended owner may be held for a while."""
        if self._writer is not None:
            self._writer.discard()
        self._writer = self._store = None
        self.recent_outcomes = RecentOutcomes()
        position = self.state.position
        self.state = self._context.job.new_state(self.partition)
        self.state.load_position(position)

    async def _open_partition(self) -> None:
        begun_s, context = time.monotonic(), self._context
        self._writer = await self._run_blocking(
            TransactionWriter, context.settings, context.job, self.partition, self._is_wanted
        )
        await self._run_bounded(self._writer, self._writer.fence_former_owner)
        if not await self._take_recovery_turn():
            return
        try:
            self._store = store = await self._run_blocking(self._open_store)
            changelog_next = await self._run_blocking(
                recover, context.settings, self.state, store, context.job.row_codec, self._is_wanted
            )
        finally:
            context.recovery_turns.release()
        position = self.state.position
        log = await self._run_blocking(probe_log, context.settings, self.partition, position.next_offset)
        log.check_position(self.partition, position)
        await self._save_to_store({}, SavedPosition(position, changelog_next, time.time()))
        if self.end_requested:
            return
        self._pending.drop_all()  # fetched for a former owner
        self._sought_s = time.monotonic()
        self._context.fetch_control.fetch_from(self.partition, position.next_offset)
        self.is_open, self.committed_s = True, time.monotonic()
        self._context.metrics.open_s.observe(time.monotonic() - begun_s)
        self._context.metrics.position.labels(str(self.partition)).set(self.state.position.next_offset)
        _log.info("partition %d is open at %d", self.partition, self.state.position.next_offset)
        self._wake_readers()

    async def _take_recovery_turn(self) -> bool:
        """Wait for one of the worker's recoveries. Return False at once if the end is requested."""
        if self.end_requested:
            return False
        try:
            async with asyncio.timeout(None) as self._turn_wait:
                await self._context.recovery_turns.acquire()
        except TimeoutError:
            return False
        self._turn_wait = None
        return True

    async def _wait_for_interval(self) -> None:
        """Wait until the next transaction may begin: what arrives until then shares its cost."""
        pause_s = self._begun_s + self._context.settings.commit_interval_ms / 1_000 - time.monotonic()
        if pause_s > 0:
            await asyncio.sleep(pause_s)

    async def _step(self) -> None:
        assert self._writer is not None
        assert self._store is not None
        taken = self._take_batch()
        records = taken.records
        if not records:
            return
        if taken.begin_offset > self.state.position.next_offset and not await self._is_next(taken):
            return
        self._begun_s, started_at = time.monotonic(), time.time_ns() // 1_000
        overlay = self.state.begin()
        folded = await self._fold_records(overlay, records)
        if self.end_requested:
            return
        outcome = overlay.finish(self._acknowledged_at)
        try:
            epoch = records[folded - 1].leader_epoch if folded else self.state.position.leader_epoch
            seal = seal_with(self._store, epoch)
            written = await self._run_bounded(self._writer, self._writer.write_outcome, outcome, started_at, seal)
        except Aborted as fault:
            self._context.metrics.errors.labels("aborted").inc()
            _log.warning("%s; folding the same records again", fault)
            self._put_back(records)
            await asyncio.sleep(_ABORT_PAUSE_S)
            return
        self.state.merge(overlay)
        self.state.load_position(written.position)
        self.recent_outcomes.add_batch(outcome.judged)
        if folded < len(records):
            self._put_back(records[folded:])
        self._acknowledged_at = written.acknowledged_at
        await self._after_commit(outcome, written)

    async def _after_commit(self, outcome: Outcome, written: CommitReceipt) -> None:
        self.commits += 1
        self.committed_s = time.monotonic()
        context = self._context
        if (told := context.job.acknowledgement(self.partition, written.position, written.acknowledged_at)) is not None:
            context.acknowledged[self.partition] = told
        count_batch(self._context.metrics, self.partition, outcome, written.elapsed_s)
        self._wake_readers()
        await self._save_to_store(written.rows, SavedPosition(written.position, written.changelog_next, time.time()))

    async def _save_to_store(self, rows: Mapping[bytes, bytes | None], saved: SavedPosition) -> None:
        assert self._store is not None
        if self._store.blocks:
            await self._run_blocking(self._store.save_rows, rows, saved)
        else:
            self._store.save_rows(rows, saved)

    def _take_batch(self) -> FollowingRecords:
        return self._pending.take_batch(self.state.position.next_offset, self.state.settings.records_max)

    def _put_back(self, records: Sequence[LogRecord]) -> None:
        """Let the next batch begin with these records, which follow on the position."""
        self._pending.put_back(FollowingRecords(self.state.position.next_offset, records))
        self._arrived.set()

    async def _is_next(self, taken: FollowingRecords) -> bool:
        """Return True if `taken`, which begins after the position, has the log's next records.

        That is so if no offset between holds a record. Otherwise drop them and fetch from the
        position again, at most once a second. Raises `Halted` if the log begins after it.
        """
        position = self.state.position.next_offset
        pause_s = self._sought_s + _SEEK_PAUSE_S - time.monotonic()
        if pause_s > 0:
            self._pending.put_back(taken)
            self._arrived.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._arrived.wait(), pause_s)
            return False
        self._sought_s = time.monotonic()
        log = await self._run_blocking(probe_log, self._context.settings, self.partition, position)
        log.check_position(self.partition, self.state.position)
        if log.first_offset == taken.records[0].offset:
            return True
        self._context.metrics.errors.labels("sought").inc()
        self._pending.drop_all()
        self._context.fetch_control.fetch_from(self.partition, position)
        return False

    async def _fold_records(self, overlay: Overlay, records: Sequence[LogRecord]) -> int:
        """Fold until `overlay` is full; return how many went in. Yields to the event loop.

        Raises `Halted` if the fold fails.
        """
        slice_ends_s = time.perf_counter() + _SLICE_S
        for n, record in enumerate(records):
            if n % _LOOK_EACH == 0 and time.perf_counter() > slice_ends_s:
                await asyncio.sleep(0)
                if self.end_requested:
                    return n
                slice_ends_s = time.perf_counter() + _SLICE_S
            while True:
                try:
                    if not overlay.apply(record):
                        return n
                    break
                except Unavailable as trouble:
                    self._report_wait(trouble)
                    await asyncio.sleep(min(trouble.retry_after_s, _REGISTRY_PAUSE_S))
                    if self.end_requested:
                        return n
                except EXPECTED_ERRORS:
                    raise
                except Exception as error:  # the fold is pure: a new owner would fail at the same record
                    raise judge_failed(f"partition {self.partition}, offset {record.offset}", error) from error
        return len(records)

    def _report_wait(self, trouble: Unavailable) -> None:
        """Log and count a failed look-up, every 30 s at most; one under way is no trouble."""
        now_s = time.monotonic()
        if trouble.retry_after_s > _REGISTRY_PAUSE_S and now_s - self._reported_s >= _REPORT_EACH_S:
            self._reported_s = now_s
            self._context.metrics.errors.labels("registry").inc()
            _log.warning("partition %d waits: %s", self.partition, trouble)

    def _is_at_halt(self) -> bool:
        return self._halt is not None and self.state.position.next_offset >= self._halt[0]

    def _is_wanted(self) -> bool:
        return not self.end_requested

    def _wake_readers(self) -> None:
        advanced, self._advanced = self._advanced, asyncio.Event()
        advanced.set()

    async def _run_blocking(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._context.executor, functools.partial(call, *args, **kwargs))

    async def _run_bounded(
        self, writer: TransactionWriter, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        """Wait for a call of `writer` as long as its calls into librdkafka return in time.

        Raises `Lost` if one hangs. Its thread is left behind: the next producer fences its
        producer, and it touches nothing of ours.
        """
        writer.called_s = time.monotonic()
        try:
            return await wait_unless_hung(
                self._run_blocking(call, *args, **kwargs), lambda: writer.called_s, CALL_S_MAX
            )
        except TimeoutError:
            self._context.metrics.errors.labels("hung").inc()
            raise Lost(f"partition {self.partition}: a call into librdkafka hangs for {CALL_S_MAX:g} s") from None


def _free_task_frames(task: "asyncio.Task[None]") -> None:
    # They hold the owner, which holds the task, which holds the error: only a full garbage
    # collection would free that circle, and a worker nearly never makes one.
    if not task.cancelled():
        free_frames(task.exception())


__all__ = ["PartitionOwner", "WorkerContext"]
