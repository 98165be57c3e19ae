"""Fuzzed records through the fold and every row builder, with what must hold for each of them.

No record may raise, change a neighbour's row, or leave an output that its topic would refuse.
Sessions are full from the start, an operator skips records now and then, and a machine fails on
some on purpose: no other record may end as an `internal_error`.
"""

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, get_args

from sessionary.schemas.codec import Decoder
from sessionary.schemas.codec.record_sizes import batch_bytes
from sessionary.schemas.records import (
    AgentState,
    ArtifactState,
    CheckpointState,
    EndedToolCall,
    MessageState,
    SessionState,
    StepState,
    TombstoneChunk,
)
from sessionary.schemas.topics import record_bytes_limits
from sessionary.schemas.types import QuotaName, RejectionReason
from sessionary.sinks.core.rows.history import HISTORY_COLUMNS, history_row
from sessionary.sinks.core.rows.outputs import audit_row, batch_row, dead_letter_row, rejected_row
from sessionary.sinks.core.rows.shared import RawRecord, RowBuilder
from sessionary.sinks.errors import BadRow
from sessionary.sinks.runtime.block_writer import encode_letter
from sessionary.stream_processors.core.families import CHILDREN
from sessionary.stream_processors.core.family import SessionArrival
from sessionary.stream_processors.core.model import BatchResult, Decision, LogRecord, RowLookup, SkippedOffsets
from sessionary.stream_processors.core.rows import Remains
from sessionary.stream_processors.core.session.effects import REJECTIONS_KEPT, SessionRow
from sessionary.stream_processors.core.session.judge import SessionJudge
from sessionary.stream_processors.core.session.migration import MIGRATION_EVENTS
from sessionary.stream_processors.core.session.transitions import ACCEPTED, TRANSITIONS
from sessionary.stream_processors.core.tombstones import ChunkSizes, count_hashes, is_chunk_key
from sessionary.stream_processors.core.uncommitted_batch import UncommittedBatch
from sessionary.stream_processors.runtime.job import processor_job
from sessionary.stream_processors.runtime.pending_records import LazyRecord
from sessionary.stream_processors.settings import ProcessorSettings
from sessionary.stream_processors.store.packed_rows import CONTENT_SUFFIX
from tests.auditor.signatures import SECRETS
from tests.core.oracle_rig import START_MS
from tests.core.record_fuzzer import PARTITIONS, FuzzedRecord, RecordFuzzer
from tests.fuzz.column_check import ColumnCheck
from tests.fuzz.full_sessions import full_sessions
from tests.fuzz.story_fuzzer import StoryFuzzer
from tests.support.event_factory import TICK

SETTINGS = ProcessorSettings(partitions=PARTITIONS, signing_keys=SECRETS)
LIMITS = {topic: record_bytes_limits()[field] for field, topic in SETTINGS.topics._asdict().items()}
BUILDERS: dict[str, RowBuilder] = {
    SETTINGS.topics.audit: audit_row,
    SETTINGS.topics.rejected: rejected_row,
    SETTINGS.topics.batches: batch_row,
}
_OTHER_BUILDERS = tuple(BUILDERS.values())
ACCEPTABLE = set().union(
    *ACCEPTED.values(),
    (transition.event_type for transition in TRANSITIONS if transition.by != "processor"),
    MIGRATION_EVENTS - {"session_migration_completed"},
)
REASONS = frozenset(get_args(RejectionReason)) - {"UNKNOWN", "bad_row"}  # `bad_row` is a sink's
# What else a run must reach.
GRAVES_PACKED, CHUNKS_MERGED, CONTENT_APART = "tombstone packed", "chunks merged", "content kept apart"
GAP_FILLED, OUT_OF_BOUNDS = "gap filled by a replay", "value out of its bounds"
FENCED_BEAT = "heartbeat of a fenced client only counted"
# What the quotas are notified of runs and of sessions.
QUOTA_MARKS = frozenset(
    f"{quota}: {step}" for quota in get_args(QuotaName)[1:] for step in ("requested", "taken", "released", "used")
)
VERDICT = "quota_verdict"
MARKS = frozenset({GRAVES_PACKED, CHUNKS_MERGED, CONTENT_APART, GAP_FILLED, OUT_OF_BOUNDS, FENCED_BEAT}) | QUOTA_MARKS
_BOUND_SENTENCES = (" characters, more than ", "it must be from 0 to ", "it must be at most ", "not a finite number")
_CHUNK_SIZES = ChunkSizes(chunk_keys=3, chunks_merged=3)  # so that few tombstones are packed, and few chunks merged
_ERROR, _EVENT_TYPE = HISTORY_COLUMNS.index("decode_error"), HISTORY_COLUMNS.index("event_type")
_MISSING = object()
_SESSION_ID_BYTES = 36
_CHILDREN = (
    type(None),
    StepState,
    EndedToolCall,
    ArtifactState,
    MessageState,
    AgentState,
    CheckpointState,
)  # these are never due: they vanish with their parent
HEADER_BYTES = 32  # more than a row's deadline takes as a header


