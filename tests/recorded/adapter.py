"""The one place where the recorded log touches the fold: how it is fed, and what it writes."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sessionary.schemas.codec import Decoder, encode_position, encode_record, record_headers
from sessionary.schemas.errors import DecodeError
from sessionary.schemas.records import AuditRecord, BatchAcknowledged, BatchRecord, Position, RejectedEvent
from sessionary.stream_processors.core.committed import PartitionSettings
from sessionary.stream_processors.core.model import POSITION_KEY, LogRecord, Outcome
from sessionary.stream_processors.core.overlay import Overlay
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.core.session.machine import GRAVESTONE_MS, SessionMachine
from sessionary.stream_processors.families import all_machines
from sessionary.stream_processors.runtime.job import Job, machines_job
from sessionary.stream_processors.settings import ProcessorSettings
from tests.recorded.log_format import LoggedEvent, Output, RecordedSettings

_DECODER = Decoder()
_UNBOUNDED = 1 << 62
_AUDIT_HEADERS, _HEADER_BYTES = record_headers(AuditRecord), 10


class Border(NamedTuple):
    """Where a batch ended: the first offset not folded yet, and how many of its outcomes are out.

    `previous_acknowledged_at` (µs) is the processor's, not the fold's: it is written as recorded.
    """

    next_offset: int
    outcome_n: int
    previous_acknowledged_at: int | None


class Folded(NamedTuple):
    """What one transaction writes, in order: the topic's short name, and the record."""

    outputs: list[tuple[str, Output]]


def without_sentence(output: Output) -> Output:
    """Return an audit record without the sentence for people, which may change; else the output."""
    if output.value is None or output.value[:_HEADER_BYTES] not in _AUDIT_HEADERS:
        return output
    try:
        record = _DECODER.decode_record(output.value)
    except DecodeError:
        return output
    assert isinstance(record, AuditRecord)
    return output._replace(value=encode_record(record._replace(reason="")))


def settings_in_force(
    release: str, topic_prefix: str, partitions: int, hole_ms: int, quiet_ms: int
) -> RecordedSettings:
    """Return what a processor of today folds with."""
    bounds = PartitionSettings("", partitions)
    return RecordedSettings(
        release,
        topic_prefix,
        partitions,
        hole_ms,
        quiet_ms,
        bounds.records_max,
        bounds.bytes_max,
        bounds.timers_max,
        GRAVESTONE_MS,
    )


def read_borders(changelog: Sequence[Output | bytes]) -> list[Border]:
    """Return where the batches of a partition ended: its changelog has a position for each."""
    positions = [
        _DECODER.decode_record(output.value)
        for output in changelog
        if isinstance(output, Output) and output.key == POSITION_KEY
    ]
    return [
        Border(position.next_offset, position.outcome_n, position.previous_acknowledged_at)
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
    n, stored = 0, dict[bytes, bytes | None]()
    for border in borders:
        overlay = state.begin()
        while n < len(records) and records[n].offset < border.next_offset:
            assert overlay.apply(records[n]), f"batch full at offset {records[n].offset}, before {border}"
            n += 1
        if border.outcome_n > 0:
            assert not overlay.apply(records[n]), f"{border} lies within a record's timers, but no batch ends there"
        yield _folded(state, job, overlay, border.previous_acknowledged_at, stored)


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
    by the number of the batch that has the record's place in the log, by `borders`.
    """
    state, job = _opened(settings, partition, records_max, timers_max)
    ends = [(border.next_offset, border.outcome_n) for border in borders]
    records = _records(events)
    n, stored = 0, dict[bytes, bytes | None]()
    while n < len(records):
        overlay = state.begin()
        while n < len(records) and overlay.apply(records[n]):
            n += 1
        outcome = overlay.finish()
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
        yield Folded(_written(job, partition, outcome._replace(emitted=emitted, rows={}), stored))
        state.merge(overlay)


def _opened(
    settings: RecordedSettings, partition: int, records_max: int, timers_max: int
) -> tuple[PartitionState, Job]:
    processor = ProcessorSettings(
        topic_prefix=settings.topic_prefix,
        partitions=settings.partitions,
        hole_ms=settings.hole_ms,
        quiet_ms=settings.quiet_ms,
        instance="recorded",
    )
    machines = SessionMachine(gravestone_ms=settings.gravestone_ms), *all_machines()[1:]
    bounds = PartitionSettings(
        processor.topics.events,
        settings.partitions,
        settings.hole_ms,
        settings.quiet_ms,
        records_max,
        _UNBOUNDED,
        timers_max,
        _UNBOUNDED,
    )
    state = PartitionState(partition, bounds, _DECODER, machines)
    state.finish_loading()
    return state, machines_job(processor, machines)


def _records(events: Sequence[LoggedEvent]) -> list[LogRecord]:
    return [LogRecord(event.offset, event.timestamp_ms, event.key, event.value, event.headers) for event in events]


def _folded(
    state: PartitionState,
    job: Job,
    overlay: Overlay,
    previous_acknowledged_at: int | None,
    stored: dict[bytes, bytes | None],
) -> Folded:
    outcome = overlay.finish(previous_acknowledged_at)
    written = _written(job, state.partition, outcome, stored)
    state.merge(overlay)
    return Folded([*written, ("changelog", Output(POSITION_KEY, encode_position(outcome.position)))])


def _written(job: Job, partition: int, outcome: Outcome, stored: dict[bytes, bytes | None]) -> list[tuple[str, Output]]:
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
    """Return what the fold says in a record of `batches`: all but its start and instance."""
    record = _DECODER.decode_record(output.value)
    assert isinstance(record, BatchRecord)
    counts = record._asdict()
    for name in ("started_at", "previous_acknowledged_at", "instance"):
        del counts[name]
    return counts


def transition_of(audit: Output) -> str | None:
    """Return the transition (T01 to T14) that an audit record reports, None for other kinds."""
    record = _DECODER.decode_record(audit.value)
    assert isinstance(record, AuditRecord)
    return record.transition


def reason_of(rejected: Output) -> str:
    """Return why an event was refused."""
    record = _DECODER.decode_record(rejected.value)
    assert isinstance(record, RejectedEvent)
    return record.reason


__all__ = [
    "Border",
    "Folded",
    "batch_counts",
    "fold_at_borders",
    "fold_in_cuts",
    "read_borders",
    "reason_of",
    "settings_in_force",
    "transition_of",
    "without_acknowledgements",
    "without_sentence",
]
