"""One batch of a partition: the rows it touches and the records it emits, until the merge.

Each record first moves the partition's clock. Then every row that is due fires, in the order of the
deadlines, and the record itself is judged.

A batch is full after so many records, input bytes or timers, and after so many bytes of output: a
heartbeat of 100 bytes writes a row that may have 4 MiB. A row counts once, when it is first
touched. The input bytes bound what events add to rows, and what outputs repeat of events.
"""

import heapq
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from sessionary.schemas.ids import SessionKey, is_run_key
from sessionary.schemas.records import AuditRecord, Position
from sessionary.schemas.types import AnnouncedRules, RejectionReason, RuleSet
from sessionary.stream_processors.core.clock import Clock, add_repair, believed_from, stands_at_repair
from sessionary.stream_processors.core.committed import ChildChanges, CommittedState
from sessionary.stream_processors.core.judge import Arrival, apply_facts, begins_rules, unread_arrival
from sessionary.stream_processors.core.model import (
    EMITTED_BYTES,
    RECORD_OVERHEAD_BYTES,
    BatchResult,
    ClockSetting,
    Counts,
    Emitted,
    JudgedRecords,
    LogRecord,
    OutputCause,
    SkippedOffsets,
)
from sessionary.stream_processors.core.rows import REMAINS, AnyRows
from sessionary.stream_processors.core.tombstones import Changes, end_of_day, is_chunk_key, plan_packing, wait_again
from sessionary.stream_processors.core.trail import (
    add_decision,
    failure_record,
    rebuild_record,
    rejected_record,
    repair_record,
    rules_record,
    skip_record,
)
from sessionary.stream_processors.errors import EXPECTED_ERRORS, describe_exception

# The row under a key before and after, whether its deadline moves or it only vanishes from now on,
# when, its estimated bytes, and the label of the row before.
RowPlan = tuple[bytes, Any, Any, bool, bool, int, int, Hashable]