class TracedRows(dict[bytes, Any]):
    """The rows of a batch; `changes` are the keys that were set, with their former rows."""

    def __init__(self, committed: Callable[[bytes], Any]) -> None:
        super().__init__()
        self._committed = committed
        self.changes: list[tuple[bytes, Any]] = []

    def __setitem__(self, key: bytes, row: Any) -> None:
        self.changes.append((key, self.current(key)))
        super().__setitem__(key, row)

    def current(self, key: bytes) -> Any:
        found = self.get(key, _MISSING)
        return self._committed(key) if found is _MISSING else found


class FailingJudge(SessionJudge):
    """Fails while it is asked to, as a fault of the product would let it."""

    fails = False

    def decide(self, row: SessionRow | Remains | None, arrival: SessionArrival, rows: RowLookup) -> Decision:
        """Judge a record, or fail."""
        if self.fails:
            raise ZeroDivisionError("a fault in the judge")
        return super().decide(row, arrival, rows)


class FuzzRun:
    """Folds fuzzed records in batches, writes their transactions, and builds the sinks' rows."""

    skipped_share = 0.02  # of the batches
    failed_share = 0.001  # of the records

    def __init__(self, seed: int) -> None:
        self._random, self._sizes = Random(seed), Random(seed)
        self._failing = FailingJudge(CHILDREN)
        self._job = processor_job(SETTINGS, self._failing)
        self._state = self._job.new_state(0)
        self._state.settings = self._state.settings._replace(chunk_sizes=_CHUNK_SIZES)
        self._fuzzer = self._load_state(seed)
        self._rows = TracedRows(self._state.rows.get)
        self._decoder = Decoder()
        self._offset = self._first_offset = self._state.position.next_offset
        self._at_ms = START_MS
        self._postponed: LogRecord | None = None
        self._failed: set[int] = set()  # the offsets of a batch on which the machine failed
        self.columns = ColumnCheck()
        self.decoded = 0
        self.seen: Counter[str] = Counter()
        self.applied: Counter[str] = Counter()
        self.rejected: Counter[tuple[str, str]] = Counter()  # by event type and reason
        self.marks: Counter[str] = Counter()

    def _load_state(self, seed: int) -> RecordFuzzer:
        """Load the rows that the run begins with; return what makes its records."""
        full = full_sessions()
        for key, row in full.rows.items():
            self._state.load(key, row)
        rules = full.position.rules._replace(quotas=True, session_quotas=True, token_quotas=True)
        self._state.load_position(full.position._replace(rules=rules))
        self._state.finish_loading()
        return StoryFuzzer(seed, self._rows_current, self._state.is_packed, full)

    def _rows_current(self, key: bytes) -> Any:
        return self._rows.current(key)

    @property
    def offset(self) -> int:
        """The offset of the next record."""
        return self._offset

    @property
    def records(self) -> int:
        """How many records were made; those that fill sessions are none of them."""
        return self._offset - self._first_offset

    def fold_records(self, records: int) -> None:
        """Fold so many records in batches of one to a hundred."""
        left = records
        while left > 0:
            if self._postponed is None and self._sizes.random() < self.skipped_share:
                left -= self._skip_records(min(left, self._sizes.randint(1, 3)))
            else:
                left -= self.fold_batch(min(left, self._sizes.choice((1, 5, 40, 100))))

    def fold_batch(self, records_max: int) -> int:
        """Fold records as a batch; return how many. Every tenth batch is void and folded again."""
        batch = self._begin_batch()
        made: list[LogRecord] = []
        while len(made) < records_max:
            record = self._postponed or self._next_record()
            self._postponed = None if self._judge(batch, record) else record
            if self._postponed is not None:
                break  # the batch has its bytes
            made.append(record)
        if self._random.random() < 0.1:
            batch = self._begin_batch()
            failures = ("it failed before" if record.offset in self._failed else None for record in made)
            assert all(map(batch.apply, made, failures))
        self._failed.clear()
        self._commit(batch)
        return len(made)

    def _skip_records(self, records: int) -> int:
        """Leave records unfolded, as an operator does; return how many. No row may change."""
        skipped: list[LogRecord] = []
        for _ in range(records):
            skipped.append(self._next_record())
            self.rejected[self._event_type, "skipped"] += 1
        batch = self._begin_batch()
        batch.skip_offsets(SkippedOffsets("records_skipped", self._offset, self._at_ms, "poison", "ops", skipped))
        assert not batch.rows
        self._commit(batch)
        return records

    def _begin_batch(self) -> UncommittedBatch:
        batch = self._state.begin()
        batch.rows = self._rows = TracedRows(self._state.rows.get)
        return batch

    def _commit(self, batch: UncommittedBatch) -> None:
        """Write a batch's transaction, build the sinks' rows of it, and merge it."""
        outcome = batch.finish()
        transaction = self._job.transaction(0, outcome, START_MS * 1_000)
        for topic, key, value, _ in transaction.elsewhere:
            assert batch_bytes(key, value) <= LIMITS[topic], topic
        for topic, key, value, headers in transaction.records:
            assert batch_bytes(key, value) + (HEADER_BYTES if headers else 0) <= LIMITS[topic], topic
            if (build := BUILDERS.get(topic)) is not None:
                build(RawRecord(topic, 0, 0, self._at_ms, key, value), self._decoder)
            elif topic == SETTINGS.topics.changelog and key is not None and value is not None:
                self.marks[CONTENT_APART] += key.endswith(CONTENT_SUFFIX)
        self._count_marks(outcome)
        self._state.merge(batch)

    def _count_marks(self, outcome: BatchResult) -> None:
        self.marks[FENCED_BEAT] += outcome.counts.fenced_beats
        for key, row in outcome.rows.items():
            if is_chunk_key(key) and isinstance(row, TombstoneChunk):
                packed = count_hashes(row.key_hashes)
                self.marks[GRAVES_PACKED] += packed
                self.marks[CHUNKS_MERGED] += packed > 2 * _CHUNK_SIZES.chunk_keys
        for stream, _, record in outcome.emitted:
            if stream == "quotas":
                self.marks[f"{record.quota}: {record.step}"] += 1
            elif stream == "audit":
                self.marks[GAP_FILLED] += record.kind == "gap_filled"
            elif stream == "rejected" and record.reason == "invalid_value":
                self.marks[OUT_OF_BOUNDS] += any(map(record.detail.__contains__, _BOUND_SENTENCES))

    def _next_record(self) -> LogRecord:
        fuzzed = self._fuzzer.next_record()
        self._at_ms += fuzzed.later_ms
        fields: Any = (self._offset, self._at_ms, fuzzed.key, fuzzed.value, fuzzed.header_source)
        self._build_rows(fuzzed)
        self._offset += 1
        return tuple.__new__(LazyRecord, fields)

    def _was_due(self, key: bytes) -> bool:
        """Return whether a row was due already, or another one of its session."""
        former = (row for other, row in self._rows.changes if _session_of(other) == _session_of(key))
        return any(type(row) not in _CHILDREN and self._state.due_ms(row) <= self._at_ms for row in former)

    def _judge(self, batch: UncommittedBatch, record: LogRecord) -> bool:
        """Apply a record and check what it changed; return False if the batch is full."""
        before, rejected, applied = self._rows.current(record.key or b""), len(batch._rejections), batch._applied
        self._rows.changes.clear()
        self._failing.fails = self._random.random() < self.failed_share
        if not batch.apply(record):
            return False
        is_tick = record.key is None and record.value == TICK
        for key, _ in self._rows.changes if not is_tick else ():
            # No other row changes, but those of the session, and what was due already.
            is_own = record.key is not None and _session_of(key) == record.key
            assert is_own or self._was_due(key), (record.offset, key)
        after = self._rows.current(record.key or b"")
        was_due = before is not None and self._state.due_ms(before) <= self._at_ms  # it may have fired first
        if batch._applied > applied:
            self.applied[self._event_type] += 1
        elif len(batch._rejections) > rejected:
            reason = batch._rejections[-1]
            self.rejected[self._event_type, reason] += 1
            assert (reason == "internal_error") == self._failing.fails, record.offset
            self._failed.update([record.offset] if self._failing.fails else ())
            if not was_due:
                check_rejected(before, after)
        else:
            assert after is before or was_due or self._event_type == VERDICT
        return True

    def _build_rows(self, fuzzed: FuzzedRecord) -> None:
        topic = SETTINGS.topics.events
        raw = RawRecord(topic, 0, self._offset, self._at_ms, fuzzed.key, fuzzed.value, fuzzed.header_source)
        row = history_row(raw, self._decoder)
        self.columns.add_row(raw, row)
        self._event_type: str = row[_EVENT_TYPE]
        if not row[_ERROR]:
            self.decoded += 1
            self.seen[self._event_type] += 1
        build = _OTHER_BUILDERS[self._offset % len(_OTHER_BUILDERS)]  # as if it were on another sink's topic
        try:
            build(raw, self._decoder)
        except BadRow as error:
            dead_letter_row("audit", raw, error.detail)
            if self._offset % 20 < len(_OTHER_BUILDERS):
                key, value = encode_letter(raw, error.detail)
                assert batch_bytes(key, value) <= LIMITS[SETTINGS.topics.sink_rejected]


def _session_of(key: bytes) -> bytes:
    """Return the key of the session that a row is of: itself, a run, a step or a call."""
    tenant, colon, rest = key.partition(b":")
    return tenant + colon + rest[:_SESSION_ID_BYTES]


def check_rejected(before: Any, after: Any) -> None:
    """Assert that a rejection left nothing in a row but its own trace."""
    if before is None or after is before:
        assert after is before
        return
    kept: dict[str, Any] = {"audit_seq": before.audit_seq, "producers": before.producers}
    if isinstance(before, SessionState):
        kept |= {"rejections": before.rejections, "late_epoch": before.late_epoch, "forgotten": before.forgotten}
        kept |= {"fenced_beats": before.fenced_beats}
        assert len(after.rejections) <= REJECTIONS_KEPT
        is_kept = after.rejections != before.rejections  # a heartbeat's is not
        if (
            before.migration is not None and is_kept and after.rejections[-1].reason == "migration_moved"
        ):  # it is counted
            counted = before.migration._replace(mismatches=before.migration.mismatches + 1)
            assert after.migration == counted
            kept["migration"] = before.migration
    assert after._replace(**kept) == before
