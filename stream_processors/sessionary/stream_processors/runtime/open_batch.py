"""A batch before its transaction: the folding of its records, and whether it can wait.

A batch that holds only ticks need not be committed at once: it changes nothing but the clock, and
if its ticks are folded again, by any owner, the result is the same. So it stays open, and the
records that follow go into it.
"""

import asyncio
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import NamedTuple

from sessionary.schemas.errors import Unavailable
from sessionary.schemas.headers import find_traceparent
from sessionary.schemas.records import Position
from sessionary.schemas.telemetry.role_logs import error_fields, role_logger
from sessionary.stream_processors.core.model import BatchResult, ClockSetting, LogRecord, SkippedOffsets
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.core.trail import Access, event_offset, with_accesses
from sessionary.stream_processors.errors import EXPECTED_ERRORS, judge_failed
from sessionary.stream_processors.metrics import Metrics

_log = role_logger(__name__)
_REGISTRY_PAUSE_S = 0.2
_REPORT_EACH_S = 30.0
_SLICE_S = 0.005  # between two yields to the event loop
_LOOK_EACH = 8  # records between two readings of the clock
_offset_of = attrgetter("offset")


class LookupReport:
    """Logs and counts failed look-ups of schemas, at most every 30 s."""

    def __init__(self, metrics: Metrics, partition: int) -> None:
        self._metrics, self._partition = metrics, partition
        self._reported_s = -_REPORT_EACH_S

    def report_wait(self, trouble: Unavailable) -> None:
        """Report a look-up for which the fold waits; a look-up under way is no trouble."""
        now_s = time.monotonic()
        if trouble.retry_after_s > _REGISTRY_PAUSE_S and now_s - self._reported_s >= _REPORT_EACH_S:
            self._reported_s = now_s
            self._metrics.errors.labels("registry").inc()
            _log.warning("partition %(partition)d waits: %(error)s", partition=self._partition, **error_fields(trouble))


class _Slice(NamedTuple):
    """How a slice of folding ended."""

    folded: int  # how many of the records are in the batch
    is_full: bool = False  # the batch takes no more
    trouble: Unavailable | None = None  # the look-up of a schema failed


class OpenBatch:
    """The uncommitted batch and the records that went into it. Belongs to the event loop.

    `ticks_position` is the position after its records while it holds only ticks and waits, else
    None. `fold_s` is the processor time that the folding took, `reported_accesses` how many of the
    accesses it reported. `log_truncated` and `log_lost_from` are the position's.
    """

    def __init__(self, state: PartitionState) -> None:
        """A batch of `state` that was begun before is void from now on."""
        self.uncommitted = state.begin()
        self.records: list[LogRecord] = []
        self.ticks_position: Position | None = None
        self.fold_s, self.reported_accesses = 0.0, 0
        self._partition, self._leader_epoch = state.partition, state.position.leader_epoch
        self.log_truncated, self.log_lost_from = state.position.log_truncated, state.position.log_lost_from

    @property
    def leader_epoch(self) -> int | None:
        """The epoch of the leader that appended the last record below the position, if known."""
        return self.records[-1].leader_epoch if self.records else self._leader_epoch

    def first_ms_from(self, offset: int) -> int | None:
        """Return when the first record from `offset` on was appended (ms), None if none went in."""
        place = bisect_left(self.records, offset, key=_offset_of)
        return self.records[place].timestamp_ms if place < len(self.records) else None

    def skip_offsets(self, skip: SkippedOffsets, leader_epoch: int | None, *, ends_truncation: bool = False) -> None:
        """Skip offsets; `leader_epoch` is that of the last record among them, if known."""
        self.uncommitted.skip_offsets(skip)
        self._leader_epoch = leader_epoch
        if ends_truncation:
            self.log_truncated = self.log_lost_from = None

    def keep_truncation(self, found: str, lost_from: int | None) -> None:
        """Let the position say that the log lost folded records; `found` is how that showed."""
        self.log_truncated, self.log_lost_from = found, lost_from

    def set_clock(self, setting: ClockSetting) -> None:
        """Set the clock before the next record."""
        self.uncommitted.set_clock(setting)

    def finish(self, previous_acknowledged_at: int | None, accesses: Sequence[Access] = ()) -> BatchResult:
        """Return the batch's writes, with the trace contexts of the events that it reports on.

        `previous_acknowledged_at`: of the former transaction (µs). Reads the headers of these
        events only: unpacking those of all would cost a microsecond for each. `accesses`: to be
        recorded too; a batch without a record leaves them to the next one.
        """
        outcome = self.uncommitted.finish(previous_acknowledged_at)
        if self.records:
            outcome = with_accesses(outcome, self._partition, accesses)
            self.reported_accesses = len(accesses)
        reported = {event_offset(stream, record) for stream, _, record in outcome.emitted}
        contexts = {
            record.offset: context
            for record in (self.records if reported else ())
            if record.offset in reported and (context := find_traceparent(record.headers)) is not None
        }
        return outcome._replace(traceparents=contexts) if contexts else outcome

    async def fold_records(
        self, records: Sequence[LogRecord], is_wanted: Callable[[], bool], report: LookupReport
    ) -> int:
        """Fold until the batch is full or not wanted; return how many went in.

        Yields to the event loop. A failed look-up of a schema is reported and repeated. Raises
        `Halted` if the fold fails.
        """
        folded = await self._fold_records(records, is_wanted, report)
        self.records += records[:folded]
        return folded

    async def _fold_records(
        self, records: Sequence[LogRecord], is_wanted: Callable[[], bool], report: LookupReport
    ) -> int:
        folded = 0
        while True:
            begun_s = time.thread_time()
            folded, is_full, trouble = self._fold_slice(records, folded)
            self.fold_s += time.thread_time() - begun_s
            if is_full or folded == len(records):
                return folded
            if trouble is not None:
                report.report_wait(trouble)
            await asyncio.sleep(0 if trouble is None else min(trouble.retry_after_s, _REGISTRY_PAUSE_S))
            if not is_wanted():
                return folded

    def _fold_slice(self, records: Sequence[LogRecord], first: int) -> _Slice:
        """Fold records from the place `first` on, for about 5 ms at most."""
        ends_s, apply = time.perf_counter() + _SLICE_S, self.uncommitted.apply
        for place in range(first, len(records)):
            if place > first and place % _LOOK_EACH == 0 and time.perf_counter() > ends_s:
                return _Slice(place)
            try:
                if not apply(records[place]):
                    return _Slice(place, is_full=True)
            except Unavailable as trouble:
                return _Slice(place, trouble=trouble)
            except EXPECTED_ERRORS:
                raise
            except Exception as error:  # the fold is pure: a new owner would fail at the same record
                offset, key = records[place].offset, records[place].key
                raise judge_failed(f"partition {self._partition}, offset {offset}", error, offset, key) from error
        return _Slice(len(records))

    def wait_for_more(self) -> bool:
        """Note the position and return True if the batch holds only ticks."""
        if not self.uncommitted.holds_only_ticks:
            return False
        self.ticks_position = self.uncommitted.final_position
        return True
