"""A worker's job: the fold of a partition, the form of its rows, the writes of a transaction.

The loop (`partition_owner.py`) and the transaction (`transaction.py`) are the same for every job.
The job of a processor is `processor_job`. A job is made once per worker and called without a lock.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from sessionary.schemas.codec import encode_record
from sessionary.schemas.codec.from_settings import decoder_for
from sessionary.schemas.codec.record_sizes import encode_to_fit
from sessionary.schemas.fast_replace import speed_up
from sessionary.schemas.headers import TRACEPARENT, transaction_header
from sessionary.schemas.records import BatchAcknowledged, BatchRecord, Position
from sessionary.schemas.rules import rules_to_write
from sessionary.schemas.topics import TopicNames, bytes_limits
from sessionary.stream_processors.core.committed import PartitionSettings
from sessionary.stream_processors.core.families import SESSION_JUDGE
from sessionary.stream_processors.core.judge import Judge
from sessionary.stream_processors.core.model import BatchResult, Emitted
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.core.trail import event_offset
from sessionary.stream_processors.metrics import MetricName, ReadGauge
from sessionary.stream_processors.settings import ProcessorSettings
from sessionary.stream_processors.store.packed_rows import (
    DUE_HEADER,
    FamilyCodec,
    PackedRow,
    RowCodec,
    StoredLookup,
    nothing_stored,
)

Headers = list[tuple[str, bytes | str | None]]
_OVERHEAD_BYTES_MAX = 256  # of a record with a trace context, besides its key and value
_TRACED: Final = frozenset({"audit", "rejected"})
_NAME_BYTES_MAX: Final = 64  # of the header that names the transaction


class Produced(NamedTuple):
    """One record of a transaction."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers | None = None


# The same as a plain tuple, which is made and taken apart in half the time.
PlainProduced = tuple[str, bytes | None, bytes | None, Headers | None]


class Transaction(NamedTuple):
    """The writes of a transaction besides the position, and the rows as a store keeps them.

    `records` are read once, in order, while the transaction is open; they may be an iterator.
    Records `elsewhere` go to the partitions of their keys, all others to the source's partition.
    """

    records: Iterable[PlainProduced]
    rows: Mapping[bytes, bytes | None]
    elsewhere: Sequence[PlainProduced] = ()


class MakeTransaction(Protocol):
    """Makes a transaction from an outcome."""

    def __call__(
        self, partition: int, outcome: BatchResult, started_at: int, stored: StoredLookup = nothing_stored
    ) -> Transaction:
        """Return the transaction; `started_at` is in µs since the epoch. May block, as `stored`.

        A value that `stored` returns for a key is not written again if it did not change.
        """
        ...


class CommitFollower(Protocol):
    """Acts on what a worker has committed. Belongs to the event loop; nothing blocks."""

    @property
    def gauges(self) -> Mapping[MetricName, ReadGauge]:
        """The gauges for the worker's metrics."""
        ...

    def note_commit(self, partition: int, outcome: BatchResult) -> None:
        """Take a committed outcome."""
        ...

    def attend(self, now_ms: float, states: Mapping[int, PartitionState]) -> None:
        """Do what is due; `states`: of the open partitions. Called many times a second."""
        ...

    def close(self) -> None:
        """Wait at most 1 s for what is under way."""
        ...


class Job(NamedTuple):
    """A partition's state, the writes for an outcome, and the form of the rows."""

    new_state: Callable[[int], PartitionState]  # of a partition
    transaction: MakeTransaction
    row_codec: RowCodec
    # partition, position, when its transaction was acknowledged (µs); None if nothing reports that
    acknowledgement: Callable[[int, Position, int], BatchAcknowledged | None] = lambda *_: None
    follower: CommitFollower | None = None
    # topics on which a committed record in the partition's place shows that it was folded before
    traces: Sequence[str] = ()


def partition_settings(settings: ProcessorSettings) -> PartitionSettings:
    """Return the settings on which a partition's state depends."""
    return PartitionSettings(
        settings.topics.events, settings.partitions, settings.outage_ms, settings.outage_grace_ms, keys=settings.keys
    )


