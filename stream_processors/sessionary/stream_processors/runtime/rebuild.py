"""Rebuilds the rows of a partition whose changelog cannot be trusted, if a person decides so.

A plan reads logs and writes nothing; a dry run ends there. Up to which offset the partition was
folded, and its outputs sent, is said by its position and by its last transaction on `batches`. The
rows are rebuilt for that offset, and the fold goes on from there, so no output is sent twice.

    refold          all events up to there are folded again, in memory; their outputs are dropped
    accept_rows     the rows are taken as the changelog has them, with all that they lack
    accept_topics   the rows are right, and the topics are others, to which all records were copied

The owner writes the rows that differ, and tombstones for those that are too many, in transactions
like any other. If that is interrupted, the last position says so, and the partition halts again.

This is one module because all three modes share what is read, and the grounds on which they refuse.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from sessionary.schemas.errors import DecodeError, Unavailable
from sessionary.schemas.ids import SessionKey
from sessionary.schemas.records import AuditRecord, BatchRecord, Position, RulesActivation
from sessionary.schemas.rules import known_rules, newest_known
from sessionary.schemas.telemetry.role_logs import role_logger
from sessionary.schemas.types import RuleSet
from sessionary.stream_processors.core.model import LogRecord, OutputCause, RebuildMode, SkippedOffsets
from sessionary.stream_processors.core.trail import rules_record
from sessionary.stream_processors.core.uncommitted_batch import UncommittedBatch
from sessionary.stream_processors.errors import Halted, Lost, RebuildRefused
from sessionary.stream_processors.runtime.audit_log import read_audit
from sessionary.stream_processors.runtime.changelog import UNFINISHED, read_as_is, seal_with
from sessionary.stream_processors.runtime.decisions import read_each, read_records
from sessionary.stream_processors.runtime.job import Job
from sessionary.stream_processors.runtime.log_identity import TopicIds, is_other_topic
from sessionary.stream_processors.runtime.log_probe import FoldProgress, LogProbe, find_progress, probe_log
from sessionary.stream_processors.runtime.transaction import Seal
from sessionary.stream_processors.runtime.worker_context import WorkerContext
from sessionary.stream_processors.settings import ProcessorSettings
from sessionary.stream_processors.store.packed_rows import CONTENT_SUFFIX, RowCodec
from sessionary.stream_processors.store.stores import MemoryStore, SavedPosition

# The halts that a rebuild ends, and the commands for the others.
REBUILDABLE: Final = frozenset({"changelog_incomplete", "position_lost", "topic_replaced", "changelog_unreadable"})
_OTHER_VERBS: Final[Mapping[str, str]] = {
    "log_gap": "accept-gap",
    "log_truncated": "accept-truncation",
    "clock_ahead": "repair-clock",
    "batch_unreadable": "skip",
    "judge_failed": "skip",
    "wrong_timestamp_type": "skip",
}
EVENT_TYPES: Final[Mapping[RebuildMode, str]] = {
    "refold": "rows_refolded",
    "accept_rows": "rows_accepted",
    "accept_topics": "topics_accepted",
}
# Decisions after which a log still yields the rows. Copies of events have other timestamps.
_REPEATABLE: Final = frozenset({"records_skipped", "rules_announced", "rows_refolded"})
_TRANSACTION_BYTES: Final = 8 << 20  # of rows, about as they are written
_PAUSE_S: Final = 0.2
_REPORT_EACH_S: Final = 30.0
_SKEW_MS: Final = 1_000  # by which a clock of a broker may be ahead of that of a worker
_BLOCK = 1_000  # offsets whose audit records are compared as one
_FIRST_COMPARED, _LAST_COMPARED = 3, 17  # events of a log that may be a copy
_log = role_logger(__name__)
_T = TypeVar("_T")
Wanted = Callable[[], bool]


def require_rebuildable(partition: int, fault: Halted, mode: RebuildMode) -> None:
    """Raise `RebuildRefused` unless a rebuild in this mode is a way out of a halt."""
    if fault.reason not in REBUILDABLE:
        verb = _OTHER_VERBS.get(fault.reason, "retry")
        raise RebuildRefused(
            f"partition {partition} is halted by {fault.reason}, for which its rows need no rebuild; see: sessionary "
            f"partition {verb}"
        )
    if mode == "accept_topics" and fault.reason != "topic_replaced":
        raise RebuildRefused(
            f"partition {partition} is halted by {fault.reason}: only a topic_replaced ends by accepting the topics"
        )


class RebuildPlan(NamedTuple):
    """What a rebuild writes, and from where the partition goes on."""

    mode: RebuildMode
    former: Position  # that the changelog has
    position: Position  # with the last batch's number: each transaction has the next one
    topic_ids: TopicIds
    leader_epoch: int | None  # of the last record below the position
    found: MemoryStore  # the rows of the changelog; the owner keeps it as the changelog is
    row_of: Callable[[bytes], Any]  # how a row is to be, by key
    added: Sequence[bytes] = ()
    changed: Sequence[bytes] = ()
    removed: Sequence[bytes] = ()
    audited_beyond: int = 0  # audit records of events that are judged again; these get the same numbers
    unreadable: Collection[bytes] = frozenset()  # keys of the changelog whose last record cannot be read

    @property
    def found_rows(self) -> int:
        """How many rows the changelog has."""
        return len(self.found.rows)

    def stored_row(self, key: bytes) -> bytes | None:
        """Return the bytes that the changelog has under a key; some if they cannot be read.

        So a content that cannot be read is replaced or removed, as if it were another one.
        """
        return b"" if key in self.unreadable else self.found.stored_row(key)

    def describe(self) -> str:
        """Return what was done, for the audit trail."""
        what = {
            "refold": f"rows folded again from the events below offset {self.position.next_offset}",
            "accept_rows": "rows accepted as the changelog had them",
            "accept_topics": "topics accepted as copies of the former ones",
        }[self.mode]
        changes = f"{len(self.added)} rows added, {len(self.changed)} changed, {len(self.removed)} removed"
        return f"{what} ({changes}); judged on from offset {self.position.next_offset}"

    def cut_rows(self, codec: RowCodec) -> list[dict[bytes, Any]]:
        """Return the rows of each transaction, of at least one; None removes a row."""
        parts: list[dict[bytes, Any]] = [{}]
        size = 0
        for key in (*self.removed, *self.added, *self.changed):
            row = self.row_of(key)
            parts[-1][key] = row
            size += len(key) + (0 if row is None else codec.estimate_bytes(row))
            if size >= _TRANSACTION_BYTES:
                parts.append({})
                size = 0
        return parts

    def seal(self, *, is_last: bool) -> Seal:
        """Return what completes the position of a transaction; only the last one can be opened."""
        kept = self.position
        seal = seal_with(self.found, self.leader_epoch, self.topic_ids, kept.log_truncated, kept.log_lost_from)
        return seal if is_last else lambda position, rows: seal(position, rows)._replace(row_count=UNFINISHED)


async def plan_rebuild(context: WorkerContext, partition: int, mode: RebuildMode, wanted: Wanted) -> RebuildPlan:
    """Work out what a rebuild of a partition writes; change nothing.

    Waits for a turn among the openings of partitions. Raises `RebuildRefused`, and `Lost` without
    an answer, or once it is no longer `wanted`. Raises `Halted` if a changelog's batch cannot be
    read, if an open transaction hides records, or for unknown rules.
    """
    async with context.recovery_turns:
        topic_ids = await context.run_blocking(context.topic_ids)
        changelog_end = await context.run_blocking(context.changelog_end, partition)
        planning = _Planning(context.settings, context.job, partition, topic_ids, wanted)
        return await context.run_blocking(planning.plan, mode, changelog_end)


class _Verdicts:
    """Whether two folds left the same audit records, by sums for each thousand offsets."""

    def __init__(self) -> None:
        self._sums = Counter[int]()
        self._doubled = set[int]()  # where a torn transaction left records, which were sent again
        self._last = (0, -1)

    def add(self, record: AuditRecord) -> None:
        """Take the next audit record of an event or a timer. Texts for people do not count."""
        block, place = record.source_offset // _BLOCK, (record.source_offset, record.source_n)
        if place <= self._last:
            self._doubled.add(block)
        self._last = max(self._last, place)
        facts = record.tenant_id, record.session_id, record.audit_seq, record.kind, record.transition
        self._sums[block] += hash(
            (*facts, record.event_type, record.reason_code, record.to_state, record.source_offset)
        )

    def find_other(self, other: "_Verdicts") -> int | None:
        """Return from which offset on the records differ; None if they seem to be the same."""
        blocks = (self._sums.keys() | other._sums.keys()) - self._doubled - other._doubled
        differing = [block for block in blocks if self._sums[block] != other._sums[block]]
        return min(differing) * _BLOCK if differing else None


class _AuditNotes(NamedTuple):
    """What a partition's audit trail says about a fold."""

    decisions: list[AuditRecord]  # in order
    failures: dict[int, str]  # of the judge, by the event's offset
    audited_beyond: int  # records of events from the position on, of no known transaction
    is_cut_short: bool  # whether the last transaction ended between the timers of the next record
    verdicts: _Verdicts


