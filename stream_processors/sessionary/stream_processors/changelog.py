"""Reads a partition's changelog to its end: how an opening partition learns its state.

Only the partition's end (`_PARTITION_EOF`) ends the reading: a quiet moment does not. Committed records only; the
former owner's open transaction was ended when this owner's producer was initialised, so the end is the true one.
"""

import time
from collections.abc import Callable

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from sessionary.schemas.codec import Decoder
from sessionary.schemas.errors import DecodeError
from sessionary.schemas.records import Gravestone, Position, SessionState
from sessionary.stream_processors.faults import Halted, Lost
from sessionary.stream_processors.fold import PartitionFold
from sessionary.stream_processors.settings import ProcessorSettings
from sessionary.stream_processors.store import RocksStore, Store, usable

POSITION_KEY = b"\x00position"
_BATCH_RECORDS = 5_000
_SILENCE_MAX_S = 60.0
_TIMEOUT_S = 10.0
# Trouble on the way to the broker; librdkafka goes on trying by itself.
_PASSING = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._RESOLVE)


def reader_of(settings: ProcessorSettings) -> Consumer:
    """Return a consumer outside any group's life, which reads committed records and tells a partition's end."""
    return Consumer(
        {
            **settings.librdkafka(),
            "group.id": f"{settings.group_id}.reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 10,  # the end is told by the answer to a fetch; an empty one would wait half a second
            "log_level": 0,
        }
    )


def recover(settings: ProcessorSettings, fold: PartitionFold, store: Store, wanted: Callable[[], bool]) -> int:
    """Load `fold` from `store` and from what the changelog holds beyond it; return the changelog's end.

    Blocks. Raises `Halted` for a record that cannot be read, `Lost` where the broker stays silent or the partition is
    no longer `wanted`.
    """
    reader = reader_of(settings)
    try:
        topic = TopicPartition(settings.topics.changelog, fold.partition)
        low, end = reader.get_watermark_offsets(topic, timeout=_TIMEOUT_S)
        saved = store.saved
        if saved is not None and usable(saved, low, end):
            fold.load_position(saved.position)
            topic.offset = saved.changelog_next
        else:
            store.wipe()
            topic.offset = OFFSET_BEGINNING
        fold.rows = store.rows
        reader.assign([topic])
        changelog_next = _read(reader, fold, store, wanted)
        if isinstance(store, RocksStore):
            store.spill()
    except KafkaException as error:
        raise Lost(f"changelog of partition {fold.partition}: {error.args[0]}") from error
    finally:
        reader.close()
    fold.loaded()
    return changelog_next


def _read(reader: Consumer, fold: PartitionFold, store: Store, wanted: Callable[[], bool]) -> int:
    decoder, heard_s = Decoder(), time.monotonic()
    while wanted():
        for message in reader.consume(_BATCH_RECORDS, 0.2):
            heard_s = time.monotonic()
            error = message.error()
            if error is None:
                _load(fold, decoder, message.key() or b"", message.value(), message.offset() or 0)
            elif error.code() == KafkaError._PARTITION_EOF:
                return message.offset() or 0
            elif error.code() not in _PASSING:
                raise KafkaException(error)
        if isinstance(store, RocksStore) and len(store.rocks.unsaved) >= RocksStore.SPILL_ROWS:
            store.spill()
        if time.monotonic() - heard_s > _SILENCE_MAX_S:
            raise Lost(f"changelog of partition {fold.partition}: silent for {_SILENCE_MAX_S:g} s")
    raise Lost("no longer wanted")


def _load(fold: PartitionFold, decoder: Decoder, key: bytes, value: bytes | None, offset: int) -> None:
    if value is None:
        fold.load(key, None)
        return
    try:
        record = decoder.record(value)
    except DecodeError as error:
        raise Halted("changelog_unreadable", f"partition {fold.partition}, offset {offset}: {error.detail}") from error
    if isinstance(record, Position) and key == POSITION_KEY:
        fold.load_position(record)
    elif isinstance(record, SessionState | Gravestone) and key != POSITION_KEY:
        fold.load(key, record)
    else:
        what = type(record).__name__
        raise Halted("changelog_unreadable", f"partition {fold.partition}, offset {offset}: a {what} under {key!r}")


__all__ = ["POSITION_KEY", "reader_of", "recover"]
