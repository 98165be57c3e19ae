"""Fetches the records of owned partitions with librdkafka and delivers them to the event loop.

Faust's consumer (aiokafka) keeps the group's membership. Its fetching would take a quarter of a
worker's time and hold the interpreter's lock. Here librdkafka's threads fetch and unpack records,
and one thread of ours turns them into tuples. The consumer belongs to no group: each partition's
owner sets the offset from which its partition is fetched.

    fetch_from → pause/resume_partition … → drop_partition    commands of a partition, in this order

A batch takes one step from this thread to its owner: a callback on the event loop. It carries no
generation, because none is needed. An offset of a log holds the same record for every owner; an
owner folds the records that follow its position, and asks the log before it skips an offset. A
former owner's records are dropped three times over: by that owner's `drop_partition`, by the new
owner's `fetch_from`, and with all that the new owner was offered before it opened.

Not every offset holds a record: transactions leave markers, compaction leaves gaps. librdkafka
fetches in order and leaves out only what holds no record for a reader of committed ones. So a batch
also carries `begin_offset`, the end of the batch before it: no offset between this end and its
first record holds one, and the log need not be asked. This is true for every owner. If a
batch is dropped on the way, the next one begins after the owner's position, and the owner asks. The
first batch after `fetch_from`, and after an error, begins with its own first record.

A client of librdkafka may lose its last broker for ever. So a consumer that delivers nothing of a
partition whose log grows is replaced; the new consumer continues where the former one stopped.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, cast

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from sessionary.schemas.kafka.clients import close_in_background, is_left_over
from sessionary.schemas.kafka.log_progress import LogProgress
from sessionary.schemas.telemetry.role_logs import error_fields, role_logger
from sessionary.schemas.topics import FETCH_BYTES_MAX
from sessionary.stream_processors.core.model import LogRecord
from sessionary.stream_processors.errors import Halted
from sessionary.stream_processors.runtime.pending_records import (
    Fault,
    bytes_of,
    cut_at_unreadable,
    fault_from,
    group_by_partition,
    split_messages,
)
from sessionary.stream_processors.settings import ProcessorSettings

_log = role_logger(__name__)
_BATCH_RECORDS = 1_000  # with 4,000 the first ones have left the core's cache before they are records
_PENDING_BYTES_MAX = 8 << 20  # fetched and not yet folded; above it the thread waits, then takes more at once
_PENDING_WAIT_S = 0.1  # but not longer: the pending records may belong to a partition that is halted
_WAITING_MAX = 16  # batches not yet delivered on the event loop
_WAITING_BYTES_MAX = 16 << 20  # of these; the records of one fetch may exceed it
# A record ends the waiting, so it costs no latency. But a partition that was resumed or added is
# left out until then. Each fetch names all partitions, for librdkafka has no fetch sessions: so the
# more there are, the longer one waits.
_FETCH_WAIT_MS = 100
_FETCH_WAIT_MS_MAX = 250
_POLL_S = 0.02
RENEW_S = 10.0  # a partition stands still for this long, although others can read its log: longer than any fetch


class FetchedBatch(NamedTuple):
    """Records of one partition, in the order of offsets; at least one, or a fault.

    `fault`: no record from its offset on may be folded.
    """

    partition: int
    begin_offset: int  # from here to the last record's offset no other offset holds a record
    records: Sequence[LogRecord]
    size: int  # `bytes_of` the records; counted here, while they are in this core's cache
    fault: Fault | None


class _Progress:
    """How far a partition was fetched."""

    __slots__ = ("is_paused", "next_offset", "next_record")

    def __init__(self, offset: int) -> None:
        self.next_offset = offset  # next one to be fetched
        self.next_record = offset  # the one after the last record: transaction markers may follow it
        self.is_paused = False


# Takes the first fields of a `FetchedBatch`; must not block.
Deliver = Callable[[int, int, Sequence[LogRecord], int], None]
Halt = Callable[[int, Halted, int], None]  # takes a partition, its fault and the fault's offset; must not block


class Fetcher:
    """One worker's fetching.

    The commands of a partition may come from any thread and return at once; a thread executes them
    in order. Everything else belongs to the event loop. While 16 batches wait for it, nothing is
    fetched.
    """

    def __init__(self, settings: ProcessorSettings, wall_clock_s: Callable[[], float] = time.time) -> None:
        """`wall_clock_s` returns this process's time, in seconds since the epoch."""
        self._wall_clock_s = wall_clock_s
        self._clock_ahead_s_max = settings.clock_ahead_s_max
        self._topic = settings.topics.events
        self._config = fetcher_config(settings)
        self._consumer = Consumer(self._config)
        self._commands: deque[Callable[[], None]] = deque()
        self._next_offsets: dict[int, int] = {}  # after the last batch of a partition; the thread's own
        self._believed_from: dict[int, int] = {}  # by assigned partition; the thread's own
        self._waiting: deque[FetchedBatch] = deque()
        self._pending_bytes = self._waiting_bytes = 0
        self._fetched: dict[int, _Progress] = {}  # of the partitions that are assigned
        self._room = threading.Condition()  # guards the four above; notified when there is room for more
        self._fetch_progress = LogProgress()
        self._observed_s = self._drained_s = time.monotonic()  # nothing fetched was left to be handed over
        self._stopped = False
        self.turned_s = time.monotonic()  # when the thread last began a turn
        self._thread = threading.Thread(target=self._run, name="fetcher", daemon=True)

    def start(self, deliver: Deliver, halt: Halt) -> None:
        """Start the thread. Call it on the event loop; `deliver` and `halt` are called there."""
        self._loop, self._deliver, self._halt = asyncio.get_running_loop(), deliver, halt
        self._thread.start()

    def close(self) -> None:
        """Stop the thread, waiting at most 5 s. Undelivered records are dropped."""
        with self._room:
            self._stopped = True
            self._room.notify()
        if self._thread.is_alive():
            self._thread.join(5.0)

    def add_pending_bytes(self, size: int) -> None:
        """Count bytes that wait to be folded; negative: that wait no longer."""
        with self._room:
            self._pending_bytes += size
            if self._pending_bytes < _PENDING_BYTES_MAX // 2:
                self._room.notify()

    def fetch_from(self, partition: int, offset: int, believed_from: int = 0) -> None:
        """Fetch a partition from `offset` on; drop the records fetched before.

        Below the offset `believed_from` a record may be stamped ahead of this process's clock.
        """

        def assign_partition() -> None:
            self._unassign_partition(partition)
            self._believed_from[partition] = believed_from
            with self._room:
                self._fetched[partition] = _Progress(offset)
            self._consumer.incremental_assign([TopicPartition(self._topic, partition, offset)])

        self._commands.append(assign_partition)

    def drop_partition(self, partition: int) -> None:
        """Stop fetching a partition; drop its fetched records."""
        self._commands.append(lambda: self._unassign_partition(partition))

    def pause_partition(self, partition: int) -> None:
        """Interrupt the fetching of a partition."""
        self._commands.append(lambda: self._set_paused(partition, paused=True))

    def resume_partition(self, partition: int) -> None:
        """Resume the fetching of a partition."""
        self._commands.append(lambda: self._set_paused(partition, paused=False))

    def skip_markers(self, partition: int, position: int) -> int:
        """Return the offset below which nothing is left to fold, if `position` is the next one.

        It is beyond `position` if only transaction markers and records of aborted transactions lie
        between. Any thread may ask.
        """
        with self._room:
            fetched = self._fetched.get(partition)
            return position if fetched is None or position < fetched.next_record else fetched.next_offset

    def fetched_to(self, partition: int) -> int | None:
        """Return the next offset to be fetched; None if the partition is not fetched."""
        with self._room:
            fetched = self._fetched.get(partition)
            return None if fetched is None else fetched.next_offset

    def renew_if_stuck(self, log_ends: Mapping[int, int], now_s: float) -> bool:
        """Replace the consumer if a partition has stood still for 10 s although its log grows.

        `log_ends`: of the partitions that answered another client. Returns True if the consumer is
        to be replaced; delivered records stay. Call it every few seconds; `now_s` is monotonic.
        """
        with self._room:
            # If fetched records are not handed over, this process is slow, not the consumer.
            drained, self._observed_s = self._drained_s >= self._observed_s, now_s
            positions = {
                partition: fetched.next_offset for partition, fetched in self._fetched.items() if not fetched.is_paused
            }
        self._fetch_progress.observe(positions if drained else {}, log_ends, now_s)
        stuck = self._fetch_progress.stalled_partitions(now_s, RENEW_S)
        if not stuck:
            return False
        reported = ", ".join(f"partition {partition} {stalled}" for partition, stalled in stuck.items())
        _log.error(
            "the fetcher stands still and begins again with a new client: %(stalled)s",
            stalled=reported,
            partitions=sorted(stuck),
        )
        self._fetch_progress = LogProgress()
        self._commands.append(self._renew_consumer)
        return True

    @property
    def still_s(self) -> float:
        """For how long the thread has stood still, in seconds; a turn takes 0.1 s or less."""
        return time.monotonic() - self.turned_s

    def _assigned_places(self, partition: int) -> list[TopicPartition]:
        return [place for place in self._consumer.assignment() if place.partition == partition]

    def _set_paused(self, partition: int, *, paused: bool) -> None:
        with self._room:
            if (fetched := self._fetched.get(partition)) is not None:
                fetched.is_paused = paused
        change = self._consumer.pause if paused else self._consumer.resume
        change(self._assigned_places(partition))

    def _renew_consumer(self) -> None:
        close_in_background(self._consumer)
        self._consumer = Consumer(self._config)
        with self._room:
            fetched = list(self._fetched.items())
        self._consumer.incremental_assign(
            [TopicPartition(self._topic, number, one.next_offset) for number, one in fetched]
        )
        self._consumer.pause([TopicPartition(self._topic, number) for number, one in fetched if one.is_paused])

    def _unassign_partition(self, partition: int) -> None:
        if places := self._assigned_places(partition):
            self._consumer.incremental_unassign(places)
        self._next_offsets.pop(partition, None)
        self._believed_from.pop(partition, None)
        with self._room:
            self._fetched.pop(partition, None)
            kept = [fetched for fetched in self._waiting if fetched.partition != partition]
            self._waiting.clear()
            self._waiting.extend(kept)
            self._waiting_bytes = sum(fetched.size for fetched in kept)

    def _run(self) -> None:
        try:
            while not self._stopped:
                self._run_once()
        finally:
            self._consumer.close()

    def _run_once(self) -> None:
        self.turned_s = time.monotonic()
        while self._commands:
            command = self._commands.popleft()
            try:
                command()
            except KafkaException as error:
                _log.warning("the fetcher continues after an error: %(error)s", **error_fields(error))
        with self._room:
            if len(self._waiting) >= _WAITING_MAX or self._waiting_bytes > _WAITING_BYTES_MAX:
                self._room.wait(_POLL_S)
                return
            if self._pending_bytes > _PENDING_BYTES_MAX:
                self._room.wait(_PENDING_WAIT_S)
        first = self._consumer.poll(_POLL_S)
        more = self._consumer.consume(_BATCH_RECORDS, 0) if first is not None else []
        if len(more) < _BATCH_RECORDS:
            self._drained_s = time.monotonic()
        if first is not None:
            self._hand_over(first, more)

    def _hand_over(self, first: Message, more: Sequence[Message]) -> None:
        messages, (errors, ends) = split_messages([first, *more])
        for message in errors:
            self._next_offsets.pop(message.partition() or 0, None)
        groups = group_by_partition(messages, self._wall_clock_s(), self._clock_ahead_s_max, self._believed_from)
        batches = [self._follow_up(*found) for found in cut_at_unreadable(groups, errors)]
        with self._room:
            scheduled = bool(self._waiting)
            self._waiting.extend(batches)
            self._waiting_bytes += sum(batch.size for batch in batches)
            self._note_progress(batches, ends)
        for message in errors:
            self._take_error(message)
        if batches and not scheduled and not self._loop.is_closed():
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
            if (fetched := self._fetched.get(partition)) is not None:
                # A batch that cannot be read may begin before what is wanted of it.
                fault = fault_from(fault, fetched.next_offset)
        return FetchedBatch(partition, begin_offset, records, bytes_of(records), fault)

    def _take_error(self, message: Message) -> None:
        """Log an error, and continue after an error of a partition; librdkafka retries what it may.

        If the log does not hold the position, librdkafka stops there. Then the owner gets the log's
        first record, and asks the log about the records before it. If it is another offset that the
        log does not hold, the position is assigned once more.
        """
        partition, error = message.partition() or 0, cast(KafkaError, message.error())
        _log.warning(
            "the fetcher continues after an error of partition %(partition)d: %(error)s",
            partition=partition,
            offset=message.offset(),
            **error_fields(error),
        )
        self._next_offsets.pop(partition, None)
        if error.code() != KafkaError._AUTO_OFFSET_RESET:
            return
        if places := self._assigned_places(partition):
            begin = OFFSET_BEGINNING
            if (fetched := self._fetched.get(partition)) is not None and is_left_over(message, fetched.next_offset):
                begin = fetched.next_offset
            self._consumer.incremental_unassign(places)
            self._consumer.incremental_assign([TopicPartition(self._topic, partition, begin)])

    def _note_progress(self, batches: Sequence[FetchedBatch], ends: Mapping[int, int]) -> None:
        for batch in batches:
            if batch.records and (fetched := self._fetched.get(batch.partition)) is not None:
                fetched.next_offset = fetched.next_record = batch.records[-1].offset + 1
        faulty = {batch.partition for batch in batches if batch.fault is not None}
        for partition, end in ends.items():
            if partition not in faulty and (fetched := self._fetched.get(partition)) is not None:
                fetched.next_offset = max(fetched.next_offset, end)

    def _deliver_waiting(self) -> None:
        with self._room:
            waiting = tuple(self._waiting)
            self._waiting.clear()
            self._waiting_bytes = 0
            self._room.notify()
        for partition, begin_offset, records, size, fault in waiting:
            if records:
                self._deliver(partition, begin_offset, records, size)
            if fault is not None:
                self._halt(partition, *fault)


def fetch_wait_ms(partitions: int) -> int:
    """Return how long a fetch may wait for a record, if the topic has so many partitions."""
    return min(_FETCH_WAIT_MS_MAX, max(_FETCH_WAIT_MS, partitions))


def fetcher_config(settings: ProcessorSettings) -> dict[str, str | int | float | bool]:
    """Return the librdkafka configuration of a worker's fetching."""
    # If the log no longer holds the position, fetching must not continue elsewhere as if nothing
    # were left out: the reader's `auto.offset.reset` is an error; see `_take_error`.
    # The queue's bounds count unpacked records, and are compared before a fetch.
    return {
        **settings.reader_config(),
        "queued.min.messages": 20_000,
        "queued.max.messages.kbytes": 16_384,
        "fetch.max.bytes": FETCH_BYTES_MAX,
        "fetch.wait.max.ms": fetch_wait_ms(settings.partitions),
    }
