"""Reads the records that an operator skips: for their bytes, and for the stamp of the last one.

A batch that cannot be read is skipped as a whole. Its last offset is found by fetching from other
offsets: from within the batch, the same batch is reported again.
"""

import time
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from sessionary.schemas.kafka.clients import is_unreadable_batch
from sessionary.stream_processors.core.model import RECORD_OVERHEAD_BYTES, LogRecord
from sessionary.stream_processors.errors import Lost
from sessionary.stream_processors.runtime.changelog import reader_of
from sessionary.stream_processors.runtime.fetching.fetched_records import to_record
from sessionary.stream_processors.settings import ProcessorSettings

# Of one transaction; the records that are left follow in the next one.
_RECORDS_MAX = 1_000
_BYTES_MAX = 8 << 20
_SILENCE_MAX_S = 10.0
_POLL_S = 0.5


class SkippedRecords(NamedTuple):
    """The log's records from an offset on.

    Up to `next_offset`, exclusive, there are no others that can be read.
    """

    records: list[LogRecord]
    next_offset: int


def read_records(settings: ProcessorSettings, partition: int, first_offset: int, last_offset: int) -> SkippedRecords:
    """Read a partition of the events topic from `first_offset` to `last_offset`, or a part of that.

    `next_offset` is not above the log's end. It is above `last_offset` + 1 if that is within a
    batch that cannot be read. Blocks. Raises `Lost` if the broker does not answer.
    """
    reader = reader_of(settings)
    try:
        reader.assign([TopicPartition(settings.topics.events, partition, first_offset)])
        return _read_up_to(reader, partition, first_offset, last_offset)
    except KafkaException as error:
        raise Lost(f"events of partition {partition}: {error.args[0]}") from error
    finally:
        reader.close()


def _read_up_to(reader: Consumer, partition: int, first_offset: int, last_offset: int) -> SkippedRecords:
    records: list[LogRecord] = []
    next_offset, size, heard_s = first_offset, 0, time.monotonic()
    while next_offset <= last_offset and len(records) < _RECORDS_MAX and size < _BYTES_MAX:
        if time.monotonic() - heard_s > _SILENCE_MAX_S:
            raise Lost(
                f"events of partition {partition}: nothing read at offset {next_offset} for {_SILENCE_MAX_S:g} s"
            )
        if (message := reader.poll(_POLL_S)) is None:
            continue
        heard_s, offset = time.monotonic(), message.offset() or 0
        if is_unreadable_batch(message):
            first_unread = max(offset, next_offset)
            if records or first_unread > last_offset:
                return SkippedRecords(records, min(first_unread, last_offset + 1))
            return SkippedRecords(records, _find_batch_end(reader, message, first_unread) + 1)
        if (error := message.error()) is not None:
            if error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            return SkippedRecords(records, min(offset, last_offset + 1))
        if offset > last_offset:
            return SkippedRecords(records, last_offset + 1)
        record = to_record(message)
        records.append(record)
        next_offset = offset + 1
        size += len(record.key or b"") + len(record.value or b"") + RECORD_OVERHEAD_BYTES
    return SkippedRecords(records, next_offset)


def _find_batch_end(reader: Consumer, report: Message, inside: int) -> int:
    """Return the last offset of a batch that cannot be read; `inside` is one of its offsets."""
    step = 1
    while _is_within(reader, report, inside + step):
        inside, step = inside + step, 2 * step
    outside = inside + step
    while outside - inside > 1:
        middle = (inside + outside) // 2
        if _is_within(reader, report, middle):
            inside = middle
        else:
            outside = middle
    return inside


def _is_within(reader: Consumer, report: Message, offset: int) -> bool:
    """Return whether a fetch from `offset` on finds the same batch that cannot be read."""
    topic, partition = report.topic() or "", report.partition() or 0
    place = TopicPartition(topic, partition, offset)
    if offset >= reader.get_watermark_offsets(place, timeout=_SILENCE_MAX_S)[1]:
        return False
    reader.assign([place])
    deadline_s = time.monotonic() + _SILENCE_MAX_S
    while time.monotonic() < deadline_s:
        if (message := reader.poll(_POLL_S)) is None:
            continue
        if is_unreadable_batch(message):
            return message.offset() == report.offset()
        if (error := message.error()) is None or error.code() == KafkaError._PARTITION_EOF:
            return False
        raise KafkaException(error)
    raise Lost(f"events of partition {partition}: nothing read at offset {offset} for {_SILENCE_MAX_S:g} s")
