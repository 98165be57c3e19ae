"""What is done with a partition: how it folds, how its rows are packed, what one transaction writes.

The loop (`partition.py`) and the transaction (`outputs.py`) are the same for every job; the sessions are the job of
this package. Everything here is made once per worker and called without a lock.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from sessionary.schemas.codec import encode_record
from sessionary.schemas.codec.from_settings import decoder_for
from sessionary.schemas.records import BatchRecord
from sessionary.stream_processors.core.partition import FoldSettings, Outcome, PartitionFold
from sessionary.stream_processors.settings import ProcessorSettings
from sessionary.stream_processors.store.packed_rows import Packed, pack, repack, unpack

POSITION_KEY = b"\x00position"
DUE_HEADER = "due"  # of a changelog record: when its row is next looked at; see `rows.py`
Repack = Callable[[bytes, bytes | None], bytes]


_Headers = list[tuple[str, bytes | str | None]]


class Produced(NamedTuple):
    """One record of a transaction."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: _Headers | None = None


PlainProduced = tuple[
    str, bytes | None, bytes | None, _Headers | None
]  # the same, made and taken apart in half the time


class Transaction(NamedTuple):
    """All that one transaction writes besides the position: records, and the rows as a store keeps them.

    `records` are gone through once, in order, while the transaction is open: an iterator may make them one by one.
    """

    records: Iterable[PlainProduced]
    rows: Mapping[bytes, bytes | None]


class Job(NamedTuple):
    """See above. `unpack` and `repack` raise `DecodeError`."""

    new_fold: Callable[[int], PartitionFold]
    transaction: Callable[[int, Outcome, int], Transaction]  # partition, outcome, when it was begun (µs)
    repack: Repack
    unpack: Callable[[bytes], Any]


def fold_settings(settings: ProcessorSettings) -> FoldSettings:
    """Return what the fold has to know of the settings."""
    return FoldSettings(settings.topics.events, settings.partitions, settings.hole_ms, settings.quiet_ms)


def sessions(settings: ProcessorSettings) -> Job:
    """Return the job of this package."""

    def new_fold(partition: int) -> PartitionFold:
        return PartitionFold(partition, fold_settings(settings), decoder_for(settings))

    def transaction(partition: int, outcome: Outcome, started_at: int) -> Transaction:
        return _transaction(settings, partition, outcome, started_at)

    return Job(new_fold, transaction, repack, unpack)


def _transaction(settings: ProcessorSettings, partition: int, outcome: Outcome, started_at: int) -> Transaction:
    topics = settings.topics
    rows = {key: None if row is None else pack(row) for key, row in outcome.rows.items()}
    batch = batch_record(settings, partition, outcome, started_at)
    records = [
        *(_changed(topics.changelog, key, packed) for key, packed in rows.items()),
        *(Produced(topics.audit, key, encode_record(record)) for key, record in outcome.audits),
        *(Produced(topics.rejected, key, encode_record(record)) for key, record in outcome.rejected),
        *(Produced(topics.cleanup, key, encode_record(record)) for key, record in outcome.cleanups),
        Produced(topics.batches, None, encode_record(batch)),
    ]
    return Transaction(records, {key: packed and packed.stored for key, packed in rows.items()})


def _changed(topic: str, key: bytes, packed: Packed | None) -> Produced:
    if packed is None:
        return Produced(topic, key, None)
    return Produced(topic, key, packed.value, [(DUE_HEADER, packed.due)])


def batch_record(settings: ProcessorSettings, partition: int, outcome: Outcome, started_at: int) -> BatchRecord:
    """Return the record that every transaction leaves on `batches`."""
    counts, position = outcome.counts, outcome.position
    return BatchRecord(
        partition=partition,
        number=position.batch_number,
        first_offset=counts.first_offset,
        last_offset=counts.last_offset,
        applied=counts.applied,
        duplicate=counts.duplicate,
        refused=counts.refused,
        audited=counts.audited,
        timers=counts.timers,
        ticks=counts.ticks,
        started_at=started_at,
        previous_acknowledged_at=position.previous_acknowledged_at,
        instance=settings.worker_name,
    )


__all__ = [
    "DUE_HEADER",
    "POSITION_KEY",
    "Job",
    "PlainProduced",
    "Produced",
    "Repack",
    "Transaction",
    "batch_record",
    "fold_settings",
    "sessions",
]
