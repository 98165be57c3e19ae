"""An operator's decision about a halted partition, from its opening until it is committed.

A decision is handed to a new owner of the partition, which carries it out once and forgets it:

- A gap of the log, or its truncation, is accepted, or the clock is set, while the partition opens,
  before anything is folded.
- Records are skipped once all records before them are folded and committed.
"""

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from sessionary.schemas.records import Position
from sessionary.schemas.telemetry.role_logs import error_fields, role_logger
from sessionary.stream_processors.core.model import ClockSetting, LogRecord, SkippedOffsets
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.errors import Halted, Lost
from sessionary.stream_processors.runtime.decisions.skipped_records import SkippedRecords, read_records
from sessionary.stream_processors.runtime.decisions.truncated_log import fill_log, find_replaced
from sessionary.stream_processors.runtime.log_probe import LogProbe, probe_log
from sessionary.stream_processors.runtime.open_batch import OpenBatch
from sessionary.stream_processors.runtime.worker_context import WorkerContext

_log = role_logger(__name__)
_FETCH_PAUSE_S = 1.0


class GapAcceptance(NamedTuple):
    """Events that were deleted before they were folded are given up."""

    reason: str  # for people
    principal: str  # who decided it


class RecordSkip(NamedTuple):
    """Records are not folded: those from `first_offset` to `last_offset`, both included."""

    first_offset: int
    last_offset: int
    reason: str  # for people
    principal: str  # who decided it
    fault: Halted  # why the partition is halted at `first_offset`


class TruncationAcceptance(NamedTuple):
    """A log that was cut below the position goes on; what has offsets below it is not folded."""

    reason: str  # for people
    principal: str  # who decided it


Decision = GapAcceptance | RecordSkip | TruncationAcceptance | ClockSetting
# Commits an empty batch after it was given what was decided. If the transaction aborts, the
# position stays.
CommitDecision = Callable[[Callable[[OpenBatch], None]], Awaitable[None]]


class PendingDecision:
    """What is left of a decision to be done. Belongs to the event loop.

    `is_reached`: the next record of the log is one to be skipped, as far as is known.
    """

    def __init__(self, context: WorkerContext, partition: int, decision: Decision | None) -> None:
        self._context = context
        self._partition = partition
        self._decision = decision
        self.is_reached = False

    def cut_records(self, records: Sequence[LogRecord]) -> Sequence[LogRecord]:
        """Return those of fetched records that are to be folded before the decision is due."""
        skip = self._decision
        if not isinstance(skip, RecordSkip) or records[-1].offset < skip.first_offset:
            return records
        self.is_reached = True
        return [record for record in records if record.offset < skip.first_offset]

    def covers_halt(self, offset: int | None) -> bool:
        """Return whether a halt at `offset` is what the operator decided about."""
        skip = self._decision
        if not isinstance(skip, RecordSkip) or offset is None or not skip.first_offset <= offset <= skip.last_offset:
            return False
        self.is_reached = True
        return True

    async def carry_out_at_opening(self, state: PartitionState, commit: CommitDecision) -> None:
        """Carry out a decision that needs no record to be folded first. Raises `Lost`."""
        decision = self._decision
        if decision is None or isinstance(decision, RecordSkip):
            return
        self._decision = None
        if isinstance(decision, GapAcceptance):
            await self._accept_gap(decision, state, commit)
        elif isinstance(decision, TruncationAcceptance):
            await self._accept_truncation(decision, state, commit)
        else:
            await self._set_clock(decision, state, commit)

    async def _set_clock(self, setting: ClockSetting, state: PartitionState, commit: CommitDecision) -> None:
        former = state.position.clock_repairs
        if not state.may_repair_clock:
            _log.warning(
                "partition %(partition)d: its clock is not set: a record is folded in parts, or it was set just now",
                partition=self._partition,
                offset=state.position.next_offset,
            )
            return
        _log.warning(
            "partition %(partition)d: its clock is set from %(former_ms)d to %(clock_ms)d ms, because "
            "%(principal)s decided so: %(why)s",
            former_ms=state.position.clock_ms,
            clock_ms=setting.clock_ms,
            why=setting.reason,
            partition=self._partition,
            offset=state.position.next_offset,
            principal=setting.principal,
        )
        while state.position.clock_repairs == former:
            await commit(lambda batch: batch.set_clock(setting))

    async def _accept_gap(self, decision: GapAcceptance, state: PartitionState, commit: CommitDecision) -> None:
        """Move the position to the log's start."""
        while True:
            position = state.position
            log = await self._probe_log(position.next_offset)
            if position.next_offset >= log.start_offset:
                return
            skip = SkippedOffsets(
                "log_gap_accepted", log.start_offset, position.clock_ms, decision.reason, decision.principal
            )
            _log_skip(self._partition, position, skip)
            await commit(functools.partial(OpenBatch.skip_offsets, skip=skip, leader_epoch=None))

    async def _accept_truncation(
        self, decision: TruncationAcceptance, state: PartitionState, commit: CommitDecision
    ) -> None:
        """Let the log reach the position, and leave unfolded what it holds there since the loss.

        The last transaction names the leader epoch of the record below the position, so that the
        loss is no longer found. Before that, all of it may be repeated.
        """
        position, settings, run = state.position, self._context.settings, self._context.run_blocking
        log = await self._probe_log(position.next_offset)
        if log.find_truncation(self._partition, position) is None or position.next_offset < log.start_offset:
            return  # the replica that has the records is back; or the log begins later, which is another decision
        while log.end_offset < position.next_offset:
            await run(fill_log, settings, self._partition, log, position.next_offset)
            log = await self._probe_log(position.next_offset)
        first = await run(find_replaced, settings, self._partition, position, log.start_offset)
        while first < position.next_offset:
            read = await run(read_records, settings, self._partition, first, position.next_offset - 1)
            if read.next_offset <= first:
                raise Lost(f"partition {self._partition}: nothing can be read from offset {first} on")
            skip = _replaced_offsets(decision, state.position, first, read, time.time())
            _log_skip(self._partition, state.position, skip)
            is_last = read.next_offset >= position.next_offset
            epoch = log.previous.leader_epoch if is_last and log.previous is not None else position.leader_epoch
            former = state.position.batch_number
            await commit(functools.partial(OpenBatch.skip_offsets, skip=skip, leader_epoch=epoch))
            if state.position.batch_number != former:  # else it aborted
                first = read.next_offset

    async def skip_records(self, state: PartitionState, commit: CommitDecision) -> bool:
        """Skip the records that were decided about, in one or several transactions.

        Returns False if a record before them is not folded yet: it is to be fetched. Raises `Lost`,
        and `Halted` if they cannot be skipped.
        """
        skip = self._decision
        assert isinstance(skip, RecordSkip)
        log = await self._probe_log(skip.first_offset)
        if log.end_offset <= skip.last_offset:
            raise _refuse_skip(skip, f"the log ends at {log.end_offset}")
        while state.position.next_offset <= skip.last_offset:
            position = state.position
            read = await self._context.run_blocking(
                read_records, self._context.settings, self._partition, position.next_offset, skip.last_offset
            )
            if read.records and read.records[0].offset < skip.first_offset:
                self.is_reached = False
                await asyncio.sleep(_FETCH_PAUSE_S)
                return False
            if read.next_offset <= max(position.next_offset, skip.first_offset):
                raise _refuse_skip(skip, f"nothing can be read from offset {read.next_offset} on")
            skipped = _skipped_offsets(skip, position, read, time.time())
            _log_skip(self._partition, position, skipped)
            epoch = read.records[-1].leader_epoch if read.records else position.leader_epoch
            await commit(functools.partial(OpenBatch.skip_offsets, skip=skipped, leader_epoch=epoch))
        self._decision, self.is_reached = None, False
        return True

    async def _probe_log(self, offset: int) -> LogProbe:
        return await self._context.run_blocking(probe_log, self._context.settings, self._partition, offset)