class BatchRows:
    """The changes of a batch to rows. `rows` are those it touched (None: gone).

    `live` and `vanishing` are numbers of rows with those of the batch, as in `CommittedState`.
    `labels_before`: the labels of the committed rows that the batch touched.
    `is_output_full`: the batch writes enough for one transaction.
    """

    def __init__(self, committed: CommittedState) -> None:
        self._committed = committed
        self._families = committed.families
        self.rows: dict[bytes, Any] = {}
        self.live, self._vanishing, self.unpacked = committed.live, committed.vanishing, committed.unpacked
        self.labels_before: dict[bytes, Hashable] = {}
        self.is_output_full = False
        self._output_bytes = 0
        position = committed.position
        self._clock = Clock(position.clock_ms, position.outage_grace_until_ms)
        self._repairs, self._decisions = position.clock_repairs, position.decisions
        self._rules = position.rules
        self.children = ChildChanges(committed.child_index)
        self._chunks_due_ms = committed.chunks.earliest_ms
        self._packing: Changes = {}  # as `finish` planned it last

    @property
    def written_rows(self) -> Mapping[bytes, Any]:
        """The rows that the transaction writes, as of the last `finish`: with what it packs."""
        return {**self.rows, **self._packing} if self._packing else self.rows

    @property
    def vanishing(self) -> int:
        """The number of rows that only vanish, as of the last `finish`, without chunks."""
        return self._vanishing - sum(not is_chunk_key(key) for key in self._packing)

    def get_row(self, key: bytes) -> Any:
        """Return the row under a key as it is in this batch; None if there is none."""
        row = self.rows.get(key)
        if row is not None or key in self.rows:
            return row
        row = self._committed.rows.get(key)
        return self._committed.repair_times(row, self._repairs) if self._repairs else row

    def count_children(self, parent: bytes) -> int:
        """Return how many children the row under a key has."""
        return self.children.count(parent)

    def _judged_row(self, key: bytes) -> Any:
        """Return the row under a record's key as the judge gets it."""
        row, committed = self.get_row(key), self._committed
        if type(row) in self._families.live_classes:
            return row
        if row is None or is_chunk_key(key):  # any client may send a record with the key of a chunk
            return REMAINS if committed.chunks.holds(key, self._clock.now_ms) else None
        expires_ms = committed.expiry_ms(row)
        if expires_ms is None:
            return row
        return REMAINS if expires_ms > self._clock.now_ms else None

    def _put_row(self, family: AnyRows, key: bytes, before: Any, row: Any) -> None:
        live_classes = self._families.live_classes
        is_live = type(row) in live_classes and type(before) in live_classes
        if is_live and key in self.rows and family.is_only_postponed(before, row):
            self.rows[key] = row  # as most rows that a batch touches again: nothing else changes
        else:
            self._keep_row(self._plan_row(family, key, before, row))

    def _plan_row(self, family: AnyRows, key: bytes, before: Any, row: Any) -> RowPlan:
        """Work out all that may raise, so that a failure leaves nothing half done."""
        live_classes = self._families.live_classes
        is_live, was_live = type(row) in live_classes, type(before) in live_classes
        is_begun = row is not None and (before is None or was_live)
        is_expiring = is_begun and not is_live and type(row) not in self._families.child_classes
        is_moved = is_live and not (was_live and family.is_only_postponed(before, row))
        due_ms = family.due_ms(row) if is_moved else self._expiry_ms(row) if is_expiring else 0
        if is_expiring and due_ms <= self._clock.now_ms:
            row, is_expiring = None, False
        if key in self.rows:
            return key, before, row, is_moved, is_expiring, due_ms, 0, None
        size = RECORD_OVERHEAD_BYTES if row is None else family.estimate_bytes(row)
        return key, before, row, is_moved, is_expiring, due_ms, size, self._committed.tally.label_of(before)

    def _keep_row(self, plan: RowPlan) -> None:
        key, before, row, is_moved, is_expiring, due_ms, size, label = plan
        live_classes = self._families.live_classes
        is_live, was_live = type(row) in live_classes, type(before) in live_classes
        if key not in self.rows:
            self._count_output(len(key) + size)
            self.labels_before[key] = label
        self.rows[key] = row
        if not (is_live and was_live):
            self._count_rows(key, before, row)
        if is_moved:  # if not, its timer is early, and asks the row again when it comes up
            self._committed.timers.schedule(key, due_ms)
        elif is_expiring:
            heapq.heappush(self._committed.expiries_of(type(row)), (due_ms, key))

    def _count_rows(self, key: bytes, before: Any, row: Any) -> None:
        """Count a row that begins, ends, or is live only before or after."""
        families, former, latter = self._families, type(before), type(row)
        is_live, was_live = latter in families.live_classes, former in families.live_classes
        self.live += is_live - was_live
        if latter in families.child_classes or former in families.child_classes:
            if before is None:
                self.children.add(key)
            return
        self._vanishing += (row is not None and not is_live) - (before is not None and not was_live)
        self.unpacked += (latter in families.unpacked_classes) - (former in families.unpacked_classes)
        if row is None or latter in families.expiries_ms:
            self._drop_children(key)

    def _drop_children(self, parent: bytes) -> None:
        """Drop the rows that vanish with another one."""
        keys = self.children.keys_of(parent)
        if not keys:
            return
        for key in keys:
            row = self.get_row(key)
            self.live -= self._committed.is_live(row)
            self._drop_row(key, row)
        self.children.drop(parent)

    def _drop_expired(self) -> bool:
        """Drop every row that vanishes; False if the batch is full before the last one."""
        now_ms, committed = self._clock.now_ms, self._committed
        if self._chunks_due_ms <= now_ms:
            for key in committed.chunks.expired_keys(now_ms):
                self._drop_row(key, None)
            self._chunks_due_ms = end_of_day(now_ms + 1)
        return self._drop_due(committed.expiries, now_ms) and self._drop_due(committed.unpacked_expiries, now_ms)

    def _drop_due(self, expiries: list[tuple[int, bytes]], now_ms: int) -> bool:
        """Drop the rows of a heap that vanish by now; False if the batch is full before that."""
        while expiries and expiries[0][0] <= now_ms:
            if self.is_output_full:
                return False
            _, key = heapq.heappop(expiries)
            row = self.get_row(key)
            if row is None or self._committed.is_live(row):
                continue
            due_ms = self._expiry_ms(row)
            if due_ms <= now_ms:
                self._drop_row(key, row)
                self._drop_children(key)
                self._vanishing -= 1
                self.unpacked -= type(row) in self._families.unpacked_classes
                self._leave_tombstone(key, row)
            else:  # the entry was a hint, and early
                heapq.heappush(expiries, (due_ms, key))
        return True

    def _leave_tombstone(self, key: bytes, row: Any) -> None:
        """Put the tombstone of a vanished row in its place, unless its time is over too."""
        remains = self._families.remains.get(type(row))
        grave = None if remains is None else remains(row)
        if grave is not None and (ends_ms := self._expiry_ms(grave)) > self._clock.now_ms:
            self.rows[key] = grave
            self._vanishing += 1
            heapq.heappush(self._committed.expiries, (ends_ms, key))

    def _drop_row(self, key: bytes, row: Any) -> None:
        if key not in self.rows:
            self._count_output(len(key) + RECORD_OVERHEAD_BYTES)
            self.labels_before[key] = self._committed.tally.label_of(row)
        self.rows[key] = None

    def _expiry_ms(self, row: Any) -> int:
        """Return when a row that is not live vanishes."""
        committed = self._committed
        expires_ms = committed.expiry_ms(row)
        return committed.due_ms(row) if expires_ms is None else expires_ms

    def _live_due_ms(self, key: bytes) -> int | None:
        row = self.get_row(key)
        return self._committed.due_ms(row, self._outage_end_ms) if self._committed.is_live(row) else None

    @property
    def _outage_end_ms(self) -> int:
        return self._committed.outage_end_ms(self._clock)

    def _plan_packing(self) -> None:
        """Decide which tombstones are packed; the choice changes no verdict."""
        self._undo_packing()
        self._packing = plan_packing(
            *(self._committed.expiries, self._committed.chunks, self._committed.settings.chunk_sizes),
            *(self._clock.now_ms, lambda key: self._committed.expiry_ms(self.get_row(key))),
        )

    def _undo_packing(self) -> None:
        wait_again(self._committed.expiries, self._packing)
        self._packing = {}

    def _count_output(self, size: int) -> None:
        self._output_bytes += size
        if self._output_bytes >= self._committed.settings.output_bytes_max:
            self.is_output_full = True


