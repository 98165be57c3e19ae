"""Messages of librdkafka as records of their partitions."""

import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import NamedTuple, cast

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, Message

from sessionary.schemas.headers import header_pairs, read_headers
from sessionary.schemas.kafka.clients import HELP, describe_unreadable_batch, is_unreadable_batch
from sessionary.stream_processors.core.model import LogRecord
from sessionary.stream_processors.errors import Halted

_new = tuple.__new__  # the same as a NamedTuple's own constructor, in half the time

_MS_PER_S = 1_000

Fault = tuple[Halted, int]  # no record from this offset on may be folded


class LazyRecord(LogRecord):
    """A record that unpacks its headers when they are read, because only a refusal reads them."""

    __slots__ = ()

    def list_headers(self) -> Sequence[tuple[str, bytes]]:
        """Return the record's headers, in order; a header without a value is empty.

        `UNREADABLE_HEADERS` if they cannot be read.
        """
        return header_pairs(read_headers(cast(Message, self[4])))

    @property
    def headers(self) -> Sequence[tuple[str, bytes]]:
        """The record's headers, as `list_headers` returns them."""
        return self.list_headers()

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


def group_by_partition(
    messages: Sequence[Message],
    wall_s: float,
    clock_ahead_s_max: float,
    believed_from: Mapping[int, int] = MappingProxyType({}),
) -> list[PartitionRecords]:
    """Return the records of each partition, up to the first one that must not be folded.

    That is one without the broker's time, or with a time that lies more than `clock_ahead_s_max`
    ahead of `wall_s`, this process's clock in seconds since the epoch. Below the offset that
    `believed_from` has for its partition, a record may have any time of the broker.
    """
    latest_ms = (wall_s + clock_ahead_s_max) * _MS_PER_S
    batches: dict[int, list[LogRecord]] = {}
    faults: dict[int, Fault] = {}
    for found_in, group in groupby(messages, Message.partition):
        partition = found_in or 0
        records = batches.setdefault(partition, [])
        if partition in faults:
            continue
        # One loop does all, because a second one would not find the messages in the core's cache.
        for message in group:
            kind, ms = message.timestamp()
            if kind != TIMESTAMP_LOG_APPEND_TIME:  # the topic's setting may change at any time
                faults[partition] = _wrong_timestamp_type(message)
                break
            if ms > latest_ms and (message.offset() or 0) >= believed_from.get(partition, 0):
                faults[partition] = _clock_ahead(message, wall_s, clock_ahead_s_max)
                break
            records.append(_new(LazyRecord, (message.offset(), ms, message.key(), message.value(), message)))
    return [PartitionRecords(partition, records, faults.get(partition)) for partition, records in batches.items()]


def cut_at_unreadable(found: Iterable[PartitionRecords], errors: Iterable[Message]) -> list[PartitionRecords]:
    """Return what was found of each partition, up to its first batch that could not be read."""
    groups = {group.partition: group for group in found}
    for message in filter(is_unreadable_batch, errors):
        partition, offset = message.partition() or 0, message.offset() or 0
        _, records, fault = groups.get(partition, PartitionRecords(partition, (), None))
        if fault is None or fault[1] > offset:
            # librdkafka leaves out a batch with a wrong checksum: records behind it may be there.
            kept = [record for record in records if record.offset < offset]
            detail = f"partition {partition}: {describe_unreadable_batch(message)}. {HELP}"
            halted = Halted("batch_unreadable", detail, offset=offset)
            groups[partition] = PartitionRecords(partition, kept, (halted, offset))
    return list(groups.values())


def fault_from(fault: Fault, next_offset: int) -> Fault:
    """Return a fault as it is if nothing below `next_offset` is wanted."""
    halted, offset = fault
    if offset >= next_offset:
        return fault
    return Halted(halted.reason, halted.detail, halted.clears_in_s, next_offset), next_offset


def _wrong_timestamp_type(message: Message) -> Fault:
    """Return the fault of a message without the broker's time, and its offset."""
    offset = message.offset() or 0
    return Halted(
        "wrong_timestamp_type",
        f"partition {message.partition()}: the record at offset {offset} has the time of its sender, not of the "
        f"broker (LogAppendTime), so any client could move the clock. Set message.timestamp.type of "
        f"{message.topic()} back with `sessionary topics apply`; records that were written in between keep their times",
        offset=offset,
        key=message.key(),
    ), offset


def _clock_ahead(message: Message, wall_s: float, clock_ahead_s_max: float) -> Fault:
    """Return the fault of a message whose time lies too far ahead of `wall_s`, and its offset."""
    offset, stamp_s = message.offset() or 0, message.timestamp()[1] / _MS_PER_S
    ahead_s = stamp_s - wall_s
    return Halted(
        "clock_ahead",
        f"partition {message.partition()}: the broker stamped the record at offset {offset} with "
        f"{_format_utc(stamp_s)}, {ahead_s:,.1f} s ahead of this worker's clock, {_format_utc(wall_s)}; at most "
        f"{clock_ahead_s_max:g} s are allowed (SESSIONARY_CLOCK_AHEAD_S_MAX). Correct the broker's clock; or this "
        "worker's, if all of its partitions are ahead by as much and those of other workers are not",
        ahead_s - clock_ahead_s_max,
        offset,
        message.key(),
    ), offset


def _format_utc(time_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(time_s))


def to_record(message: Message) -> LogRecord:
    """Return a message as a record."""
    _, ms = message.timestamp()
    return _new(LazyRecord, (message.offset(), ms, message.key(), message.value(), message))
