"""Reads a partition's changelog to its end: how an opening partition learns its state.

Only the partition's end (`_PARTITION_EOF`) ends the reading: a quiet moment does not. Committed
records only; the former owner's open transaction was ended when this owner's producer was
initialised, so the end is the true one.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from sessionary.schemas.codec import Decoder
from sessionary.schemas.errors import DecodeError
from sessionary.schemas.headers import read_headers
from sessionary.schemas.kafka.unreadable_batches import describe_unreadable_batch, is_unreadable_batch
from sessionary.schemas.records import Position
from sessionary.schemas.rules import FIRST_RULES, rules_to_write
from sessionary.schemas.telemetry.role_logs import role_logger
from sessionary.stream_processors.core.model import POSITION_KEY
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.errors import Halted, Lost
from sessionary.stream_processors.rules_change import require_known_rules
from sessionary.stream_processors.runtime.transaction import Seal
from sessionary.stream_processors.settings import ProcessorSettings
from sessionary.stream_processors.store.packed_rows import DUE_HEADER, RowCodec
from sessionary.stream_processors.store.stores import Store, is_usable

_log = role_logger(__name__)
PREFETCH_KIB = 4_096
_BATCH_RECORDS = 5_000
_SILENCE_MAX_S = 60.0
_TIMEOUT_S = 10.0
# Trouble on the way to the broker; librdkafka goes on trying by itself.
_PASSING = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._RESOLVE)


def reader_of(settings: ProcessorSettings) -> Consumer:
    """Return a consumer outside of any group; it reads committed records and reports the end."""
    return Consumer(
        {
            **settings.reader_config(),
            # Several partitions are read at a time, and a probe of a log reads one record. The
            # default of 64 MiB would be fetched for each of them.
            "queued.max.messages.kbytes": PREFETCH_KIB,
        }
    )


@dataclass
class RecoveryProgress:
    """How far a recovery is. Its thread writes, others read."""

    end_offset: int | None = None  # of the changelog; None before it is read
    next_offset: int = 0
    found_damaged_store: bool = False  # whether the local store had other rows than its position record counts

    @property
    def remaining_records(self) -> int | None:
        """How many offsets of the changelog are still to be read; None if it is not being read."""
        end_offset = self.end_offset  # read once: another thread writes it
        return None if end_offset is None else max(0, end_offset - self.next_offset)


def recover(
    settings: ProcessorSettings,
    state: PartitionState,
    store: Store,
    row_codec: RowCodec,
    wanted: Callable[[], bool],
    progress: RecoveryProgress,
) -> int:
    """Load `store` with what the changelog holds beyond it, and `state`; return the end.

    `row_codec` makes of a record's value and its header `due` what the store keeps.

    Blocks. Raises `Halted` for a record that cannot be read, for missing rows and for rules that
    this release does not know, `Lost` if the broker stays silent or the partition is no longer
    `wanted`.
    """
    was_saved = store.saved_position is not None
    changelog_next = _recover_rows(settings, state, store, row_codec, wanted, progress)
    if not _holds_all_rows(store, state.position):
        progress.found_damaged_store = was_saved
        _log.warning(
            "partition %(partition)d: its store differs from its changelog, which is read from the start",
            partition=state.partition,
            offset=state.position.next_offset,
        )
        store.wipe()
        changelog_next = _recover_rows(settings, state, store, row_codec, wanted, progress)
        if not _holds_all_rows(store, state.position):
            raise _changelog_incomplete(state, store)
    state.finish_loading(store.rows.due_rows())
    return changelog_next


def _holds_all_rows(store: Store, position: Position) -> bool:
    """Return whether the store has the rows that the position record counts."""
    expected = position.row_count, position.row_checksum
    # A store that was filled from the start has no sum yet; one that a crash left ahead of its
    # position has the right rows, but not their sum.
    return expected == (None, None) or store.row_sum == expected or store.count_again() == expected


def _changelog_incomplete(state: PartitionState, store: Store) -> Halted:
    position, found = state.position, store.count_again()
    return Halted(
        "changelog_incomplete",
        f"partition {state.partition}: the position record counts {position.row_count} rows with checksum "
        f"{position.row_checksum}, but the changelog has {found.rows} with {found.checksum}. The "
        "broker lost records of the changelog (unclean leader election, power loss, or a shorter retention). Bring "
        "the replica back that has them",
    )


def _recover_rows(
    settings: ProcessorSettings,
    state: PartitionState,
    store: Store,
    row_codec: RowCodec,
    wanted: Callable[[], bool],
    progress: RecoveryProgress,
) -> int:
    reader = reader_of(settings)
    try:
        topic = TopicPartition(settings.topics.changelog, state.partition)
        low, end = reader.get_watermark_offsets(topic, timeout=_TIMEOUT_S)
        saved = store.saved_position
        store.rows.forget_unsaved()  # an owner elsewhere may have changed them since
        if saved is not None and is_usable(saved, low, end):
            state.load_position(saved.position)
            topic.offset = saved.changelog_next
        else:
            store.wipe()
            topic.offset = OFFSET_BEGINNING
        state.rows = store.rows
        reader.assign([topic])
        progress.next_offset, progress.end_offset = max(low, topic.offset), end
        changelog_next = _read(reader, state, store, row_codec, wanted, progress)
        require_known_rules(state.partition, state.position)
        store.finish_loading()
    except KafkaException as error:
        raise Lost(f"changelog of partition {state.partition}: {error.args[0]}") from error
    finally:
        reader.close()
    return changelog_next


def _read(
    reader: Consumer,
    state: PartitionState,
    store: Store,
    row_codec: RowCodec,
    wanted: Callable[[], bool],
    progress: RecoveryProgress,
) -> int:
    heard_s = time.monotonic()
    while wanted():
        # Only the first one is waited for: `consume` would wait until it has as many as it may
        # take.
        if (first := reader.poll(0.2)) is not None:
            heard_s = time.monotonic()
            messages = (first, *reader.consume(_BATCH_RECORDS, 0))
            end = _load_messages(state, store, row_codec, messages)
            if end is not None:
                return end
            if messages[-1].error() is None:
                progress.next_offset = (messages[-1].offset() or 0) + 1
        if time.monotonic() - heard_s > _SILENCE_MAX_S:
            raise Lost(f"changelog of partition {state.partition}: silent for {_SILENCE_MAX_S:g} s")
    raise Lost("no longer wanted")


def _load_messages(state: PartitionState, store: Store, row_codec: RowCodec, messages: Sequence[Message]) -> int | None:
    """Load what the consumer returned. Return the changelog's end if that is reached.

    A partition opens after one turn of this loop for each of its rows: a call less per row counts.
    """
    rows: dict[bytes, bytes | None] = {}
    end: int | None = None
    repack = row_codec.repack
    for message in messages:
        if (fault := message.error()) is not None:
            if fault.code() == KafkaError._PARTITION_EOF:
                end = message.offset() or 0
            else:
                _check_fault(state.partition, message, fault)
            continue
        key, value = message.key() or b"", message.value()
        assert isinstance(key, bytes)
        if value is None:
            rows[key] = None
            continue
        assert isinstance(value, bytes)
        try:
            if key == POSITION_KEY:
                state.load_position(_position(value))
            else:
                rows[key] = repack(value, _due(message))
        except DecodeError as error:
            where = f"partition {state.partition}, offset {message.offset()}, key {key!r}"
            advice = "if a newer release wrote it, upgrade this worker"
            raise Halted("changelog_unreadable", f"{where}: {error.detail}; {advice}") from error
    store.load_rows(rows)
    return end


def _check_fault(partition: int, message: Message, fault: KafkaError) -> None:
    """Raise unless the fault passes by itself."""
    if is_unreadable_batch(message):
        where = f"partition {partition}: {describe_unreadable_batch(message)}"
        raise Halted("changelog_unreadable", f"{where}. Bring a replica back that has it intact")
    if fault.code() not in _PASSING:
        raise KafkaException(fault)


def seal_with(store: Store, leader_epoch: int | None) -> Seal:
    """Return what adds to a position record by what losses are told: the rows' sum, and an epoch.

    `leader_epoch` is that of the last record below the position. The first rules know neither.
    """

    def seal(position: Position, rows: Mapping[bytes, bytes | None]) -> Position:
        if rules_to_write(position.rules, position.announced) == FIRST_RULES.version:
            return position
        count, checksum = store.sum_with(rows)
        return position._replace(leader_epoch=leader_epoch, row_count=count, row_checksum=checksum)

    return seal


def _position(value: bytes) -> Position:
    record = Decoder().decode_record(value)
    if not isinstance(record, Position):
        raise DecodeError("unknown_schema", f"a {type(record).__name__} is no position")
    return record


def _due(message: Message) -> bytes | None:
    for name, value in read_headers(message) or ():
        if name == DUE_HEADER and isinstance(value, bytes):
            return value
    return None


__all__ = ["PREFETCH_KIB", "RecoveryProgress", "reader_of", "recover", "seal_with"]
