"""Fuzzed records through the fold and every row builder, with what must hold for each of them.

No record may raise, change a neighbour's row, or leave an output that its topic would refuse.
"""

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, get_args

from sessionary.schemas.codec import Decoder
from sessionary.schemas.codec.record_sizes import batch_bytes
from sessionary.schemas.records import EndedToolCall, SessionState, StepState
from sessionary.schemas.topics import record_bytes_limits
from sessionary.schemas.types import RefusalReason
from sessionary.sinks.core.rows.audit import audit_row
from sessionary.sinks.core.rows.batches import batch_row
from sessionary.sinks.core.rows.dead_letters import dead_letter_row
from sessionary.sinks.core.rows.history import HISTORY_COLUMNS, history_row
from sessionary.sinks.core.rows.raw_record import RawRecord
from sessionary.sinks.core.rows.rejected import rejected_row
from sessionary.sinks.core.rows.shared import RowBuilder
from sessionary.sinks.errors import BadRow
from sessionary.sinks.runtime.dead_letter_producer import encode_letter
from sessionary.stream_processors.core.model import LogRecord
from sessionary.stream_processors.core.overlay import Overlay
from sessionary.stream_processors.core.session.effects import REFUSALS_KEPT
from sessionary.stream_processors.core.session.transitions import ACCEPTED, TRANSITIONS
from sessionary.stream_processors.families import processor_job
from sessionary.stream_processors.runtime.fetching.fetched_records import LazyRecord
from sessionary.stream_processors.settings import ProcessorSettings
from tests.core.oracle_rig import START_MS, position_under
from tests.core.record_fuzzer import PARTITIONS, FuzzedRecord, RecordFuzzer
from tests.support.event_factory import TICK
from tests.support.values import REASONS_OF_RULES_2

SETTINGS = ProcessorSettings(partitions=PARTITIONS)
LIMITS = {topic: record_bytes_limits()[field] for field, topic in SETTINGS.topics._asdict().items()}
BUILDERS: dict[str, RowBuilder] = {
    SETTINGS.topics.audit: audit_row,
    SETTINGS.topics.rejected: rejected_row,
    SETTINGS.topics.batches: batch_row,
}
_OTHER_BUILDERS = tuple(BUILDERS.values())
ACCEPTABLE = set().union(
    *ACCEPTED.values(), (transition.event_type for transition in TRANSITIONS if transition.by != "processor")
)
# `bad_row` is a sink's.
REASONS = set(get_args(RefusalReason)) - {"UNKNOWN", "bad_row"} - REASONS_OF_RULES_2
_ERROR, _EVENT_TYPE = HISTORY_COLUMNS.index("decode_error"), HISTORY_COLUMNS.index("event_type")
_MISSING = object()
_SESSION_ID_BYTES = 36
_CHILDREN = (type(None), StepState, EndedToolCall)  # these are never due: they vanish with their parent
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


class FuzzRun:
    """Folds fuzzed records in batches, writes their transactions, and builds the sinks' rows."""

    def __init__(self, seed: int, rules: int = 1) -> None:
        self._random, self._sizes = Random(seed), Random(seed)
        self._job = processor_job(SETTINGS)
        self._state = self._job.new_state(0)
        self._state.load_position(position_under(rules))
        self._state.finish_loading()
        self._rows = TracedRows(self._state.rows.get)
        self._fuzzer = RecordFuzzer(seed, self._rows_current)
        self._decoder = Decoder()
        self._offset, self._at_ms = 0, START_MS
        self._postponed: LogRecord | None = None
        self.records = self.decoded = 0
        self.seen: Counter[str] = Counter()
        self.applied: Counter[str] = Counter()
        self.refused: Counter[tuple[str, str]] = Counter()  # by event type and reason

    def _rows_current(self, key: bytes) -> Any:
        return self._rows.current(key)

    @property
    def offset(self) -> int:
        """The offset of the next record."""
        return self._offset

    def fold_records(self, records: int) -> None:
        """Fold so many records in batches of one to a hundred."""
        left = records
        while left > 0:
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
            assert all(batch.apply(record) for record in made)
        outcome = batch.finish()
        for topic, key, value, headers in self._job.transaction(0, outcome, START_MS * 1_000).records:
            assert batch_bytes(key, value) + (HEADER_BYTES if headers else 0) <= LIMITS[topic], topic
            if (build := BUILDERS.get(topic)) is not None:
                build(RawRecord(topic, 0, 0, self._at_ms, key, value), self._decoder)
        self._state.merge(batch)
        return len(made)

    def _begin_batch(self) -> Overlay:
        batch = self._state.begin()
        batch.rows = self._rows = TracedRows(self._state.rows.get)
        return batch

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

    def _judge(self, batch: Overlay, record: LogRecord) -> bool:
        """Apply a record and check what it changed; return False if the batch is full."""
        before, refused, applied = self._rows.current(record.key or b""), len(batch._refusals), batch._applied
        self._rows.changes.clear()
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
        elif len(batch._refusals) > refused:
            self.refused[self._event_type, batch._refusals[-1]] += 1
            if not was_due:
                check_refused(before, after)
        else:
            assert after is before or was_due
        return True

    def _build_rows(self, fuzzed: FuzzedRecord) -> None:
        topic = SETTINGS.topics.events
        raw = RawRecord(topic, 0, self._offset, self._at_ms, fuzzed.key, fuzzed.value, fuzzed.header_source)
        row = history_row(raw, self._decoder)
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


def check_refused(before: Any, after: Any) -> None:
    """Assert that a refusal left nothing in a row but its own trace."""
    if before is None or after is before:
        assert after is before
        return
    kept = {"audit_seq": before.audit_seq, "producers": before.producers}
    if isinstance(before, SessionState):
        kept |= {"refusals": before.refusals, "late_epoch": before.late_epoch, "forgotten": before.forgotten}
        assert len(after.refusals) <= REFUSALS_KEPT
    assert after._replace(**kept) == before


__all__ = ["ACCEPTABLE", "LIMITS", "REASONS", "SETTINGS", "FuzzRun", "TracedRows", "check_refused"]
