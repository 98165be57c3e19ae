"""Fetched records of one partition that wait to be folded; too many interrupt the fetching.

A fetch has a `begin_offset`: from there to its last record's offset no other offset holds a record.
So the fetch follows a position that is not below `begin_offset`.
"""

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import NamedTuple, Protocol, cast

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, Message

from sessionary.schemas.headers import header_pairs, read_headers
from sessionary.schemas.kafka.clients import HELP, describe_unreadable_batch, is_unreadable_batch
from sessionary.stream_processors.core.model import RECORD_OVERHEAD_BYTES, LogRecord
from sessionary.stream_processors.errors import Halted

# Messages of librdkafka as records of their partitions.


_new = tuple.__new__  # the same as a NamedTuple's own constructor, in half the time

_MS_PER_S = 1_000

Fault = tuple[Halted, int]  # no record from this offset on may be folded


class LazyRecord(LogRecord):
    """A record that unpacks its headers when they are read, because only a rejection reads them."""

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
    """The records of one partition in one fetch, up to its fault, if there is one."""

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

    A record must not be folded without the broker's time, or with a time more than
    `clock_ahead_s_max` ahead of `wall_s`, this process's clock in seconds since the epoch. Below
    the offset that `believed_from` has for its partition, a record may have any time of the broker.
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
    """Return each partition's records, up to its first batch that could not be read."""
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


PENDING_BYTES_MAX = 8 << 20


class FetchControl(Protocol):
    """How an owner steers the fetching of its partition. Nothing blocks."""

    def fetch_from(self, partition: int, offset: int, believed_from: int) -> None:
        """Fetch from `offset` on; drop the records fetched before.

        Records below `believed_from` do not move the clock, and may be stamped ahead.
        """
        ...

    def pause_partition(self, partition: int) -> None:
        """Interrupt the fetching."""
        ...

    def resume_partition(self, partition: int) -> None:
        """Resume the fetching."""
        ...

    def drop_partition(self, partition: int) -> None:
        """Stop fetching."""
        ...

    def add_pending_bytes(self, size: int) -> None:
        """Count bytes that wait to be folded; negative: that wait no longer."""
        ...


class FollowingRecords(NamedTuple):
    """All records from `begin_offset` to the last one, in the order of offsets."""

    begin_offset: int
    records: Sequence[LogRecord]


class PendingRecords:
    """A queue of batches, as they were fetched. Belongs to the event loop."""

    def __init__(self, partition: int, fetch_control: FetchControl) -> None:
        self._partition = partition
        self._fetch_control = fetch_control
        self._batches: deque[tuple[FollowingRecords, int]] = deque()  # with their bytes
        self._bytes = 0
        self._paused = False

    def __bool__(self) -> bool:
        return bool(self._batches)

    def append_batch(self, fetch: FollowingRecords, size: int | None = None) -> None:
        """Add a fetch (not empty) as the last one; interrupt the fetching if too much waits.

        `size`: `bytes_of` its records, if that is known.
        """
        size = bytes_of(fetch.records) if size is None else size
        self._batches.append((fetch, size))
        self._count_bytes(size)
        if self._bytes > PENDING_BYTES_MAX and not self._paused:
            self._paused = True
            self._fetch_control.pause_partition(self._partition)

    def put_back(self, fetch: FollowingRecords) -> None:
        """Add a fetch (not empty) as the first one."""
        self._batches.appendleft((fetch, bytes_of(fetch.records)))
        self._count_bytes(self._batches[0][1])

    def take_batch(self, position: int, records_max: int) -> FollowingRecords:
        """Remove and return records from `position` on, in order, until a fetch leaves a gap.

        They follow on `position` unless their `begin_offset` is above it. They may be none, and the
        last fetch may exceed `records_max`.
        """
        self._drop_older_fetches(position)
        taken: list[LogRecord] = []
        begin_offset = expected = position
        while self._batches and len(taken) < records_max:
            if taken and self._batches[0][0].begin_offset > expected:
                break
            fetch = self._pop_batch()
            records = fetch.records
            if records[0].offset < expected:
                records = [record for record in records if record.offset >= expected]
            if records and not taken:
                begin_offset = max(position, fetch.begin_offset)
            taken.extend(records)
            if taken:
                expected = taken[-1].offset + 1
        if self._paused and self._bytes < PENDING_BYTES_MAX // 2:
            self._resume_fetching()
        return FollowingRecords(begin_offset, taken)

    def first_ms_from(self, offset: int) -> int | None:
        """Return when the first record from `offset` on was appended (ms), None if none waits."""
        for fetch, _ in self._batches:
            if fetch.records[-1].offset >= offset:
                return next(record.timestamp_ms for record in fetch.records if record.offset >= offset)
        return None

    def drop_all(self) -> None:
        """Remove all records; resume the fetching if it was interrupted."""
        self._batches.clear()
        self._count_bytes(-self._bytes)
        if self._paused:
            self._resume_fetching()

    def _drop_older_fetches(self, position: int) -> None:
        """If a fetch has the next records, drop earlier fetches: folded, or from before a seek."""
        holders = (
            n
            for n, (fetch, _) in enumerate(self._batches)
            if fetch.begin_offset <= position <= fetch.records[-1].offset
        )
        for _ in range(next(holders, 0)):
            self._pop_batch()

    def _pop_batch(self) -> FollowingRecords:
        fetch, size = self._batches.popleft()
        self._count_bytes(-size)
        return fetch

    def _count_bytes(self, size: int) -> None:
        self._bytes += size
        self._fetch_control.add_pending_bytes(size)

    def _resume_fetching(self) -> None:
        self._paused = False
        self._fetch_control.resume_partition(self._partition)


def bytes_of(records: Sequence[LogRecord]) -> int:
    """Return about how much memory records take, in bytes. Headers, still packed, are left out."""
    size = RECORD_OVERHEAD_BYTES * len(records)
    for record in records:
        # By their places: once this is compiled, that spares the look-up of each field's name.
        key, value = record[2], record[3]
        if key is not None:
            size += len(key)
        if value is not None:
            size += len(value)
    return size