class UncommittedBatch(BatchRows):
    """The uncommitted changes of one batch. Dropping it rolls back.

    Timers and expiries are hints that it shares with the committed state; `PartitionState.begin`
    restores those of a dropped batch.
    """

    def __init__(self, committed: CommittedState) -> None:
        super().__init__(committed)
        self.records = 0
        self._bytes = 0
        position = committed.position
        self._batch_number = position.batch_number + 1
        self._believed_from = believed_from(self._repairs)
        self._next_offset = position.next_offset
        self._first_offset: int | None = None
        self._outputs_written = position.outputs_written
        self._announced = position.announced
        self._decoder = committed.decoder.as_of(position.rules.version)
        self._applied = self._duplicate = self._fenced_beats = self._ticks = 0
        self._rejections: list[RejectionReason] = []
        self._judged = JudgedRecords()
        self._add_offset, self._add_key = self._judged.offsets.append, self._judged.key_hashes.append
        self._lateness_ms: list[int] = []
        self._due_ms: list[int] = []
        self._outages = 0
        self._emitted: list[Emitted] = []
        self._previous_acknowledged_at: int | None = None

    def apply(self, record: LogRecord, failure: str | None = None) -> bool:
        """Fold one record. False: the batch is full, so the record belongs to the next one.

        A record on which the judge fails is rejected as `internal_error`. With a `failure`, the
        detail from the first fold, the record is rejected without being judged. Raises
        `Unavailable` if a schema registry does not answer; the same call may then be repeated.
        """
        size = len(record.key or b"") + len(record.value or b"") + RECORD_OVERHEAD_BYTES
        settings = self._committed.settings
        if (
            self.is_output_full
            or self.records >= settings.records_max
            or (self.records and self._bytes + size > settings.bytes_max)
        ):
            return False
        if self._packing:
            self._undo_packing()
        if record.key is None and self._announced is not None and self._begins_announced(record):
            if self.records:
                return False  # all records of a batch are judged by the same rules
            self._begin_rules(self._announced)
        if self._first_offset is None:
            self._first_offset = record.offset
        if record.offset != self._next_offset:
            # The offsets between hold transaction markers, or were compacted away.
            self._next_offset, self._outputs_written = record.offset, 0
        if record.offset >= self._believed_from:
            self._move_clock(record.timestamp_ms)
        if not self._drop_expired() or not self._fire_due():
            return False
        if failure is None:
            failure = self._judge_safely(record)
        if failure is not None:
            arrival = self._reject_unread(record, "internal_error", failure)
            self._emitted.append(
                Emitted("audit", record.key or b"", failure_record(arrival, failure, self._next_cause()))
            )
        self.records += 1
        self._bytes += size
        self._next_offset, self._outputs_written = record.offset + 1, 0
        return True

    def announce_rules(self, rules: RuleSet, principal: str) -> None:
        """Announce `rules`, which begin with the next activation record; leaves an audit record.

        `principal`: who activated them. Raises `ValueError` if newer rules, or these, are in force.
        """
        if rules.version < self._rules.version or rules == self._rules:
            raise ValueError(f"rules {self._rules.version} are in force, so {rules.version} cannot begin")
        self._announced = AnnouncedRules(*rules, self._next_offset, principal)
        cause = self._next_cause()
        self._emitted.append(Emitted("audit", None, rules_record(rules, self._rules, principal, cause)))

    def skip_offsets(self, skip: SkippedOffsets) -> None:
        """Continue at `skip.next_offset`; the skipped offsets leave an audit record.

        Skipped records are not folded; each is rejected. Raises `ValueError` if the position is
        there already.
        """
        if skip.next_offset < self._next_offset + (skip.replaced is None):
            raise ValueError(f"the position is {self._next_offset}, so offsets up to {skip.next_offset} are folded")
        self._move_clock(skip.clock_ms)
        self._report_decision(skip_record(self._committed.log, skip, self._next_cause()))
        for record in skip.records:
            self._reject_unread(record, "skipped", f"skipped by {skip.principal}: {skip.reason}")
        if skip.replaced is None:
            self._next_offset, self._outputs_written = skip.next_offset, 0

    def note_rebuild(self, event_type: str, found: str, reason: str, principal: str) -> None:
        """Leave an audit record that the rows were rebuilt; `found` says from what."""
        cause = OutputCause(self._committed.partition, self._next_offset, 0, self._clock.now_ms, self._batch_number)
        self._report_decision(rebuild_record(self._committed.log, event_type, found, reason, principal, cause))

    def set_clock(self, setting: ClockSetting) -> None:
        """Set the clock, forward or back, before the next record; leaves an audit record.

        No timer fires for a while then. Raises `ValueError` while the timers of the next record are
        written in parts.
        """
        if self.records or not self._may_repair_clock:
            raise ValueError("a clock is set between two records")
        committed, former_ms = self._committed, self._clock.now_ms
        self._repairs = add_repair(self._repairs, setting.until_offset, former_ms, setting.clock_ms)
        self._believed_from = setting.until_offset
        self._clock = Clock(setting.clock_ms, setting.clock_ms + committed.settings.outage_grace_ms)
        if back_ms := self._repairs[-1].back_ms:
            committed.timers.move_earlier(back_ms)
        record = repair_record(committed.log, setting, former_ms, self._next_cause())
        self._report_decision(record)

    @property
    def _may_repair_clock(self) -> bool:
        """Whether the next record has changed nothing, and the clock was not repaired just now.

        A record that is written in parts may have moved the clock alone: then rows are due or over.
        """
        if self._outputs_written and stands_at_repair(self._clock.now_ms, self._repairs):
            return False
        committed, now_ms = self._committed, self._clock.now_ms
        if committed.has_vanishing(now_ms):
            return False
        return self._clock.is_in_outage_grace or committed.timers.next_due(self._live_due_ms, now_ms) is None

    @property
    def final_position(self) -> Position:
        """Where the partition is after this batch."""
        return Position(
            next_offset=self._next_offset,
            clock_ms=self._clock.now_ms,
            outage_grace_until_ms=self._clock.outage_grace_until_ms,
            batch_number=self._batch_number,
            outputs_written=self._outputs_written,
            previous_acknowledged_at=self._previous_acknowledged_at,
            rules=self._rules,
            announced=self._announced,
            clock_repairs=self._repairs,
            decisions=self._decisions,
        )

    @property
    def holds_only_ticks(self) -> bool:
        """Whether this batch holds ticks and no other record, and changes nothing but the clock.

        False too if a row is due, an outage was found, or other rules began.
        """
        effects = self.rows or self._emitted or self._lateness_ms
        position = self._committed.position
        is_new_outage = self._clock.outage_grace_until_ms != position.outage_grace_until_ms
        return 0 < self.records == self._ticks and not (effects or is_new_outage or self._rules != position.rules)

    def finish(self, previous_acknowledged_at: int | None = None) -> BatchResult:
        """Return the writes of the transaction.

        `previous_acknowledged_at` (µs since the epoch) is when the partition's transaction before
        this one was acknowledged, if this owner wrote it.
        """
        first = self._committed.position.next_offset if self._first_offset is None else self._first_offset
        written = Counter(emitted.stream for emitted in self._emitted)
        counts = Counts(
            applied=self._applied,
            duplicate=self._duplicate,
            rejected=len(self._rejections) - self._fenced_beats,
            audited=written["audit"],
            timers=len(self._lateness_ms),
            ticks=self._ticks,
            fenced_beats=self._fenced_beats,
            first_offset=first,
            last_offset=max(first, self._next_offset - 1),
            cleanup=written["cleanup"],
            tasks=written["tasks"],
            migrations=written["migrations"],
            quotas=written["quotas"],
        )
        self._previous_acknowledged_at = previous_acknowledged_at
        self._plan_packing()
        return BatchResult(
            self.written_rows,
            self._emitted,
            self.final_position,
            counts,
            self._judged,
            self._rejections,
            self._lateness_ms,
            self._due_ms,
            self._outages,
        )

    def _move_clock(self, stamp_ms: int) -> None:
        settings, former = self._committed.settings, self._clock
        if stamp_ms <= former.now_ms:
            return  # as of most records: many are appended within a millisecond
        self._clock = former.advance_to(
            stamp_ms, live=self.live > 0, outage_ms=settings.outage_ms, outage_grace_ms=settings.outage_grace_ms
        )
        if self._clock.outage_grace_until_ms != former.outage_grace_until_ms:
            self._outages += 1

    def _reject_unread(self, record: LogRecord, reason: RejectionReason, detail: str) -> Arrival:
        """Reject a record without judging it, so that no row changes; return its arrival."""
        arrival = unread_arrival(record, self._committed.log, self._clock.now_ms, self._rules)
        self._add_offset(record.offset)
        self._add_key(hash(record.key or b""))
        self._judged.rejections[record.offset] = reason
        self._rejections.append(reason)
        self._emitted.append(Emitted("rejected", record.key, rejected_record(arrival, reason, detail)))
        self._count_output(record.whole_bytes + EMITTED_BYTES)
        return arrival

    def _report_decision(self, record: AuditRecord) -> None:
        self._emitted.append(Emitted("audit", None, record))
        self._decisions = add_decision(self._decisions, record)

    def _begins_announced(self, record: LogRecord) -> bool:
        assert self._announced is not None
        return begins_rules(record, self._announced, self._decoder, self._committed.log.keys)

    def _begin_rules(self, announced: AnnouncedRules) -> None:
        self._rules, self._announced = announced.rules, None
        self._decoder = self._committed.decoder.as_of(announced.version)

    def _next_cause(self) -> OutputCause:
        # `apply` has moved `_next_offset` to its record.
        partition, now_ms = self._committed.partition, self._clock.now_ms
        cause = OutputCause(partition, self._next_offset, self._outputs_written, now_ms, self._batch_number)
        self._outputs_written += 1
        return cause

    def _fire_due(self) -> bool:
        """Fire every row that is due; False if the batch is full before the last one."""
        timers, now_ms = self._committed.timers, self._clock.now_ms
        if not timers.may_be_due(now_ms) or self._clock.is_in_outage_grace:
            return True
        while due := timers.next_due(self._live_due_ms, now_ms):
            if self.is_output_full or len(self._lateness_ms) >= self._committed.settings.timers_max:
                return False
            self._fire_row(*due)
        return True

    def _fire_row(self, due_ms: int, key: bytes) -> None:
        """Fire a row; the facts are for its session's row, if it is not one itself."""
        row, now_ms, families = self.get_row(key), self._clock.now_ms, self._families
        decision = families.by_row_class[type(row)].fire(key, row, self, now_ms, self._outage_end_ms)
        if type(row) in families.foreign_classes:
            key = SessionKey(row.tenant_id, row.session_id).encoded()
            row = self._judged_row(key)
        after, emitted = apply_facts(self._committed.judge, key, row, decision.facts, None, self._next_cause)
        plans = self._plan_rows(key, row, after, decision.writes)
        self._lateness_ms.append(now_ms - due_ms)
        self._due_ms.append(due_ms)
        self._emitted += emitted
        self._count_output(EMITTED_BYTES * len(emitted))
        for plan in plans:
            self._keep_row(plan)

    def _plan_rows(self, key: bytes, row: Any, after: Any, writes: Mapping[bytes, Any] | None) -> list[RowPlan]:
        """Return the plans for the home row and the rows under other keys; changes no row yet."""
        families = self._families
        plans = [] if after is row else [self._plan_row(families.home, key, row, after)]
        for other, written in (writes or {}).items():
            before = self.get_row(other)
            if written is not before:
                family: AnyRows = families.by_row_class[type(before if written is None else written)]
                plans.append(self._plan_row(family, other, before, written))
        return plans

    def _judge_safely(self, record: LogRecord) -> str | None:
        """Judge a record; return None, or how the judge failed. The batch is then as before."""
        outputs_written = self._outputs_written
        try:
            self._judge_record(record)
        except EXPECTED_ERRORS:
            raise
        except Exception as error:  # noqa: BLE001 - a judge may fail in any way, and one record must stop no partition
            self._outputs_written = outputs_written
            return describe_exception(error)
        return None

    def _judge_record(self, record: LogRecord) -> None:
        committed, families = self._committed, self._families
        key = record.key or b""
        row = self._judged_row(key) if key else None
        if type(row) in families.foreign_classes or is_run_key(key):
            row = None  # a record's key is never that of a row outside the home
        known, judge = None if row is REMAINS else row, committed.judge
        arrival = judge.read(
            record, known, self._decoder, committed.log, self._clock.now_ms, self._rules, self._outage_end_ms
        )
        if arrival is None:
            self._ticks += 1
            return
        if self._repairs:
            arrival.clock_repair = self._repairs[-1].number
        decision = judge.decide(row, arrival, self)
        if decision.duplicate:
            self._add_offset(record.offset)
            self._add_key(hash(record.key or b""))
            self._duplicate += 1
            assert arrival.event is not None  # an unreadable record repeats nothing
            self._judged.add_duplicate(record.offset, arrival.event.envelope.event_id)
            return
        after, emitted = apply_facts(judge, key, row, decision.facts, arrival, self._next_cause)
        if decision.writes:
            for plan in self._plan_rows(key, row, after, decision.writes):
                self._keep_row(plan)
        elif after is not row:
            self._put_row(families.home, key, row, after)
        # Nothing raises from here on.
        self._add_offset(record.offset)
        self._add_key(hash(record.key or b""))
        self._ticks += arrival.counts_as_tick
        if decision.rejection is None:
            self._applied += not arrival.counts_as_tick
        else:
            self._rejections.append(decision.rejection)
            self._judged.rejections[record.offset] = decision.rejection
            if decision.only_counted:
                self._fenced_beats += 1
            else:
                self._count_output(record.whole_bytes)
        if emitted:
            self._emitted += emitted
            self._count_output(EMITTED_BYTES * len(emitted) + _bytes_of_tasks(emitted))


def _bytes_of_tasks(emitted: Sequence[Emitted]) -> int:
    """Return the size of the tasks' inputs: a small event may ask for many tasks again."""
    return sum(len(each.record.input_json or "") for each in emitted if each.stream == "tasks")
