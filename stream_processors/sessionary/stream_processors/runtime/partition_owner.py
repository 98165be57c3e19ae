"""One partition while it is this worker's: from fencing the former owner to the last commit.

    open    fence the former owner → wait for a turn → open the store → read the changelog from its
            position on → probe the log → fetch it from the log position on
    loop    take pending records → fold into an uncommitted batch → one transaction → merge → wake
            readers
    end     finish the transaction under way; free producer, state, timers and pending records

A `PartitionOwner` is used once: a partition that leaves and comes back gets a new one. One that
stays in a rebalance keeps its owner. Readers see committed state only, and none at all until a
transaction shows that the partition is still this worker's.

This is one module because opening, loop and end commit by the same transaction, and change the same
few fields.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from sessionary.schemas.records import Position
from sessionary.schemas.telemetry.role_logs import error_fields, role_logger
from sessionary.stream_processors.core.clock import believed_from
from sessionary.stream_processors.core.model import BatchResult, LogRecord, Rebuild, RecentVerdicts
from sessionary.stream_processors.core.trail import Access
from sessionary.stream_processors.errors import Aborted, EndInDoubt, Halted, Lost, RebuildRefused
from sessionary.stream_processors.rules_change import RulesRequest, begin_new_partition, due_request, is_new, needs_tick
from sessionary.stream_processors.runtime.changelog import RecoveryProgress, position_lost, recover, seal_with
from sessionary.stream_processors.runtime.decisions import GapAcceptance, OperatorDecision, PendingDecision, RecordSkip
from sessionary.stream_processors.runtime.executor import free_frames_after
from sessionary.stream_processors.runtime.log_identity import TopicIds
from sessionary.stream_processors.runtime.log_probe import LogTruncated, probe_log
from sessionary.stream_processors.runtime.open_batch import LookupReport, OpenBatch
from sessionary.stream_processors.runtime.pending_records import FollowingRecords, PendingRecords
from sessionary.stream_processors.runtime.rebuild import EVENT_TYPES, REBUILDABLE, plan_rebuild
from sessionary.stream_processors.runtime.transaction import CommitReceipt, Seal, TransactionWriter
from sessionary.stream_processors.runtime.worker_context import RecoveryTurn, WorkerContext
from sessionary.stream_processors.store.stores import SavedPosition, Store

# Readers of a partition wait for any commit, or for a commit that touches a row that they follow.
#
# Belongs to the event loop. A commit of rows that no reader follows costs one look at an empty
# dict.


class RowWatch:
    """One reader's wait for commits that touch a row. However many come, it is woken once."""

    def __init__(self) -> None:
        self._is_touched = asyncio.Event()

    def touch(self) -> None:
        """Wake the reader, now or when it waits next."""
        self._is_touched.set()

    async def wait(self, timeout_s: float) -> bool:
        """Wait until the row is touched, or the notifications end. Return False after
        `timeout_s`.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._is_touched.wait()
        is_touched = self._is_touched.is_set()
        self._is_touched.clear()
        return is_touched


class CommitNotifications:
    """Wakes the readers of one partition, until `end`: then none is to be answered any more."""

    def __init__(self) -> None:
        self.is_over = False
        self._advanced = asyncio.Event()
        self._watches: dict[bytes, set[RowWatch]] = {}

    async def wait(self) -> None:
        """Wait for a commit, ticks that need none, the opening of the partition, or the end."""
        await self._advanced.wait()

    @contextmanager
    def watch_row(self, key: bytes) -> Iterator[RowWatch]:
        """Follow the row under `key`, which need not exist, until the block ends."""
        watch = RowWatch()
        watches = self._watches.setdefault(key, set())
        watches.add(watch)
        try:
            yield watch
        finally:
            watches.discard(watch)
            if not watches:
                self._watches.pop(key, None)

    def notify_all(self) -> None:
        """Wake the readers that wait for the position."""
        advanced, self._advanced = self._advanced, asyncio.Event()
        advanced.set()

    def notify_commit(self, rows: Mapping[bytes, Any]) -> None:
        """Wake the readers that wait for any commit, and those that follow a row of this commit."""
        self.notify_all()
        if self._watches:
            for key in self._watches.keys() & rows.keys():
                self._touch_row(key)

    def end(self) -> None:
        """Wake all readers: no further commit may be reported to them."""
        self.is_over = True
        self.notify_all()
        for key in self._watches:
            self._touch_row(key)

    def _touch_row(self, key: bytes) -> None:
        for watch in self._watches[key]:
            watch.touch()


_log = role_logger(__name__)
_SEEK_PAUSE_S = 1.0
_ABORT_PAUSE_S = 0.1
HIDDEN_S_MAX = 20.0  # that an opening waits for an open transaction, which hides the changelog's end
_HIDDEN_PAUSE_S = 1.0


def _is_below(offset: int | None, other: int | None) -> bool:
    return offset is not None and (other is None or offset < other)


class PartitionOwner:
    """The owner of one partition. Belongs to the event loop.

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
        decision: OperatorDecision | None = None,
        may_fence: Callable[["PartitionOwner"], bool] = lambda _: True,
    ) -> None:
        """`open_store` may block. `former`: the last owner here, whose end is awaited. `may_fence`:
        whether the partition is surely this worker's, so that a new producer fences none elsewhere.
        """
        self.partition = partition
        self.state = context.job.new_state(partition)
        context.batch_limits.limit_batches(self.state)
        self.recent_verdicts = RecentVerdicts()
        self.is_open, self.end_requested = False, False
        self.is_renewing = False  # its producer: until that is done, it may fence another worker's owner
        self.began_reading = False  # of the changelog: before that no position is known
        # Assignments since this owner began, and those of them after which it has committed.
        self._assignments = self._confirmed = 0
        self._halt: tuple[int, Halted] | None = None  # no record from this offset on is folded
        self.rules_request: RulesRequest | None = None
        self.accesses: list[Access] = []  # to be reported by the next batch of records
        self.halted: Halted | None = None
        self.halted_at_ms: int | None = None
        # What was found at which offset, while the position does not say so yet.
        self._unkept_truncation: tuple[int, LogTruncated] | None = None
        self.recovery = RecoveryProgress()
        self.topic_ids = TopicIds()  # of the logs that it opened; the position says so with each commit
        self.commits, self.committed_s = 0, time.monotonic()
        self.notifications = CommitNotifications()  # for readers; over once none is to be answered
        self._decision = PendingDecision(context, partition, decision)
        self._context = context
        self._may_fence = may_fence
        self._open_store = open_store
        self._store: Store | None = None
        self._writer: TransactionWriter | None = None
        self._pending = PendingRecords(partition, context.fetch_control)
        self._open_batch: OpenBatch | None = None
        self._lookup_report = LookupReport(context.metrics, partition)
        self._recovery_turn = RecoveryTurn(context.recovery_turns)
        self._arrived, self._merged = asyncio.Event(), asyncio.Event()
        self._merged.set()
        self._sought_s = self._begun_s = 0.0
        self._acknowledged_at: int | None = None
        self._changelog_end: int | None = None  # its high watermark after the last commit; None before the first
        self.task = asyncio.create_task(free_frames_after(lambda: self._run(former)), name=f"partition-{partition}")

    @property
    def position(self) -> Position:
        """Up to where the log is folded; for all but readers.

        The committed position, or the one after ticks that were folded since and changed nothing
        but the clock.
        """
        batch = self._open_batch
        return self.state.position if batch is None else batch.ticks_position or self.state.position

    def offer_records(self, begin_offset: int, records: Sequence[LogRecord], size: int | None = None) -> None:
        """Take a fetch of the partition's records; too many pending ones interrupt the fetching.

        `records` are all records of the log from `begin_offset` to the last one's offset. `size`:
        `bytes_of` the records, if that is known.
        """
        if self.end_requested or self._halt is not None or self._decision.is_reached or self.task.done():
            return
        if kept := self._decision.cut_records(records):
            self._pending.append_batch(FollowingRecords(begin_offset, kept), size if kept is records else None)
        self._arrived.set()

    def request_end(self) -> None:
        """Finish the transaction under way, then end; await `task` for that."""
        self.end_requested = True
        self._recovery_turn.give_up()
        self._arrived.set()
        self.stop_answering()

    def stop_answering(self) -> None:
        """Answer no reader from now on: another worker may have the partition at any time."""
        self.notifications.end()

    def require_confirmation(self) -> None:
        """Answer no reader until a transaction is committed that begins from now on.

        The partition stays this worker's, but may have been another worker's in between. Then that
        worker has fenced this owner's producer, and the transaction fails.
        """
        self._assignments += 1
        self._arrived.set()

    @property
    def is_readable(self) -> bool:
        """Whether readers may be answered: the partition is open, and surely this worker's."""
        return not self.notifications.is_over and self.is_open and self._is_confirmed

    @property
    def tick_deadline_ms(self) -> int | None:
        """The earliest deadline that needs a tick, ms since the epoch; None: there is none.

        Ticks are needed at once while a transaction is to confirm the ownership, accesses are to be
        reported, or rules are to be announced in a partition that has no time yet.
        """
        if not self._is_confirmed or self.accesses or needs_tick(self.rules_request, self.state.position):
            return 0
        return self.state.next_deadline_ms

    @property
    def first_waiting_ms(self) -> int | None:
        """When the first record behind `position` was appended (ms), of those that were fetched."""
        offset, batch = self.position.next_offset, self._open_batch
        return (batch and batch.first_ms_from(offset)) or self._pending.first_ms_from(offset)

    @property
    def _is_confirmed(self) -> bool:
        return self._confirmed == self._assignments

    def request_halt(self, fault: Halted, offset: int | None = None) -> None:
        """Fold no record from `offset` on, by default from the position on; end with `fault`.

        Nothing happens unless the partition is open and its position is not past `offset`.
        """
        position = self.position.next_offset
        if self.is_open and self._decision.covers_halt(offset):
            self._arrived.set()
        elif self.is_open and self._halt is None and (offset is None or offset >= position):
            self._halt = position if offset is None else offset, fault
            self._arrived.set()

    def request_rules(self, request: RulesRequest) -> None:
        """Announce rules between two batches, unless they or later ones are decided already."""
        self.rules_request = request
        self._arrived.set()

    @property
    def decision_left(self) -> OperatorDecision | None:
        """A decision that another owner may carry out, until this one has done it.

        Only one that has no effect if it was carried out in part, or before.
        """
        left = self._decision.left
        return left if isinstance(left, RecordSkip | GapAcceptance | Rebuild) else None

    async def wait_until_committed(self, offset: int, timeout_s: float) -> bool:
        """Wait until the record at `offset` is committed. Return False after `timeout_s`."""
        return await self.wait_until(lambda position: position.next_offset > offset, timeout_s)

    async def wait_until_folded(self, end: int, timeout_s: float) -> bool:
        """Wait until `position` reaches a log's end. Return False after `timeout_s`.

        Ticks that changed nothing but the clock are folded before they are committed.
        """
        return await self.wait_until(lambda _: self.position.next_offset >= end, timeout_s)

    async def wait_until(self, is_reached: Callable[[Position], bool], timeout_s: float) -> bool:
        """Wait for a committed position. Return False after `timeout_s`, or if the owner ends."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self.notifications.is_over and not (self.is_readable and is_reached(self.state.position)):
                    await self.notifications.wait()
        except TimeoutError:
            return False
        return not self.notifications.is_over

    async def wait_until_merged(self, timeout_s: float) -> bool:
        """Wait for the end of the transaction under way, if there is one; False after `timeout_s`.

        From its commit to its merge, consumers of its outputs know more than `state` does.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._merged.wait()
        return self._merged.is_set()

    async def _run(self, former: "PartitionOwner | None") -> None:
        if former is not None:
            # Its store becomes ours, so it must be done. All of its waits are bounded.
            await asyncio.wait([former.task])
            self._unkept_truncation = former._unkept_truncation
            former = None
        try:
            await self._open_partition()
            await self._fold_until_end()
        except Halted as fault:
            self.halted, self.halted_at_ms = fault, time.time_ns() // 1_000_000
            if isinstance(fault, LogTruncated):
                await self._keep_truncation(fault)
            raise
        finally:
            self.is_open = False
            self._context.fetch_control.drop_partition(self.partition)
            self._pending.drop_all()
            self.notifications.end()
            self._merged.set()
            self._free_parts()

    async def _fold_until_end(self) -> None:
        while not self.end_requested:
            await self._wait_for_arrival(self._ticks_wait_s() if self._open_batch else None)
            while self._has_work() and not self.end_requested and not self._is_at_halt():
                await self._context.wait_for_interval(self._begun_s)
                await self._step()
            if self._decision.is_reached and not self._pending and not self.end_requested:
                await self._skip_records()
            if self._halt is not None and not self.end_requested:
                raise self._halt[1]
            if self._open_batch is not None and not self.end_requested and self._ticks_wait_s() == 0:
                await self._commit_batch(self._open_batch)

    async def _keep_truncation(self, fault: LogTruncated) -> None:
        """Let the position say that the log was cut, until an operator accepts it.

        Its signs vanish: agents send, the log grows past the position, and the next opening finds
        nothing wrong. The position is what every opening reads first, on whatever worker, and only
        its owner writes it; a file or the worker's memory would be lost with the worker. The other
        faults need no such note: a topic's id never comes back, and the traces of a lost position
        stay. If the transaction fails, the next owner has what is to be kept.
        """
        self._open_batch = None  # of ticks only, which are folded again
        position = self.state.position
        if fault.lost_from is not None and fault.lost_from >= position.next_offset:
            return  # only such ticks are lost
        if position.log_truncated is None or _is_below(fault.lost_from, position.log_lost_from):
            self._unkept_truncation = position.next_offset, fault
        try:
            while self._unkept_truncation is not None and not self.end_requested:
                former = self.state.position.batch_number
                await self._commit_decision(lambda batch: batch.keep_truncation(fault.detail, fault.lost_from))
                if self.state.position.batch_number != former:  # else it aborted
                    self._unkept_truncation = None
        except (Lost, Halted) as error:
            # The halt itself must not be lost with its note, which the next owner writes.
            _log.warning(
                "partition %(partition)d lost records of its log, which its position does not say yet: %(error)s",
                partition=self.partition,
                **error_fields(error),
            )

    def _restore_truncation(self) -> None:
        """Treat a truncation that the former owner could not keep as one in the position."""
        if self._unkept_truncation is None:
            return
        (next_offset, fault), position = self._unkept_truncation, self.state.position
        if position.next_offset == next_offset and position.log_truncated is None:
            kept = position._replace(log_truncated=fault.detail, log_lost_from=fault.lost_from)
            self.state.load_position(kept)
        else:
            self._unkept_truncation = None  # another worker's owner has decided since

    def _free_parts(self) -> None:
        """Drop the parts that are large or have threads: an ended owner may be held for a while."""
        if self._writer is not None:
            self._writer.discard()
        self._writer = self._store = self._open_batch = None
        self.recent_verdicts = RecentVerdicts()
        position, self.state = self.state.position, self._context.job.new_state(self.partition)
        self.state.load_position(position)

    async def _open_partition(self) -> None:
        begun_s, context = time.monotonic(), self._context
        self._writer = await self._make_writer()
        await context.run_bounded(self.partition, self._writer, self._writer.fence_former_owner)
        first_position = self.state.position
        try:
            changelog_next = await self._read_changelog()
        except Halted as fault:
            decision = self._decision.left
            if not isinstance(decision, Rebuild) or fault.reason not in REBUILDABLE:
                raise
            await self._rebuild(decision, fault)
            self.state.load_position(first_position)
            changelog_next = await self._read_changelog()
        if changelog_next is None:
            return
        assert self._store is not None
        self._begin_if_new()
        self._restore_truncation()
        await self._decision.carry_out_at_opening(self.state, self._commit_decision)
        position = self.state.position
        if position.log_truncated is None:
            self._unkept_truncation = None
        log = await context.run_blocking(probe_log, context.settings, self.partition, position.next_offset)
        log.check_position(self.partition, position)
        if position.log_truncated is not None:
            if not log.shows_folded_record(position):
                raise LogTruncated(position.log_truncated, position.log_lost_from)
            self.state.load_position(position := position._replace(log_truncated=None, log_lost_from=None))
            self._unkept_truncation = None
        await context.save_rows(self._store, {}, SavedPosition(position, changelog_next, time.time()))
        if self.end_requested:
            return
        self._sought_s = time.monotonic()
        self._fetch_from_position()
        self.is_open, self.committed_s = True, time.monotonic()
        context.metrics.open_s.observe(time.monotonic() - begun_s)
        _log.info("partition %(partition)d is open", partition=self.partition, offset=self.position.next_offset)
        self.notifications.notify_all()

    async def _read_changelog(self) -> int | None:
        """Load rows and position. Return the changelog's end, or None if the owner is to end.

        An open transaction that hides the end is waited for, without a turn: other partitions open
        meanwhile. Raises `Halted` if it stays open.
        """
        context, first_position = self._context, self.state.position
        patient_until_s: float | None = None
        while not self.end_requested and await self._recovery_turn.take():
            try:
                return await self._recover(first_position)
            except Halted as fault:
                if fault.reason != "transaction_open":
                    raise
                if patient_until_s is None:
                    patient_until_s = time.monotonic() + HIDDEN_S_MAX
                    _log.warning("a partition waits: %(error)s", partition=self.partition, **error_fields(fault))
                elif time.monotonic() >= patient_until_s:
                    raise
            finally:
                context.recovery_turns.release()
                context.metrics.state_hash_mismatches.labels("store").inc(self.recovery.found_damaged_store)
                self.recovery = RecoveryProgress()
            await self._wait_for_arrival(_HIDDEN_PAUSE_S)
        return None

    async def _rebuild(self, decision: Rebuild, fault: Halted) -> None:
        """Write rows and position anew; then the changelog is read as in every opening.

        What is interrupted is begun again by the next owner. Raises `Lost`, and `Halted` if the
        rows cannot be rebuilt.
        """
        context, writer = self._context, self._writer
        assert writer is not None
        assert self._store is not None
        try:
            plan = await plan_rebuild(context, self.partition, decision.mode, self._is_wanted)
        except RebuildRefused as refusal:
            self._decision.left = None
            # The next automatic retry reports the halt alone, and the caller may be gone by now.
            _log.warning("%(error)s", partition=self.partition, **error_fields(refusal))
            raise Halted(fault.reason, f"{refusal}. Halted by this: {fault.detail}") from refusal
        _log.warning(
            "partition %(partition)d: %(what)s, because %(principal)s decided so: %(why)s",
            what=plan.describe(),
            why=decision.reason,
            principal=decision.principal,
            partition=self.partition,
            offset=plan.position.next_offset,
        )
        state, parts = context.job.new_state(self.partition), plan.cut_rows(context.job.row_codec)
        state.load_position(plan.position)
        for number, rows in enumerate(parts, 1):
            batch, is_last = OpenBatch(state), number == len(parts)
            if is_last:
                event_type = EVENT_TYPES[decision.mode]
                batch.uncommitted.note_rebuild(event_type, plan.describe(), decision.reason, decision.principal)
            outcome, begun_at = batch.finish(None)._replace(rows=rows), time.time_ns() // 1_000
            try:
                seal, stored = plan.seal(is_last=is_last), plan.stored_row
                written = await context.run_bounded(
                    self.partition, writer, writer.write_result, outcome, begun_at, seal, stored
                )
            except Aborted as error:  # the producer may begin no other transaction
                raise Lost(str(error)) from error
            state.merge(batch.uncommitted)
            plan.found.load_rows(written.rows)
            context.note_commit(self.partition, outcome, 0.0, written)
        self._decision.left = None
        await context.run_blocking(self._store.wipe)

    async def _recover(self, first_position: Position) -> int:
        context = self._context
        self._store = await context.run_blocking(self._open_store)
        # Before the reading: a changelog that is made again later has another id than this one.
        topic_ids = await context.run_blocking(context.topic_ids)
        changelog_end = await context.run_blocking(context.changelog_end, self.partition)
        self.state.load_position(first_position)  # a former reading has moved it
        self.began_reading = True
        changelog_next = await context.run_blocking(
            recover,
            context.settings,
            self.state,
            self._store,
            context.job.row_codec,
            self._is_wanted,
            self.recovery,
            topic_ids,
            changelog_end,
        )
        position = topic_ids.complete(self.state.position)
        self.topic_ids = TopicIds(position.events_topic_id, position.changelog_topic_id)
        await self._require_last_position(position, changelog_next)
        return changelog_next

    async def _require_last_position(self, position: Position, changelog_next: int) -> None:
        """Raise `Halted` if the partition was folded beyond the position that the changelog had.

        Raises `Lost` if what shows that may be a later owner's: the changelog has grown since.
        """
        context, traces = self._context, list[str]()
        if not position.batch_number and next(iter(self.state.rows), None) is not None:
            traces.append("the changelog has rows")
        traces += await context.run_blocking(context.find_traces, self.partition, position)
        if not traces:
            return
        if await context.run_blocking(context.changelog_end, self.partition) > changelog_next:
            raise Lost(f"partition {self.partition}: its changelog was written to while it was read")
        number = position.batch_number
        found = f"ends with batch {number}, at offset {position.next_offset}" if number else "has no position"
        found = f"{found}, although the partition was folded {'further' if number else 'before'}: {'; '.join(traces)}"
        raise position_lost(self.partition, context.settings.topics.changelog, found)

    def _begin_if_new(self) -> None:
        if is_new(self.state.position):
            rules = self._context.rules_of_group()
            self.state.load_position(begin_new_partition(self.state.position, rules))
            _log.info(
                "partition %(partition)d is new: it begins with rules %(rules)d, the newest that every worker of its "
                "group knows",
                partition=self.partition,
                rules=rules.version,
            )

    async def _wait_for_arrival(self, timeout_s: float | None) -> None:
        """Wait for records, requests, or `timeout_s`. Makes no task: it runs for each tick."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._arrived.wait()
        self._arrived.clear()

    def _ticks_wait_s(self) -> float:
        """Return for how long ticks alone need no transaction. An owner's first batch needs one.

        It shows on `batches` who owns the partition, as does the first batch of each assignment.
        """
        if not self.commits or not self._is_confirmed:
            return 0.0
        return max(0.0, self.committed_s + self._context.settings.tick_commit_interval_ms / 1_000 - time.monotonic())

    async def _step(self) -> None:
        if (request := due_request(self.rules_request, self.state.position)) is not None:
            await self._announce_rules(request)
            return
        taken = self._pending.take_batch(self.position.next_offset, self.state.settings.records_max)
        if not (records := taken.records):
            return
        if taken.begin_offset > self.position.next_offset and not await self._is_next(taken):
            return
        started_at, self._begun_s = time.time_ns() // 1_000, time.monotonic()
        self._open_batch = batch = self._open_batch or OpenBatch(self.state)
        folded = await batch.fold_records(records, self._is_wanted, self._lookup_report)
        if self.end_requested:
            return
        if folded < len(records) or self._ticks_wait_s() == 0 or self.accesses or not batch.wait_for_more():
            await self._commit_batch(batch, records[folded:], started_at)
        else:
            self.notifications.notify_all()

    async def _skip_records(self) -> None:
        """Skip the records of an operator's decision, once all records before are committed."""
        self._arrived.set()  # tried again if a transaction aborts
        if self._open_batch is not None:
            await self._commit_batch(self._open_batch)
        if not self._pending and not self.end_requested:
            await self._decision.skip_records(self.state, self._commit_decision)
            self._fetch_from_position()

    async def _commit_decision(self, decide: Callable[[OpenBatch], None]) -> None:
        batch = OpenBatch(self.state)
        decide(batch)
        await self._commit_batch(batch)

    async def _commit_batch(self, batch: OpenBatch, left: Sequence[LogRecord] = (), started_at: int = 0) -> None:
        """Commit a batch in one transaction; `left` follow on it. If that aborts, put all back.

        `started_at`: when its last records came (µs); now, if none came.
        """
        assert self._store is not None
        assignments = self._assignments
        outcome = batch.finish(self._acknowledged_at, self.accesses)
        self._context.busy_partitions.note_begin(self.partition, time.monotonic())
        self._merged.clear()
        try:
            begun_at, seal = started_at or time.time_ns() // 1_000, self._make_seal(batch)
            with self._context.batch_limits.adapt_to_transaction(self.state):
                written = await self._write_result(outcome, begun_at, seal)
        except Aborted as fault:
            self._context.metrics.errors.labels("aborted").inc()
            _log.warning("a transaction is repeated: %(error)s", partition=self.partition, **error_fields(fault))
            self._open_batch = None
            self._merged.set()
            if records := [*batch.records, *left]:
                self._put_back(records)
            await asyncio.sleep(_ABORT_PAUSE_S)
            return
        self.state.merge(batch.uncommitted)
        self._merged.set()
        del self.accesses[: batch.reported_accesses]
        self.state.load_position(written.position)
        self._open_batch = None
        self.recent_verdicts.add_batch(outcome.judged)
        if left:
            self._put_back(left)
        self._acknowledged_at, self._confirmed = written.acknowledged_at, assignments
        self._changelog_end = written.changelog_next + 1  # the transaction's marker
        self.commits += 1
        self.committed_s = time.monotonic()
        self._context.note_commit(self.partition, outcome, batch.fold_s, written)
        self._context.trace_batch(self.partition, batch.records, outcome.judged, begun_at, written.acknowledged_at)
        self.notifications.notify_commit(outcome.rows)
        saved = SavedPosition(written.position, written.changelog_next, time.time())
        await self._context.save_rows(self._store, written.rows, saved)

    async def _write_result(self, outcome: BatchResult, begun_at: int, seal: Seal) -> CommitReceipt:
        """Write a batch in one transaction, by a new producer if the last one's end is in doubt."""
        assert self._writer is not None
        assert self._store is not None
        write, given = self._context.run_bounded, (outcome, begun_at, seal, self._store.stored_row)
        try:
            return await write(self.partition, self._writer, self._writer.write_result, *given)
        except EndInDoubt as doubt:
            if not await self._renew_producer(doubt):
                raise
        return await write(self.partition, self._writer, self._writer.write_result, *given)

    async def _renew_producer(self, doubt: EndInDoubt) -> bool:
        """Replace the producer, and return whether the state is still that of the changelog.

        The new one fences another owner, if there is one. If the changelog ends behind this owner's
        last commit, and the partition is still this worker's, no other owner has committed since,
        and rows and position in memory are the last ones: nothing is read again. After an abort it
        ends elsewhere. Then the partition is to be opened again, which fences likewise. Raises
        `Lost`.
        """
        context, former = self._context, self._writer
        assert former is not None
        if self._changelog_end is None or not self._may_fence(self):
            return False
        self.is_renewing = True
        try:
            self._writer = await self._make_writer()
            former.discard()
            await context.run_bounded(self.partition, self._writer, self._writer.fence_former_owner)
        finally:
            self.is_renewing = False
        if await context.run_blocking(context.changelog_end, self.partition) != self._changelog_end:
            return False
        if not self._may_fence(self):  # it took long, and a broker that leads no more knows no later end
            return False
        context.metrics.errors.labels("renewed").inc()
        _log.warning(
            "partition %(partition)d goes on with a new producer: %(error)s",
            partition=self.partition,
            **error_fields(doubt),
        )
        return True

    async def _make_writer(self) -> TransactionWriter:
        context = self._context
        return await context.run_blocking(
            TransactionWriter, context.settings, context.job, self.partition, self._is_wanted
        )

    def _make_seal(self, batch: OpenBatch) -> Seal:
        assert self._store is not None
        return seal_with(self._store, batch.leader_epoch, self.topic_ids, batch.log_truncated, batch.log_lost_from)

    async def _announce_rules(self, request: RulesRequest) -> None:
        """Commit the open batch; without one, announce rules in a separate transaction."""
        batch = self._open_batch or OpenBatch(self.state)
        if not batch.records:
            assert self._store is not None
            # Counted before the transaction begins: it may take longer than a transaction may.
            await self._context.run_blocking(self._store.count_again)
            batch.uncommitted.announce_rules(*request)
        await self._commit_batch(batch)

    def _put_back(self, records: Sequence[LogRecord]) -> None:
        """Let the next batch begin with these records, which follow on the position."""
        self._pending.put_back(FollowingRecords(self.position.next_offset, records))
        self._arrived.set()

    async def _is_next(self, taken: FollowingRecords) -> bool:
        """Return True if the log has no record between the position and `taken`.

        `taken` begins after the position. If there may be one, drop them and fetch
        from the position again, at most once a second. Raises `Halted` if the log begins after the
        position.
        """
        position = self.position.next_offset
        pause_s = self._sought_s + _SEEK_PAUSE_S - time.monotonic()
        if pause_s > 0:
            self._pending.put_back(taken)
            await self._wait_for_arrival(pause_s)
            return False
        self._sought_s = time.monotonic()
        log = await self._context.run_blocking(probe_log, self._context.settings, self.partition, position)
        log.check_position(self.partition, self.position)
        if log.first_offset == taken.records[0].offset:
            return True
        self._context.metrics.errors.labels("sought").inc()
        self._fetch_from_position()
        return False

    def _has_work(self) -> bool:
        return bool(self._pending) or due_request(self.rules_request, self.state.position) is not None

    def _fetch_from_position(self) -> None:
        """Drop fetched records, also a former owner's, and fetch from the position on."""
        self._pending.drop_all()
        self._decision.is_reached = False
        position, fetch_control = self.position, self._context.fetch_control
        fetch_control.fetch_from(self.partition, position.next_offset, believed_from(position.clock_repairs))

    def _is_at_halt(self) -> bool:
        return self._halt is not None and self.position.next_offset >= self._halt[0]

    def _is_wanted(self) -> bool:
        return not self.end_requested
