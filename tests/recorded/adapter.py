"""The one place where the recorded log touches the fold: how it is fed, and what it writes."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sessionary.schemas.codec import Decoder, encode_position, encode_record, record_headers
from sessionary.schemas.errors import DecodeError
from sessionary.schemas.headers import TRANSACTION, find_traceparent
from sessionary.schemas.records import AuditRecord, BatchAcknowledged, BatchRecord, Position, RejectedEvent
from sessionary.stream_processors.core.committed import PartitionSettings
from sessionary.stream_processors.core.families import CHILDREN
from sessionary.stream_processors.core.model import POSITION_KEY, BatchResult, LogRecord
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.core.session.judge import SessionJudge
from sessionary.stream_processors.core.session.rows import TOMBSTONE_MS
from sessionary.stream_processors.core.uncommitted_batch import UncommittedBatch
from sessionary.stream_processors.runtime.job import Job, processor_job
from sessionary.stream_processors.settings import ProcessorSettings
from tests.auditor.signatures import SECRETS
from tests.recorded.log_format import LoggedEvent, Output, RecordedSettings

_DECODER = Decoder()
_UNBOUNDED = 1 << 62
_AUDIT_HEADERS, _HEADER_BYTES = record_headers(AuditRecord), 10


class Border(NamedTuple):
    """Where a batch ended: the first offset not folded yet, and how many of its outcomes are out.

    `previous_acknowledged_at` (µs) is the processor's, not the fold's: it is written as recorded.
    """

    next_offset: int
    outputs_written: int
    previous_acknowledged_at: int | None


class Folded(NamedTuple):
    """What one transaction writes, in order: the topic's short name, and the record."""

    outputs: list[tuple[str, Output]]


def comparable(output: Output) -> Output:
    """Return an output without what the fold does not decide, or may say in other words.

    An audit record's sentence for people may change. A position's leader epoch, the ids of its
    topics, the number and checksum of the rows, and the header that names an output's transaction
    are added by the writer of the transaction.
    """
    output = output._replace(headers=tuple(pair for pair in output.headers if pair[0] != TRANSACTION))
    if output.key == POSITION_KEY:
        position = _DECODER.decode_record(output.value)
        if not isinstance(position, Position):
            return output  # a rejected record, whose key is a sender's
        plain = position._replace(
            leader_epoch=None, row_count=None, row_checksum=None, events_topic_id=None, changelog_topic_id=None
        )
        return output._replace(value=encode_position(plain))
    if output.value is None or output.value[:_HEADER_BYTES] not in _AUDIT_HEADERS:
        return output
    try:
        record = _DECODER.decode_record(output.value)
    except DecodeError:
        return output
    assert isinstance(record, AuditRecord)
    return output._replace(value=encode_record(record._replace(reason="")))


def is_access(output: Output | bytes) -> bool:
    """Return whether an audit record says what the control API was asked for: no log has that."""
    if not isinstance(output, Output):
        return False  # a digest, of a record about a session
    record = _DECODER.decode_record(output.value)
    return isinstance(record, AuditRecord) and record.kind == "access"


def settings_in_force(
    release: str, topic_prefix: str, partitions: int, outage_ms: int, outage_grace_ms: int
) -> RecordedSettings:
    """Return what a processor of today folds with."""
    bounds = PartitionSettings("", partitions)
    return RecordedSettings(
        release,
        topic_prefix,
        partitions,
        outage_ms,
        outage_grace_ms,
        bounds.records_max,
        bounds.bytes_max,
        bounds.timers_max,
        TOMBSTONE_MS,
    )


def read_borders(changelog: Sequence[Output | bytes]) -> list[Border]:
    """Return where the batches of a partition ended: its changelog has a position for each."""
    positions = [
        _DECODER.decode_record(output.value)
        for output in changelog
        if isinstance(output, Output) and output.key == POSITION_KEY
    ]
    return [
        Border(position.next_offset, position.outputs_written, position.previous_acknowledged_at)
        for position in positions
        if isinstance(position, Position)
    ]


def fold_at_borders(
    settings: RecordedSettings, partition: int, events: Sequence[LoggedEvent], borders: Sequence[Border]
) -> Iterator[Folded]:
    """Fold a partition in exactly the batches that `borders` end."""
    # What closed a batch then is in the borders; only a border within a record's timers is the
    # fold's own.
    state, job = _opened(settings, partition, len(events) + 1, settings.timers_max)
    records = _records(events)
    n, stored, traces = 0, dict[bytes, bytes | None](), _traces(events)
    for border in borders:
        uncommitted = state.begin()
        while n < len(records) and records[n].offset < border.next_offset:
            assert uncommitted.apply(records[n]), f"batch full at offset {records[n].offset}, before {border}"
            n += 1
        if border.outputs_written > 0:
            assert not uncommitted.apply(records[n]), f"{border} lies within a record's timers, but no batch ends there"
        outcome = uncommitted.finish(border.previous_acknowledged_at)._replace(traceparents=traces)
        yield _folded(state, job, uncommitted, outcome, stored)