class _Planning:
    """Plans one rebuild. Blocks."""

    def __init__(
        self, settings: ProcessorSettings, job: Job, partition: int, topic_ids: TopicIds, wanted: Wanted
    ) -> None:
        self._settings, self._job, self._partition = settings, job, partition
        self._topic_ids, self._wanted = topic_ids, wanted
        self._state = job.new_state(partition)
        self._found = MemoryStore(job.row_codec)

    def plan(self, mode: RebuildMode, changelog_end: int) -> RebuildPlan:
        settings, codec = self._settings, self._job.row_codec
        unreadable = read_as_is(settings, self._state, self._found, codec, self._wanted, changelog_end)
        former = self._state.position
        events_id = former.events_topic_id or self._topic_ids.events
        progress = find_progress(settings, self._job.traces, self._partition, events_id)
        next_offset, batch_number = _find_end(former, progress)
        if mode == "refold":
            return self._plan_refold(former, progress, next_offset, batch_number, unreadable)
        if mode == "accept_rows":
            return self._plan_acceptance(former, progress, next_offset, batch_number, unreadable)
        return self._plan_topics(former, next_offset, batch_number, unreadable)

    def _refuse(self, why: str) -> RebuildRefused:
        return RebuildRefused(f"partition {self._partition} is not rebuilt: {why}")

    def _is_events_other(self, former: Position) -> bool:
        return is_other_topic(former.events_topic_id, self._topic_ids.events)

    def _probe(self, offset: int) -> LogProbe:
        return probe_log(self._settings, self._partition, offset)

    # Rows as they are.

    def _plan_acceptance(
        self,
        former: Position,
        progress: FoldProgress,
        next_offset: int,
        batch_number: int,
        unreadable: Sequence[bytes],
    ) -> RebuildPlan:
        position, leader_epoch = former, former.leader_epoch
        if (next_offset, batch_number) != (former.next_offset, former.batch_number):
            log, leader_epoch = self._probe(next_offset), None
            is_same = log.previous is not None and not self._is_events_other(former)
            stamp_ms = log.previous.timestamp_ms if log.previous is not None and is_same else 0
            if is_same and (begun_ms := _find_replaced(former, progress.last_batch, log)) is not None:
                stamp_ms = begun_ms  # the next opening finds that the log was cut
            position = Position(next_offset, max(former.clock_ms, stamp_ms), 0, batch_number, 0)._replace(
                rules=self._rules_of(former, progress.last_batch),
                announced=former.announced,
                clock_repairs=former.clock_repairs,
                decisions=former.decisions,
            )
        if self._is_events_other(former):
            leader_epoch = None  # the new log's epochs say nothing about it
        # The rows may lack what kept a session alive: as after an outage, no deadline fires soon.
        grace_ms = position.clock_ms + self._settings.outage_grace_ms
        position = position._replace(outage_grace_until_ms=max(position.outage_grace_until_ms, grace_ms))
        removed = sorted({*map(_base_key, unreadable), *self._find_torn()})
        return RebuildPlan(
            *("accept_rows", former, position, self._topic_ids, leader_epoch, self._found, _no_row),
            removed=removed,
            unreadable=frozenset(unreadable),
        )

    def _rules_of(self, former: Position, last: BatchRecord | None) -> RuleSet:
        """Return the rules by which a fold goes on. Raises `RebuildRefused` if they are unknown."""
        if last is None or last.rules == former.rules.version:
            return former.rules if former.batch_number else newest_known()
        if (known := known_rules().get(last.rules)) is None:
            raise self._refuse(f"its last batch was judged by rules {last.rules}, which this worker does not know")
        return known.rules

    def _find_torn(self) -> Iterator[bytes]:
        """Yield the keys of rows whose content is missing, or that cannot be decoded."""
        for key in list(self._found.rows):
            try:
                self._found.rows.peek(key)
            except Halted:
                yield key

    # Rows that are folded again.

    def _plan_refold(
        self,
        former: Position,
        progress: FoldProgress,
        next_offset: int,
        batch_number: int,
        unreadable: Sequence[bytes],
    ) -> RebuildPlan:
        if self._is_events_other(former):
            raise self._refuse(
                f"the topic {self._settings.topics.events} was made again, so it does not have the events of the "
                "former one. If all records were copied, use --accept-topics, else --accept-rows"
            )
        if self._settings.topics.audit not in self._job.traces:
            raise self._refuse("this role leaves no audit trail that names all decisions. Use --accept-rows")
        if former.log_truncated is not None:
            raise self._refuse(f"its log lost events that were folded ({former.log_truncated}). Use --accept-rows")
        notes = self._read_audit(next_offset, batch_number)
        if notes.is_cut_short:
            raise self._refuse(
                f"its last batch, {batch_number}, ended between the timers of offset {next_offset}, and a fold cannot "
                "begin there. Use --accept-rows"
            )
        skipped_to = [(one.gap_last or 0) + 1 for one in notes.decisions if one.event_type == "records_skipped"]
        next_offset = max([next_offset, *skipped_to])
        log = self._probe(next_offset)
        if log.start_offset > 0:
            raise self._refuse(
                f"its log begins at offset {log.start_offset}: the events before were deleted, and the rows cannot be "
                "folded without them. Use --accept-rows"
            )
        if log.end_offset < next_offset:
            raise self._refuse(
                f"its log ends at offset {log.end_offset}, but the events below {next_offset} were folded. Bring the "
                "replica back that has them, or use --accept-rows"
            )
        if former.next_offset == next_offset and (fault := log.find_truncation(self._partition, former)) is not None:
            raise self._refuse(f"{fault.detail}. Or use --accept-rows")
        if _find_replaced(former, progress.last_batch, log) is not None:
            raise self._refuse(
                f"offset {next_offset - 1} now has a record of a later leader, appended after the last batch was "
                "judged: the log lost events, too. Bring the replica back that has them, or use --accept-rows"
            )
        refold = _Refold(self._settings, self._job, self._partition, self._first_rules(former, progress, notes))
        refold.fold(notes, next_offset, former, self._wanted)
        if (other := refold.verdicts.find_other(notes.verdicts)) is not None:
            raise self._refuse(
                f"a fold of its log does not leave the records that {self._settings.topics.audit} has, from about "
                f"offset {other} on: its events were judged with other signing keys (SESSIONARY_SIGNING_KEYS) or "
                "settings (SESSIONARY_OUTAGE_MS, SESSIONARY_OUTAGE_GRACE_MS), or its log has other events now. Use "
                "the former ones, or --accept-rows"
            )
        added, changed, removed = _compare(self._found, refold.store, unreadable)
        epoch = None if log.previous is None else log.previous.leader_epoch
        position = refold.state.position._replace(
            next_offset=next_offset, batch_number=batch_number, previous_acknowledged_at=None
        )
        return RebuildPlan(
            *("refold", former, position, self._topic_ids, epoch, self._found, refold.store.rows.peek),
            *(added, changed, removed, notes.audited_beyond, frozenset(unreadable)),
        )

    def _first_rules(self, former: Position, progress: FoldProgress, notes: _AuditNotes) -> RuleSet:
        first = progress.first_batch
        if first is not None and first.number == 1:
            if (known := known_rules().get(first.rules)) is None:
                raise self._refuse(
                    f"its first events were judged by rules {first.rules}, which this worker does not know"
                )
            return known.rules
        if former.batch_number and not any(one.event_type == "rules_announced" for one in notes.decisions):
            return former.rules
        raise self._refuse(
            f"{self._settings.topics.batches} has its first batch no more, so it is not known by which rules its first "
            "events were judged. Use --accept-rows"
        )

    def _read_audit(self, next_offset: int, batch_number: int) -> _AuditNotes:
        """Read the partition's audit trail from its begin."""
        notes = _AuditNotes([], {}, 0, is_cut_short=False, verdicts=_Verdicts())
        for record in self._list_audit():
            is_of_fold = record.batch_number <= batch_number
            if record.kind == "decision" and is_of_fold:
                notes.decisions.append(record)
            elif record.kind in ("decision", "access"):
                continue
            elif record.source_offset >= next_offset:
                notes = notes._replace(
                    audited_beyond=notes.audited_beyond + 1, is_cut_short=notes.is_cut_short or is_of_fold
                )
            else:
                notes.verdicts.add(record)
                if record.reason_code == "internal_error" and record.kind == "rejection":
                    notes.failures[record.source_offset] = record.reason
        for record in notes.decisions:
            if record.event_type not in _REPEATABLE:
                raise self._refuse(
                    f"by a decision at offset {record.source_offset} ({record.event_type}), its rows do not follow "
                    "from the log alone. Use --accept-rows"
                )
        notes.decisions.sort(key=lambda record: (record.source_offset, record.source_n))
        return notes

    def _list_audit(self, *, whole: bool = True) -> Iterator[AuditRecord]:
        """Yield the audit trail. Raises `RebuildRefused` if it must be `whole`, and is not."""
        topic = self._settings.topics.audit
        for part in read_audit(self._settings, self._partition, lambda why: self._refuse(f"{why}. Use --accept-rows")):
            if whole and part.start_offset > 0:
                raise self._refuse(
                    f"{topic} begins at offset {part.start_offset}, so decisions may be missing there on which its "
                    "rows depend. Use --accept-rows"
                )
            _require_wanted(self._partition, self._wanted)
            yield from part.records

    # Topics that have the records of the former ones.

    def _plan_topics(
        self, former: Position, next_offset: int, batch_number: int, unreadable: Sequence[bytes]
    ) -> RebuildPlan:
        topics = self._settings.topics
        if unreadable or self._found.count_again() != (former.row_count, former.row_checksum):
            raise self._refuse(
                f"{topics.changelog} has not the rows that its last position counts, so it is no copy of the former "
                "changelog, or not a whole one. Copy it again, or use --accept-rows"
            )
        if (next_offset, batch_number) != (former.next_offset, former.batch_number):
            raise self._refuse(
                f"{topics.changelog} ends with batch {former.batch_number}, but {topics.batches} has batch "
                f"{batch_number}: the changelog is no whole copy. Copy it again"
            )
        log = self._probe(next_offset)
        if not log.start_offset <= next_offset <= log.end_offset:
            raise self._refuse(
                f"the events below offset {next_offset} are folded, but {topics.events} holds {log.start_offset} to "
                f"{log.end_offset}: its offsets are not those of the former topic"
            )
        if self._is_events_other(former):
            self._require_same_events(log, next_offset)
        epoch = None if log.previous is None else log.previous.leader_epoch
        if epoch is None and (fault := log.find_truncation(self._partition, former)) is not None:
            raise self._refuse(f"{topics.events} has other timestamps than the former topic. {fault.detail}")
        return RebuildPlan("accept_topics", former, former, self._topic_ids, epoch, self._found, _no_row)

    def _require_same_events(self, log: LogProbe, next_offset: int) -> None:
        """Raise `RebuildRefused` unless events are at the offsets that the rows name."""
        topic = self._settings.topics.events
        known = sorted(
            (ledger.offsets[0], key, ledger.producer_id, ledger.last_seq)
            for key in self._found.rows
            for ledger in getattr(self._found.rows.peek(key), "producers", ())  # of the rows that name their events
            if ledger.offsets and ledger.offsets[0] >= log.start_offset
        )
        known = known or self._list_judged(log.start_offset, next_offset)
        compared = sorted({*known[:_FIRST_COMPARED], *known[-_LAST_COMPARED:]})
        if not compared and next_offset:
            raise self._refuse(
                f"neither a live session nor {self._settings.topics.audit} names an event that {topic} still has, so "
                "nothing shows that its offsets are those of the former topic. Copy the audit trail too, or use "
                "--accept-rows"
            )
        newest = 0
        for offset, key, producer_id, last_seq in compared:
            found = self._find_event(offset, key)
            if found is None or found[0] != producer_id or found[1] > last_seq:
                raise self._refuse(
                    f"{topic} has another record at offset {offset} than the former topic, where the event was of "
                    f"producer {producer_id} and of the session under {key!r}. Its offsets must be the same: copy the "
                    "records so, or use --accept-rows"
                )
            newest += found[1] == last_seq
        if compared and not newest:
            raise self._refuse(
                f"{topic} has no event at the offset that it had in the former topic. Its offsets must be the same: "
                "copy the records so, or use --accept-rows"
            )

    def _list_judged(self, start_offset: int, next_offset: int) -> list[tuple[int, bytes, str, int]]:
        """Return the last events that changed a session, as far as the audit trail has them."""
        judged = deque[tuple[int, bytes, str, int]](maxlen=_LAST_COMPARED)
        for record in self._list_audit(whole=False) if self._settings.topics.audit in self._job.traces else ():
            offset, producer_id, seq = record.source_offset, record.producer_id, record.producer_seq
            if record.kind == "transition" and producer_id is not None and seq and start_offset <= offset < next_offset:
                key = SessionKey(record.tenant_id, record.session_id).encoded()
                judged.append((offset, key, producer_id, seq))
        return [*judged]

    def _find_event(self, offset: int, key: bytes) -> tuple[str, int] | None:
        """Return producer and number of the event at an offset, if its session has this key."""
        for record in read_records(self._settings, self._partition, offset, offset).records:
            if record.offset != offset or record.key != key:
                return None
            try:
                decoder = self._state.decoder.as_of(newest_known().version)
                event = _patiently(lambda: decoder.decode_event(record.value), self._wanted)  # noqa: B023 - called here
            except DecodeError:
                return None
            envelope = getattr(event, "envelope", None)
            return None if envelope is None else (envelope.producer_id, envelope.producer_seq)
        return None


