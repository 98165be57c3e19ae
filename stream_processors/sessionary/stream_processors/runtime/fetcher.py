"""Fetches the records of owned partitions with librdkafka and delivers them to the event loop.

Faust's consumer (aiokafka) keeps the group's membership. Its fetching would take a quarter of a
worker's time and hold the interpreter's lock. Here librdkafka's threads fetch and unpack records;
one thread of ours turns them into tuples. It belongs to no group: each partition's owner says from
which offset on its partition is fetched.

    fetch_from → pause/resume_partition … → drop_partition    commands of a partition, in this order

A batch takes one step from this thread to its owner: a callback on the event loop. It carries no
generation, because none is needed. An offset of a log holds the same record for every owner; an
owner folds what continues its own position, and asks the log before it skips an offset. What was
fetched for a former owner is dropped three times over: by that owner's `drop_partition`, by the new
owner's `fetch_from`, and with all that the new owner was offered before it opened.

Not every offset holds a record: transactions leave markers, compaction leaves gaps. librdkafka
fetches in order and leaves out only what holds no record for a reader of committed ones. So a batch
also carries `begin_offset`, the end of the batch before it: no offset between that and its first
record holds one, and the log need not be asked. This is true of the log, for every owner. If a
batch is dropped on the way, the next one begins after the owner's position, and the owner asks. The
first batch after `fetch_from`, and after an error, begins with its own first record.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby, repeat
from operator import itemgetter
from typing import NamedTuple, cast

from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from sessionary.schemas.headers import header_pairs, read_headers
from sessionary.stream_processors.core.model import LogRecord
from sessionary.stream_processors.errors import Halted
from sessionary.stream_processors.settings import ProcessorSettings

_log = logging.getLogger(__name__)
FETCH_WAIT_MS = 10  # a fetch over idle partitions may wait this long before busy ones are fetched again
_BATCH_RECORDS = 4_000
_PENDING_BYTES_MAX = 8 << 20  # fetched and not yet folded; above it the thread waits, then takes more at once
_PENDING_WAIT_S = 0.1  # but not longer: the pending records may belong to a partition that is halted
_WAITING_MAX = 16  # batches not yet delivered on the event loop
_POLL_S = 0.02
_kind, _ms = itemgetter(0), itemgetter(1)  # of a message's timestamp
_LOG_APPEND_TIME = {TIMESTAMP_LOG_APPEND_TIME}
_new = tuple.__new__  # the same as a NamedTuple's own constructor, in half the time


class _LazyRecord(LogRecord):
    """A record that unpacks its headers when they are read, because only a refusal reads them."""

    __slots__ = ()

    @property
    def headers(self) -> Sequence[tuple[str, bytes]]:
        """The record's headers, in order; a header without a value is empty.

        `UNREADABLE_HEADERS` if they cannot be read.
        """
        return header_pairs(read_headers(cast(Message, self[4])))


Fault = tuple[Halted, int]  # no record from this offset on may be folded


class FetchedBatch(NamedTuple):
    """Records of one partition, in the order of offsets; at least one, or a fault.

    `fault`: no record from its offset on may be folded.
    """

    partition: int
    begin_offset: int  # from here to the last record's offset no other offset holds a record
    records: Sequence[LogRecord]
    fault: Fault | None


# Takes the first fields of a `FetchedBatch`; must not block.
Deliver = Callable[[int, int, Sequence[LogRecord]], None]
Halt = Callable[[int, Halted, int], None]  # takes a partition, its fault and the fault's offset; must not block


class Fetcher:
    """One worker's fetching.

    The commands of a partition may come from any thread and return at once; a thread executes them
    in order. Everything else belongs to the event loop. While delivery is held, fetching stops as
    soon as 16 batches wait.
    """

    def __init__(self, settings: ProcessorSettings) -> None:
        self._topic = settings.topics.events
        self._consumer = Consumer(
            {
                **settings.client_config(),
                "group.id": f"{settings.group_id}.reader",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                # If the log no longer holds the position, fetching must not go on elsewhere as if
                # nothing were left out; see `_take_error`.
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": FETCH_WAIT_MS,
                "queued.min.messages": 20_000,
                # How long a partition with a full queue rests. The default of 1 s capped a backlog
                # at some 36,000 records a second.
                "fetch.queue.backoff.ms": 5,
                "queued.max.messages.kbytes": 16_384,
            }
        )
        self._commands: deque[Callable[[], None]] = deque()
        self._next_offsets: dict[int, int] = {}  # after the last batch of a partition; the thread's own
        self._waiting: deque[FetchedBatch] = deque()
        self._pending_bytes = 0
        self._room = threading.Condition()  # guards the two above; notified when there is room for more
        self._delivery_held = False
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="fetcher", daemon=True)

    def start(self, deliver: Deliver, halt: Halt) -> None:
        """Start the thread. Call it on the event loop; `deliver` and `halt` are called there."""
        self._loop, self._deliver, self._halt = asyncio.get_running_loop(), deliver, halt
        self._thread.start()

    def close(self) -> None:
        """Stop the thread, waiting at most 5 s. What was not delivered is dropped."""
        with self._room:
            self._stopped = True
            self._room.notify()
        if self._thread.is_alive():
            self._thread.join(5.0)

    def hold_delivery(self) -> None:
        """Deliver nothing for now."""
        self._delivery_held = True

    def restart_delivery(self) -> None:
        """Deliver again, but not what waits: its owners are gone."""
        with self._room:
            self._waiting.clear()
            self._room.notify()
        self._delivery_held = False

    def add_pending_bytes(self, size: int) -> None:
        """Count bytes that wait to be folded; negative: that wait no longer."""
        with self._room:
            self._pending_bytes += size
            if self._pending_bytes < _PENDING_BYTES_MAX // 2:
                self._room.notify()

    def fetch_from(self, partition: int, offset: int) -> None:
        """Fetch a partition from `offset` on; drop what was fetched of it before."""

        def assign_partition() -> None:
            self._unassign_partition(partition)
            self._consumer.incremental_assign([TopicPartition(self._topic, partition, offset)])

        self._commands.append(assign_partition)

    def drop_partition(self, partition: int) -> None:
        """Stop fetching a partition; drop what was fetched of it."""
        self._commands.append(lambda: self._unassign_partition(partition))

    def pause_partition(self, partition: int) -> None:
        """Interrupt the fetching of a partition."""
        self._commands.append(lambda: self._consumer.pause(self._assigned_places(partition)))

    def resume_partition(self, partition: int) -> None:
        """Go on fetching a partition."""
        self._commands.append(lambda: self._consumer.resume(self._assigned_places(partition)))

    def _assigned_places(self, partition: int) -> list[TopicPartition]:
        return [place for place in self._consumer.assignment() if place.partition == partition]

    def _unassign_partition(self, partition: int) -> None:
        if places := self._assigned_places(partition):
            self._consumer.incremental_unassign(places)
        self._next_offsets.pop(partition, None)
        with self._room:
            kept = [fetched for fetched in self._waiting if fetched.partition != partition]
            self._waiting.clear()
            self._waiting.extend(kept)

    def _run(self) -> None:
        try:
            while not self._stopped:
                self._run_once()
        finally:
            self._consumer.close()

    def _run_once(self) -> None:
        while self._commands:
            command = self._commands.popleft()
            try:
                command()
            except KafkaException as error:
                _log.warning("fetching: %s", error.args[0])
        with self._room:
            if len(self._waiting) >= _WAITING_MAX:
                self._room.wait(_POLL_S)
                return
            if self._pending_bytes > _PENDING_BYTES_MAX:
                self._room.wait(_PENDING_WAIT_S)
        first = self._consumer.poll(_POLL_S)
        if first is None:
            return
        self._hand_over(first, self._consumer.consume(_BATCH_RECORDS, 0))

    def _hand_over(self, first: Message, more: Sequence[Message]) -> None:
        messages = [first, *more]
        failed = [message for message in messages if message.error() is not None]
        for message in failed:
            self._next_offsets.pop(message.partition() or 0, None)
        batches = [self._follow_up(*found) for found in _group_by_partition(messages)]
        for message in failed:
            self._take_error(message)
        with self._room:
            scheduled = bool(self._waiting)
            self._waiting.extend(batches)
        if not scheduled and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._deliver_waiting)

    def _follow_up(self, partition: int, records: Sequence[LogRecord], fault: Fault | None) -> FetchedBatch:
        """Return records as the batch that follows the partition's last one."""
        begin_offset = 0
        if records:
            first_offset = records[0].offset
            begin_offset = min(first_offset, self._next_offsets.get(partition, first_offset))
            self._next_offsets[partition] = records[-1].offset + 1
        if fault is not None:
            self._next_offsets.pop(partition, None)  # what follows in this fetch is left out
        return FetchedBatch(partition, begin_offset, records, fault)

    def _take_error(self, message: Message) -> None:
        """Go on after an error of one partition.

        If the log does not hold the position, librdkafka stops there. Then the owner is given the
        log's first record, and asks the log what became of those before it.
        """
        partition, error = message.partition() or 0, message.error()
        self._next_offsets.pop(partition, None)
        if error is None or error.code() != KafkaError._AUTO_OFFSET_RESET:
            return
        if places := self._assigned_places(partition):
            self._consumer.incremental_unassign(places)
            self._consumer.incremental_assign([TopicPartition(self._topic, partition, OFFSET_BEGINNING)])

    def _deliver_waiting(self) -> None:
        if self._delivery_held:
            return
        with self._room:
            waiting = tuple(self._waiting)
            self._waiting.clear()
            self._room.notify()
        for partition, begin_offset, records, fault in waiting:
            if records:
                self._deliver(partition, begin_offset, records)
            if fault is not None:
                self._halt(partition, *fault)


class _PartitionRecords(NamedTuple):
    """What one fetch holds of one partition."""

    partition: int
    records: Sequence[LogRecord]
    fault: Fault | None


def _group_by_partition(messages: list[Message]) -> list[_PartitionRecords]:
    """Return the records of each partition; log the messages that are errors."""
    if errors := [error for error in map(Message.error, messages) if error is not None]:
        for error in errors:
            _log_error(error)
        messages = [message for message in messages if message.error() is None]
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
    return [_PartitionRecords(partition, records, faults.get(partition)) for partition, records in batches.items()]


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
    return map(_new, repeat(_LazyRecord), fields)


def _log_error(error: KafkaError) -> None:
    """Log the error; librdkafka retries by itself."""
    _log.warning("fetching: %s", error.str())


__all__ = ["FETCH_WAIT_MS", "Deliver", "FetchedBatch", "Fetcher"]