def _skipped_offsets(skip: RecordSkip, position: Position, read: SkippedRecords, wall_s: float) -> SkippedOffsets:
    """Return what is committed of a skip. Raises `Halted` if the clock would get ahead of `wall_s`.

    The next opening must not take the skipped records for others than were folded. It knows them by
    their leader epoch; without one, only by a stamp that is not after the clock.
    """
    clock_ms, last = position.clock_ms, read.records[-1] if read.records else None
    if last is not None and last.leader_epoch is None:
        clock_ms = max(clock_ms, last.timestamp_ms)
        ahead_s = last.timestamp_ms / 1_000 - wall_s
        if clock_ms > position.clock_ms and ahead_s > 0:
            raise _refuse_skip(
                skip,
                f"offset {last.offset} is stamped {ahead_s:,.1f} s ahead of this worker's clock, which the "
                "partition's clock would have to follow. Try again after that time, or skip up to an "
                "offset (--to) whose stamp is right",
                ahead_s,
            )
    return SkippedOffsets("records_skipped", read.next_offset, clock_ms, skip.reason, skip.principal, read.records)


def _replaced_offsets(
    decision: TruncationAcceptance, position: Position, first: int, read: SkippedRecords, wall_s: float
) -> SkippedOffsets:
    """Return what is committed of a truncation: records from `first` on that are not folded.

    The next opening must not find the truncation again. It knows the records by their leader epoch;
    without one, only by a clock that is not behind their stamps. Raises `Halted` if that would get
    ahead of `wall_s`.
    """
    clock_ms, last = position.clock_ms, read.records[-1] if read.records else None
    if last is not None and last.leader_epoch is None:
        clock_ms = max(clock_ms, last.timestamp_ms)
        if clock_ms > position.clock_ms and (ahead_s := last.timestamp_ms / 1_000 - wall_s) > 1.0:
            raise Halted(
                "log_truncated",
                f"offset {last.offset} is stamped {ahead_s:,.1f} s ahead of this worker's clock, which the partition's "
                "clock would have to follow. Accept the truncation after that time",
                ahead_s,
            )
    events = [record for record in read.records if record.key is not None]  # the others are ticks
    return SkippedOffsets(
        "log_truncation_accepted",
        position.next_offset,
        clock_ms,
        decision.reason,
        decision.principal,
        events,
        (first, min(read.next_offset, position.next_offset) - 1),
    )


def _refuse_skip(skip: RecordSkip, why: str, clears_in_s: float | None = None) -> Halted:
    fault, what = skip.fault, f"offsets {skip.first_offset} to {skip.last_offset} are not skipped"
    clears = fault.clears_in_s if clears_in_s is None else clears_in_s
    halted = Halted(fault.reason, f"{what}: {why}. Halted by this: {fault.detail}", clears, fault.offset, fault.key)
    _log.warning("a skip is refused: %(error)s", offset=skip.first_offset, **error_fields(halted))
    return halted


def _log_skip(partition: int, position: Position, skip: SkippedOffsets) -> None:
    _log.warning(
        "partition %(partition)d goes on at offset %(offset)d, not at %(former_offset)d (%(decision)s), "
        "because %(principal)s decided so: %(why)s",
        former_offset=position.next_offset,
        decision=skip.event_type,
        why=skip.reason,
        partition=partition,
        offset=skip.next_offset,
        principal=skip.principal,
    )