class _Refold:
    """Folds a partition's log in memory; nothing is sent."""

    def __init__(self, settings: ProcessorSettings, job: Job, partition: int, rules: RuleSet) -> None:
        self._settings, self._job, self._partition = settings, job, partition
        self.store, self.state = MemoryStore(job.row_codec), job.new_state(partition)
        self.verdicts = _Verdicts()
        self._reported_s = time.monotonic()
        self.state.rows = self.store.rows
        self.state.load_position(Position(0, 0, 0, 0, 0, rules=rules))
        self.state.finish_loading([])

    def fold(self, notes: _AuditNotes, end_offset: int, former: Position, wanted: Wanted) -> None:
        """Fold all records below `end_offset`, with the decisions that were made meanwhile."""
        first = 0
        for decision in notes.decisions:
            self._fold_records(first, decision.source_offset, notes.failures, wanted)
            first = max(first, decision.source_offset)
            if decision.event_type == "records_skipped":
                first = (decision.gap_last or 0) + 1
                self._skip(decision, first)
            elif decision.event_type == "rules_announced":
                self._announce(decision, end_offset, former, wanted)
        self._fold_records(first, end_offset, notes.failures, wanted)

    def _fold_records(self, first: int, end: int, failures: Mapping[int, str], wanted: Wanted) -> None:
        for read in read_each(self._settings, self._partition, first, end - 1):
            _require_wanted(self._partition, wanted)
            self._report(read.next_offset)
            if read.is_past_unreadable:
                raise RebuildRefused(
                    f"partition {self._partition} is not rebuilt: a batch of its events cannot be read, before offset "
                    f"{read.next_offset}. Bring the replica back that has it intact, or use --accept-rows"
                )
            waiting = list(reversed(read.records))
            while waiting:
                batch = self.state.begin()
                while waiting and self._apply(batch, waiting[-1], failures, wanted):
                    waiting.pop()
                self._keep(batch)

    def _report(self, offset: int) -> None:
        """Log every half minute how far the fold is: it may take hours."""
        if time.monotonic() - self._reported_s < _REPORT_EACH_S:
            return
        self._reported_s = time.monotonic()
        _log.info(
            "partition %(partition)d: its events are folded again, up to offset %(offset)d",
            partition=self._partition,
            offset=offset,
        )

    def _apply(self, batch: UncommittedBatch, record: LogRecord, failures: Mapping[int, str], wanted: Wanted) -> bool:
        return _patiently(lambda: batch.apply(record, failures.get(record.offset)), wanted)

    def _keep(self, batch: UncommittedBatch) -> None:
        outcome = batch.finish()
        for _, record in outcome.records_on("audit"):
            if record.kind != "decision":
                self.verdicts.add(record)
        written = self._job.transaction(self._partition, outcome, 0, self.store.stored_row)
        self.state.merge(batch)
        self.store.save_rows(written.rows, SavedPosition(self.state.position, 0, 0.0))

    def _skip(self, decision: AuditRecord, next_offset: int) -> None:
        batch = self.state.begin()
        skip = SkippedOffsets(
            "records_skipped", next_offset, decision.appended_at // 1_000, decision.reason, decision.actor or ""
        )
        batch.skip_offsets(skip)
        self._keep(batch)

    def _announce(self, decision: AuditRecord, end_offset: int, former: Position, wanted: Wanted) -> None:
        """Announce rules as they were; a record of the log that begins them names them."""
        former_rules, announced = self.state.position.rules, former.announced
        rules = self._find_activation(decision, end_offset, former_rules, wanted)
        if rules is None and announced is not None and announced.from_offset == decision.source_offset:
            rules = announced.rules
        if rules is None:
            return  # they have not begun, and may be activated again
        batch = self.state.begin()
        batch.announce_rules(rules, decision.actor or "")
        self._keep(batch)

    def _find_activation(
        self, decision: AuditRecord, end_offset: int, former_rules: RuleSet, wanted: Wanted
    ) -> RuleSet | None:
        decoder = self.state.decoder.as_of(newest_known().version)
        for read in read_each(self._settings, self._partition, decision.source_offset, end_offset - 1):
            _require_wanted(self._partition, wanted)
            for record in read.records:
                if record.key is not None:
                    continue
                try:
                    value = decoder.decode_event(record.value)
                except (DecodeError, Unavailable):  # no record of ours: that one needs no registry
                    continue
                if isinstance(value, RulesActivation) and _announces(decision, value.rules, former_rules):
                    return value.rules
        return None