def fold_in_cuts(
    settings: RecordedSettings,
    partition: int,
    events: Sequence[LoggedEvent],
    borders: Sequence[Border],
    records_max: int,
    timers_max: int,
) -> Iterator[Folded]:
    """Fold a partition in batches of at most so many records and timers; rows are left out.

    The batch number is the one thing in an audit record that depends on the cuts: it is replaced
    by the number of the batch that has the record's position in the log, by `borders`.
    """
    state, job = _opened(settings, partition, records_max, timers_max)
    ends = [(border.next_offset, border.outputs_written) for border in borders]
    records = _records(events)
    n, stored, traces = 0, dict[bytes, bytes | None](), _traces(events)
    while n < len(records):
        uncommitted = state.begin()
        while n < len(records) and uncommitted.apply(records[n]):
            n += 1
        outcome = uncommitted.finish()
        emitted = [
            item._replace(
                record=item.record._replace(
                    batch_number=bisect_right(ends, (item.record.source_offset, item.record.source_n)) + 1
                )
            )
            if item.stream == "audit"
            else item
            for item in outcome.emitted
        ]
        yield Folded(_written(job, partition, outcome._replace(emitted=emitted, rows={}, traceparents=traces), stored))
        state.merge(uncommitted)


def _opened(
    settings: RecordedSettings, partition: int, records_max: int, timers_max: int
) -> tuple[PartitionState, Job]:
    processor = ProcessorSettings(
        topic_prefix=settings.topic_prefix,
        partitions=settings.partitions,
        outage_ms=settings.outage_ms,
        outage_grace_ms=settings.outage_grace_ms,
        instance="recorded",
        signing_keys=SECRETS,
    )
    judge = SessionJudge(CHILDREN, tombstone_ms=settings.tombstone_ms)
    bounds = PartitionSettings(
        processor.topics.events,
        settings.partitions,
        settings.outage_ms,
        settings.outage_grace_ms,
        records_max,
        _UNBOUNDED,
        timers_max,
        _UNBOUNDED,
        keys=processor.keys,
    )
    state = PartitionState(partition, bounds, _DECODER, judge)
    state.finish_loading()
    return state, processor_job(processor, judge)


def _records(events: Sequence[LoggedEvent]) -> list[LogRecord]:
    return [LogRecord(event.offset, event.timestamp_ms, event.key, event.value, event.headers) for event in events]


def _traces(events: Sequence[LoggedEvent]) -> dict[int, bytes]:
    """Return the trace contexts of events by offset: the writer adds them to its reports."""
    found = {event.offset: find_traceparent(event.headers) for event in events}
    return {offset: context for offset, context in found.items() if context is not None}


def _folded(
    state: PartitionState,
    job: Job,
    uncommitted: UncommittedBatch,
    outcome: BatchResult,
    stored: dict[bytes, bytes | None],
) -> Folded:
    written = _written(job, state.partition, outcome, stored)
    state.merge(uncommitted)
    return Folded([*written, ("changelog", Output(POSITION_KEY, encode_position(outcome.position)))])


def _written(
    job: Job, partition: int, outcome: BatchResult, stored: dict[bytes, bytes | None]
) -> list[tuple[str, Output]]:
    transaction = job.transaction(partition, outcome, 0, stored.get)
    stored.update(transaction.rows)
    return [
        (topic.rpartition(".")[2], Output(key, value, _headers(headers)))
        for topic, key, value, headers in transaction.records
    ]


def _headers(headers: Sequence[tuple[str, bytes | str | None]] | None) -> tuple[tuple[str, bytes], ...]:
    return tuple((name, value if isinstance(value, bytes) else (value or "").encode()) for name, value in headers or ())


def without_acknowledgements(batches: Iterable[tuple[int, Output]]) -> Iterator[tuple[int, Output]]:
    """Yield what transactions left on `batches`; acknowledgements are written between them.

    A record comes with its partition.
    """
    for partition, output in batches:
        if not isinstance(_DECODER.decode_record(output.value), BatchAcknowledged):
            yield partition, output


def batch_counts(output: Output) -> Mapping[str, Any]:
    """Return what the fold says in a record of `batches`.

    Its start and instance are the writer's; `audited` counts requests of the control API too.
    """
    record = _DECODER.decode_record(output.value)
    assert isinstance(record, BatchRecord)
    counts = record._asdict()
    for name in ("started_at", "previous_acknowledged_at", "instance", "audited"):
        del counts[name]
    return counts


def transition_of(audit: Output) -> str | None:
    """Return the transition (T01 to T14) that an audit record reports, None for other kinds."""
    record = _DECODER.decode_record(audit.value)
    assert isinstance(record, AuditRecord)
    return record.transition


def reason_of(rejected: Output) -> str:
    """Return why an event was rejected."""
    record = _DECODER.decode_record(rejected.value)
    assert isinstance(record, RejectedEvent)
    return record.reason
