"""Messages of librdkafka as records of their partitions."""

from collections.abc import Iterable, Sequence
from itertools import groupby, repeat
from operator import itemgetter
from typing import NamedTuple, cast

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, Message

from sessionary.schemas.headers import header_pairs, read_headers
from sessionary.stream_processors.core.model import LogRecord
from sessionary.stream_processors.errors import Halted

_kind, _ms = itemgetter(0), itemgetter(1)  # of a message's timestamp
_LOG_APPEND_TIME = {TIMESTAMP_LOG_APPEND_TIME}
_new = tuple.__new__  # the same as a NamedTuple's own constructor, in half the time

Fault = tuple[Halted, int]  # no record from this offset on may be folded


class LazyRecord(LogRecord):
    """A record that unpacks its headers when they are read, because only a refusal reads them."""

    __slots__ = ()

    @property
    def headers(self) -> Sequence[tuple[str, bytes]]:
        """The record's headers, in order; a header without a value is empty.

        `UNREADABLE_HEADERS` if they cannot be read.
        """
        return header_pairs(read_headers(cast(Message, self[4])))

    @property
    def leader_epoch(self) -> int | None:
        """The epoch of the leader that appended the record; None if unknown."""
        return cast(Message, self[4]).leader_epoch()


class PartitionRecords(NamedTuple):
    """What one fetch holds of one partition: records up to its fault, if there is one."""

    partition: int
    records: Sequence[LogRecord]
    fault: Fault | None


class FetchEvents(NamedTuple):
    """Messages that are no records."""

    errors: Sequence[Message]
    ends: dict[int, int]  # by partition: the offset up to which its log was read


def split_messages(messages: Sequence[Message]) -> tuple[list[Message], FetchEvents]:
    """Return the records and the other messages of a fetch."""
    errors: list[Message] = []
    ends: dict[int, int] = {}
    records = [message for message in messages if message.error() is None]
    if len(records) < len(messages):
        for message in messages:
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                ends[message.partition() or 0] = message.offset() or 0
            elif error is not None:
                errors.append(message)
    return records, FetchEvents(errors, ends)


def group_by_partition(messages: Sequence[Message]) -> list[PartitionRecords]:
    """Return the records of each partition."""
    batches: dict[int, list[LogRecord]] = {}
    faults: dict[int, Fault] = {}
    for found_in, found in groupby(messages, Message.partition):
        partition, group = found_in or 0, list(found)
        records = batches.setdefault(partition, [])
        if partition in faults:
            continue
        stamps = list(map(Message.timestamp, group))
        # The topic's setting may change at any time, so a fetch may be mixed.
        if set(map(_kind, stamps)) != _LOG_APPEND_TIME:
            right = next(n for n, stamp in enumerate(stamps) if stamp[0] != TIMESTAMP_LOG_APPEND_TIME)
            faults[partition] = _wrong_timestamp_type(group[right])
            group, stamps = group[:right], stamps[:right]
        records.extend(_to_records(group, stamps))
    return [PartitionRecords(partition, records, faults.get(partition)) for partition, records in batches.items()]


def _wrong_timestamp_type(message: Message) -> Fault:
    """Return the fault of a message without the broker's time, and its offset."""
    offset = message.offset() or 0
    return Halted(
        "wrong_timestamp_type",
        f"partition {message.partition()}: the record at offset {offset} has the time of its sender, not of the "
        f"broker (LogAppendTime), so any client could move the clock. Set message.timestamp.type of "
        f"{message.topic()} back with `sessionary topics apply`; records that were written in between keep their times",
    ), offset


def _to_records(messages: list[Message], stamps: list[tuple[int, int]]) -> Iterable[LogRecord]:
    """Return messages of one partition as records. A Python loop would take half as long again."""
    fields = zip(
        map(Message.offset, messages),
        map(_ms, stamps),
        map(Message.key, messages),
        map(Message.value, messages),
        messages,
        strict=True,
    )
    return map(_new, repeat(LazyRecord), fields)


__all__ = ["Fault", "FetchEvents", "LazyRecord", "PartitionRecords", "group_by_partition", "split_messages"]