def _announces(decision: AuditRecord, rules: RuleSet, former_rules: RuleSet) -> bool:
    cause = OutputCause(decision.source_partition, decision.source_offset, decision.source_n, 0, 0)
    return rules_record(rules, former_rules, decision.actor or "", cause).reason == decision.reason


def _find_end(former: Position, progress: FoldProgress) -> tuple[int, int]:
    """Return up to which offset a partition was folded, and the number of its last batch."""
    last = progress.last_batch
    if last is not None and last.number > former.batch_number:
        folded = any((last.applied, last.duplicate, last.rejected, last.ticks, last.fenced_beats))
        # An accepted truncation rejects records below its position, which is its only offset.
        is_past = folded and last.rejected <= last.last_offset + 1 - last.first_offset
        return (last.last_offset + 1 if is_past else last.first_offset), last.number
    if former.batch_number:
        return former.next_offset, former.batch_number
    return progress.committed_offset, 0


def _find_replaced(former: Position, last: BatchRecord | None, log: LogProbe) -> int | None:
    """Return when the last batch was begun (ms) if another record is now at its last offset.

    What damaged the changelog, such as an unclean election, may have cut the events too. Then a
    later leader appended the record below the fold's end, after that batch.
    """
    if last is None or last.number <= former.batch_number or log.previous is None:
        return None
    (stamp_ms, epoch), known, begun_ms = log.previous, former.leader_epoch, last.started_at // 1_000 + _SKEW_MS
    is_later = known is not None and epoch is not None and epoch > known and stamp_ms > begun_ms
    return begun_ms if is_later else None


def _compare(
    found: MemoryStore, wanted: MemoryStore, unreadable: Sequence[bytes]
) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """Return the keys of the rows that are to be added, to be changed and to be removed."""
    before, after = dict(found.stored_rows()), dict(wanted.stored_rows())
    differing = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    added, changed, removed = list[bytes](), list[bytes](), list[bytes]()
    for key in sorted(set(map(_base_key, differing.union(unreadable)))):
        (removed if key not in after else changed if key in before else added).append(key)
    return added, changed, removed


def _base_key(key: bytes) -> bytes:
    """Return the key of the row to which a record of the changelog belongs."""
    return key.removesuffix(CONTENT_SUFFIX)


def _no_row(_key: bytes) -> None:
    return None


def _require_wanted(partition: int, wanted: Wanted) -> None:
    if not wanted():
        raise Lost(f"partition {partition}: no longer wanted")


def _patiently(call: Callable[[], _T], wanted: Wanted) -> _T:
    """Repeat a call while a schema registry does not answer. Raises `Lost` once unwanted."""
    while True:
        try:
            return call()
        except Unavailable as trouble:
            if not wanted():
                raise Lost("no longer wanted") from trouble
            time.sleep(min(trouble.retry_after_s, _PAUSE_S))