def processor_job(settings: ProcessorSettings, judge: Judge = SESSION_JUDGE) -> Job:
    """Return the job of a processor."""
    speed_up("sessionary")
    row_codec, decoder = FamilyCodec(judge.families), decoder_for(settings, in_background=True)

    def new_state(partition: int) -> PartitionState:
        return PartitionState(partition, partition_settings(settings), decoder, judge)

    def make_transaction(
        partition: int, outcome: BatchResult, started_at: int, stored: StoredLookup = nothing_stored
    ) -> Transaction:
        rules = rules_to_write(outcome.position.rules, outcome.position.announced)
        rows = row_codec.pack_changes(outcome.rows, rules, stored)
        return _make_transaction(settings, rows, partition, outcome, started_at)

    def make_acknowledgement(partition: int, position: Position, acknowledged_at: int) -> BatchAcknowledged | None:
        return BatchAcknowledged(partition, position.batch_number, acknowledged_at, settings.worker_name)

    traces = settings.topics.batches, settings.topics.audit
    return Job(new_state, make_transaction, row_codec, make_acknowledgement, traces=traces)


def _make_transaction(
    settings: ProcessorSettings,
    rows: Mapping[bytes, PackedRow | None],
    partition: int,
    outcome: BatchResult,
    started_at: int,
) -> Transaction:
    topics = settings.topics
    rules, limits = (
        rules_to_write(outcome.position.rules, outcome.position.announced),
        bytes_limits(outcome.position.rules),
    )
    batch = make_batch_record(settings, partition, outcome, started_at)
    named: Headers = [transaction_header(partition, batch.number)]
    written = [_emitted_record(topics, each, rules, limits, named, outcome.traceparents) for each in outcome.emitted]
    records = [
        *changelog_records(topics.changelog, rows),
        *(record for record in written if record.topic != topics.quotas),
        Produced(topics.batches, None, encode_record(batch, rules)),
    ]
    elsewhere = [record for record in written if record.topic == topics.quotas]
    return Transaction(records, {key: packed and packed.stored for key, packed in rows.items()}, elsewhere)


def changelog_records(topic: str, rows: Mapping[bytes, PackedRow | None]) -> Iterator[Produced]:
    """Yield the changelog's records of packed rows; None is a deletion."""
    return (_changelog_record(topic, key, packed) for key, packed in rows.items())


def _emitted_record(
    topics: TopicNames,
    emitted: Emitted,
    rules: int,
    limits: Mapping[str, int],
    named: Headers,
    traceparents: Mapping[int, bytes],
) -> Produced:
    """Return an output's record; `named` is the header that names its transaction."""
    stream, key, record = emitted
    key, value = encode_to_fit(key, record, limits[stream] - _NAME_BYTES_MAX, rules)
    offset = event_offset(stream, record) if traceparents and stream in _TRACED else None
    context = None if offset is None else traceparents.get(offset)
    # A record that fits only without its trace is written without it.
    if context is None or len(key or b"") + len(value) + _OVERHEAD_BYTES_MAX > limits[stream]:
        return Produced(getattr(topics, stream), key, value, named)
    return Produced(getattr(topics, stream), key, value, [*named, (TRACEPARENT, context)])


def _changelog_record(topic: str, key: bytes, packed: PackedRow | None) -> Produced:
    if packed is None:
        return Produced(topic, key, None)
    return Produced(topic, key, packed.value, [(DUE_HEADER, packed.due)] if packed.due else None)


def make_batch_record(
    settings: ProcessorSettings, partition: int, outcome: BatchResult, started_at: int
) -> BatchRecord:
    """Return the record that every transaction leaves on `batches`."""
    counts, position = outcome.counts, outcome.position
    return BatchRecord(
        partition=partition,
        number=position.batch_number,
        first_offset=counts.first_offset,
        last_offset=counts.last_offset,
        applied=counts.applied,
        duplicate=counts.duplicate,
        rejected=counts.rejected,
        audited=counts.audited,
        timers=counts.timers,
        ticks=counts.ticks,
        started_at=started_at,
        previous_acknowledged_at=position.previous_acknowledged_at,
        instance=settings.worker_name,
        rules=position.rules.version,
        fenced_beats=counts.fenced_beats,
        cleanup=counts.cleanup,
        tasks=counts.tasks,
        migrations=counts.migrations,
        quotas=counts.quotas,
    )
