"""Decisions about a halted partition: repairs of clocks, skips, gaps and truncations.

The time of a partition's leader is the stamp of a tick that is sent to the partition.
"""

import asyncio
import bisect
import functools
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final, NamedTuple

from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from sessionary.schemas.codec import encode_record
from sessionary.schemas.kafka.clients import discard_producer, is_left_over, is_unreadable_batch
from sessionary.schemas.records import Position, Tick
from sessionary.schemas.telemetry.role_logs import error_fields, role_logger
from sessionary.stream_processors.core.model import (
    RECORD_OVERHEAD_BYTES,
    ClockSetting,
    LogRecord,
    Rebuild,
    SkippedOffsets,
)
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.errors import Halted, Lost
from sessionary.stream_processors.runtime.changelog import reader_of
from sessionary.stream_processors.runtime.log_probe import LogProbe, probe_log
from sessionary.stream_processors.runtime.open_batch import OpenBatch
from sessionary.stream_processors.runtime.pending_records import to_record
from sessionary.stream_processors.runtime.worker_context import WorkerContext
from sessionary.stream_processors.settings import ProcessorSettings

# Between broker and worker, for a repair: less than what is taken for an outage.
CLOCKS_APART_S_MAX: Final = 5.0
_ASK_BROKER_S = 8.0


class BrokerTime(NamedTuple):
    """A tick's place and stamp, and how far that is ahead of this process's clock.

    `ahead_s` is 0 if the stamp lies between sending and acknowledgement, and negative before.
    """

    offset: int
    stamp_ms: int
    ahead_s: float


def read_broker_time(settings: ProcessorSettings, partition: int) -> BrokerTime:
    """Send a tick to a partition of the events topic, and return its place and stamp.

    Blocks for up to 8 s. Raises `Lost` if it is not acknowledged, or not stamped by the broker.
    """
    reported: list[tuple[KafkaError | None, Message]] = []
    producer = Producer(
        {**settings.client_config(), "linger.ms": 0, "message.timeout.ms": int(_ASK_BROKER_S * 1_000), "retries": 0}
    )
    try:
        sent_ms = time.time() * 1_000
        producer.produce(
            settings.topics.events,
            encode_record(Tick(settings.worker_name)),
            partition=partition,
            on_delivery=lambda error, message: reported.append((error, message)),
        )
        producer.flush(_ASK_BROKER_S)
        heard_ms = time.time() * 1_000
    except (BufferError, KafkaException) as error:
        raise Lost(f"partition {partition}: a tick was not sent: {error}") from error
    finally:
        discard_producer(producer)
    if not reported or reported[0][0] is not None:
        raise Lost(f"partition {partition}: a tick was not acknowledged: {reported[0][0] if reported else 'no answer'}")
    message = reported[0][1]
    kind, stamp_ms = message.timestamp()
    if kind != TIMESTAMP_LOG_APPEND_TIME:
        raise Lost(f"partition {partition}: the broker does not stamp events: run sessionary topics apply")
    ahead_ms = max(0.0, stamp_ms - heard_ms) + min(0.0, stamp_ms - int(sent_ms))
    return BrokerTime(message.offset() or 0, stamp_ms, ahead_ms / 1_000)


# Reads the records that an operator skips: for their bytes, and for the stamp of the last one.
#
# A batch that cannot be read is skipped as a whole. Its last offset is found by fetching from
# other offsets: from within the batch, the same batch is reported again.


# Bounds of one transaction; the remaining records follow in the next one.
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
    is_past_unreadable: bool = False  # whether a batch that cannot be read is between


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


def read_each(
    settings: ProcessorSettings, partition: int, first_offset: int, last_offset: int
) -> Iterator[SkippedRecords]:
    """Yield all records of the events topic between two offsets, both included, in parts.

    Blocks. Raises `Lost` if the broker does not answer.
    """
    reader, place = reader_of(settings), TopicPartition(settings.topics.events, partition, first_offset)
    try:
        while place.offset <= last_offset:
            reader.assign([place])
            read = _read_up_to(reader, partition, place.offset, last_offset)
            if read.next_offset <= place.offset:
                raise Lost(f"events of partition {partition}: nothing can be read from offset {place.offset} on")
            yield read
            place.offset = read.next_offset
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
        if is_left_over(message, next_offset):
            reader.assign([TopicPartition(message.topic() or "", partition, next_offset)])  # fetching stopped there
            continue
        heard_s, offset = time.monotonic(), message.offset() or 0
        if is_unreadable_batch(message):
            first_unread = max(offset, next_offset)
            if records or first_unread > last_offset:
                return SkippedRecords(records, min(first_unread, last_offset + 1))
            return SkippedRecords([], _find_batch_end(reader, message, first_unread) + 1, is_past_unreadable=True)
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
        if is_left_over(message, offset):
            reader.assign([place])  # fetching stopped there
            continue
        if is_unreadable_batch(message):
            return message.offset() == report.offset()
        if (error := message.error()) is None or error.code() == KafkaError._PARTITION_EOF:
            return False
        raise KafkaException(error)
    raise Lost(f"events of partition {partition}: nothing read at offset {offset} for {_SILENCE_MAX_S:g} s")


# A log that was cut below the position: fills it up to there, and finds what must not be folded.
#
# A partition's offsets are identities: of audit records, rejected events, rows of history, and
# sinks' commits. So no offset is folded twice. A log that ends below the position is filled with
# ticks up to the position. Records below the position that were appended since the loss have
# offsets of folded records; they are left unfolded.


FILL_MAX = 1_000_000  # offsets; a log that lost more is no loss of its last records
_SEND_S = 30.0
_SEND_POLL_S = 5.0


def fill_log(settings: ProcessorSettings, partition: int, log: LogProbe, next_offset: int) -> None:
    """Append ticks until the log ends at `next_offset` or later.

    Blocks for up to 30 s. Raises `Lost` if they are not acknowledged, and `Halted` if more than
    `FILL_MAX` are needed.
    """
    missing = next_offset - log.end_offset
    if missing > FILL_MAX:
        raise Halted(
            "log_truncated",
            f"partition {partition}: its log lacks {missing:,} offsets, and at most {FILL_MAX:,} are filled. Bring the "
            "replica back that has them. If the events are gone for good, begin with another SESSIONARY_TOPIC_PREFIX",
        )
    producer = Producer({**settings.client_config(), "linger.ms": 5, "message.timeout.ms": int(_SEND_S * 1_000)})
    failures: list[KafkaError] = []
    try:
        tick = encode_record(Tick(settings.worker_name))
        for _ in range(missing):
            while True:
                try:
                    producer.produce(
                        settings.topics.events,
                        tick,
                        partition=partition,
                        on_delivery=lambda error, _: failures.append(error) if error is not None else None,
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
            producer.poll(0)
        left = producer.flush(_SEND_S)
    except KafkaException as error:
        raise Lost(f"partition {partition}: ticks were not sent: {error.args[0]}") from error
    finally:
        discard_producer(producer)
    if left or failures:
        raise Lost(f"partition {partition}: ticks were not acknowledged: {failures[0] if failures else 'no answer'}")


class _ReplacedOffsets:
    """For each offset from the log's start on: whether its record was appended after the loss."""

    def __init__(self, reader: Consumer, topic: TopicPartition, position: Position) -> None:
        self._reader, self._topic, self._position = reader, topic, position

    def __len__(self) -> int:
        return self._position.next_offset

    def __getitem__(self, offset: int) -> bool:
        self._topic.offset = offset
        self._reader.assign([self._topic])
        message = self._reader.poll(_SEND_POLL_S)
        if message is None:
            raise Lost(f"events of partition {self._topic.partition}: nothing read at offset {offset}")
        if (error := message.error()) is not None:
            if error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            return True
        epoch, known = message.leader_epoch(), self._position.leader_epoch
        if epoch is not None and known is not None:
            return epoch > known
        return message.timestamp()[1] > self._position.clock_ms


def find_replaced(settings: ProcessorSettings, partition: int, position: Position, start_offset: int) -> int:
    """Return the first offset below the position whose record was appended after the loss.

    The log must reach the position. Without a leader epoch in the position, the records are
    recognised by their stamps: those that were folded are not after its clock. Blocks. Raises
    `Lost` without an answer.
    """
    reader = reader_of(settings)
    try:
        replaced = _ReplacedOffsets(reader, TopicPartition(settings.topics.events, partition), position)
        return bisect.bisect_left(replaced, x=True, lo=start_offset)
    except KafkaException as error:
        raise Lost(f"events of partition {partition}: {error.args[0]}") from error
    finally:
        reader.close()


# An operator's decision about a halted partition, from its opening until it is committed.
#
# A decision is handed to a new owner of the partition, which carries it out once and forgets it. If
# that owner loses the partition before, and the worker opens it again, the next owner has it:
#
# - A gap of the log, or its truncation, is accepted, or the clock is set, while the partition
#   opens, before anything is folded.
# - Records are skipped once all records before them are folded and committed.
# - Rows are rebuilt if the partition cannot be opened with those that its changelog has.


_log = role_logger(__name__)
_FETCH_PAUSE_S = 1.0


class GapAcceptance(NamedTuple):
    """Events that were deleted before they were folded are given up."""

    reason: str  # for people
    principal: str  # who decided it


class RecordSkip(NamedTuple):
    """Records are not folded: those from `first_offset` to `last_offset`, both included."""

    first_offset: int
    last_offset: int
    reason: str  # for people
    principal: str  # who decided it
    fault: Halted  # why the partition is halted at `first_offset`


class TruncationAcceptance(NamedTuple):
    """The truncation of a log is accepted; records below the position are not folded."""

    reason: str  # for people
    principal: str  # who decided it


OperatorDecision = GapAcceptance | RecordSkip | TruncationAcceptance | ClockSetting | Rebuild
# Commits an empty batch that carries the decision. If the transaction aborts, the position stays.
CommitDecision = Callable[[Callable[[OpenBatch], None]], Awaitable[None]]


class PendingDecision:
    """A decision until it is carried out. Belongs to the event loop.

    `left`: the decision; None once it is carried out, or rejected by a halt that says so.
    `is_reached`: the next record of the log is one to be skipped, as far as is known.
    """

    def __init__(self, context: WorkerContext, partition: int, decision: OperatorDecision | None) -> None:
        self._context = context
        self._partition = partition
        self.left = decision
        self.is_reached = False

    def cut_records(self, records: Sequence[LogRecord]) -> Sequence[LogRecord]:
        """Return the fetched records that are to be folded before the decision is due."""
        skip = self.left
        if not isinstance(skip, RecordSkip) or records[-1].offset < skip.first_offset:
            return records
        self.is_reached = True
        return [record for record in records if record.offset < skip.first_offset]

    def covers_halt(self, offset: int | None) -> bool:
        """Return whether the operator decided about a halt at `offset`."""
        skip = self.left
        if not isinstance(skip, RecordSkip) or offset is None or not skip.first_offset <= offset <= skip.last_offset:
            return False
        self.is_reached = True
        return True

    async def carry_out_at_opening(self, state: PartitionState, commit: CommitDecision) -> None:
        """Carry out a decision that needs no record to be folded first.

        Raises `Lost`, and `Halted` if it cannot be carried out.
        """
        decision = self.left
        if decision is None or isinstance(decision, RecordSkip):
            return
        if isinstance(decision, Rebuild):
            _log.warning(
                "partition %(partition)d is not rebuilt: nothing is wrong with its rows any more",
                partition=self._partition,
                offset=state.position.next_offset,
            )
        elif isinstance(decision, GapAcceptance):
            await self._accept_gap(decision, state, commit)
        elif isinstance(decision, TruncationAcceptance):
            await self._accept_truncation(decision, state, commit)
        else:
            await self._set_clock(decision, state, commit)
        self.left = None

    async def _set_clock(self, setting: ClockSetting, state: PartitionState, commit: CommitDecision) -> None:
        former = state.position.clock_repairs
        if not state.may_repair_clock:
            _log.warning(
                "partition %(partition)d: its clock is not set: a record is folded in parts, or it was set just now",
                partition=self._partition,
                offset=state.position.next_offset,
            )
            return
        _log.warning(
            "partition %(partition)d: its clock is set from %(former_ms)d to %(clock_ms)d ms, because "
            "%(principal)s decided so: %(why)s",
            former_ms=state.position.clock_ms,
            clock_ms=setting.clock_ms,
            why=setting.reason,
            partition=self._partition,
            offset=state.position.next_offset,
            principal=setting.principal,
        )
        while state.position.clock_repairs == former:
            await commit(lambda batch: batch.set_clock(setting))

    async def _accept_gap(self, decision: GapAcceptance, state: PartitionState, commit: CommitDecision) -> None:
        """Move the position to the log's start."""
        while True:
            position = state.position
            log = await self._probe_log(position.next_offset)
            if position.next_offset >= log.start_offset:
                return
            skip = SkippedOffsets(
                "log_gap_accepted", log.start_offset, position.clock_ms, decision.reason, decision.principal
            )
            _log_skip(self._partition, position, skip)
            # Whatever the log lost below its new beginning is given up too.
            await commit(functools.partial(OpenBatch.skip_offsets, skip=skip, leader_epoch=None, ends_truncation=True))

    async def _accept_truncation(
        self, decision: TruncationAcceptance, state: PartitionState, commit: CommitDecision
    ) -> None:
        """Let the log reach the position, and leave its records since the loss unfolded.

        The last transaction names the leader epoch of the record below the position, so that the
        loss is no longer found. Before that, all of it may be repeated.
        """
        position, settings, run = state.position, self._context.settings, self._context.run_blocking
        log = await self._probe_log(position.next_offset)
        if position.next_offset < log.start_offset:
            return  # the log begins later, which is another decision
        if log.find_truncation(self._partition, position) is None and (
            position.log_truncated is None or log.shows_folded_record(position)
        ):
            return  # the replica that has the records is back
        # The smallest end that was seen: from there on, records are not the folded ones.
        known = [] if position.log_lost_from is None else [position.log_lost_from]
        lost_from = min(log.end_offset, position.next_offset - 1, *known)
        while log.end_offset < position.next_offset:
            await run(fill_log, settings, self._partition, log, position.next_offset)
            former_end, log = log.end_offset, await self._probe_log(position.next_offset)
            if log.end_offset <= former_end:
                raise Halted(
                    "log_truncated",
                    f"partition {self._partition}: its log was filled up to offset {position.next_offset}, but can be "
                    f"read only up to {former_end}: an open transaction lies there, whose end was lost. Abort it with "
                    "Kafka's kafka-transactions tool, then accept the truncation again",
                )
        first = min(lost_from, await run(find_replaced, settings, self._partition, position, log.start_offset))
        while first < position.next_offset:
            begin, read = max(first, log.start_offset), SkippedRecords([], position.next_offset)
            if begin < position.next_offset:  # else the log begins at the position by now
                read = await run(read_records, settings, self._partition, begin, position.next_offset - 1)
                if read.next_offset <= begin:
                    raise Lost(f"partition {self._partition}: nothing can be read from offset {begin} on")
            skip = _replaced_offsets(decision, state.position, first, read, time.time())
            _log_skip(self._partition, state.position, skip)
            is_last = read.next_offset >= position.next_offset
            epoch = log.previous.leader_epoch if is_last and log.previous is not None else position.leader_epoch
            former = state.position.batch_number
            await commit(
                functools.partial(OpenBatch.skip_offsets, skip=skip, leader_epoch=epoch, ends_truncation=is_last)
            )
            if state.position.batch_number != former:  # else it aborted
                first = read.next_offset

    async def skip_records(self, state: PartitionState, commit: CommitDecision) -> bool:
        """Skip the records of the decision, in one or several transactions.

        Returns False if an earlier record is not folded yet: it is to be fetched. Raises `Lost`,
        and `Halted` if the records cannot be skipped.
        """
        skip = self.left
        assert isinstance(skip, RecordSkip)
        log = await self._probe_log(skip.first_offset)
        if log.end_offset <= skip.last_offset:
            raise _reject_skip(skip, f"the log ends at {log.end_offset}")
        while state.position.next_offset <= skip.last_offset:
            position = state.position
            read = await self._context.run_blocking(
                read_records, self._context.settings, self._partition, position.next_offset, skip.last_offset
            )
            if read.records and read.records[0].offset < skip.first_offset:
                self.is_reached = False
                await asyncio.sleep(_FETCH_PAUSE_S)
                return False
            if read.next_offset <= max(position.next_offset, skip.first_offset):
                raise _reject_skip(skip, f"nothing can be read from offset {read.next_offset} on")
            skipped = _skipped_offsets(skip, position, read, time.time())
            _log_skip(self._partition, position, skipped)
            epoch = read.records[-1].leader_epoch if read.records else position.leader_epoch
            await commit(functools.partial(OpenBatch.skip_offsets, skip=skipped, leader_epoch=epoch))
        self.left, self.is_reached = None, False
        return True

    async def _probe_log(self, offset: int) -> LogProbe:
        return await self._context.run_blocking(probe_log, self._context.settings, self._partition, offset)


def _skipped_offsets(skip: RecordSkip, position: Position, read: SkippedRecords, wall_s: float) -> SkippedOffsets:
    """Return the offsets of a skip to commit. Raises `Halted` if the clock would pass `wall_s`.

    The next opening must not mistake the skipped records for a truncation. It recognises them by
    their leader epoch; without one, only by a stamp that is not after the clock.
    """
    clock_ms, last = position.clock_ms, read.records[-1] if read.records else None
    if last is not None and last.leader_epoch is None:
        clock_ms = max(clock_ms, last.timestamp_ms)
        ahead_s = last.timestamp_ms / 1_000 - wall_s
        if clock_ms > position.clock_ms and ahead_s > 0:
            raise _reject_skip(
                skip,
                f"offset {last.offset} is stamped {ahead_s:,.1f} s ahead of this worker's clock, which the "
                "partition's clock would have to follow. Try again after that time, or skip up to an "
                "offset (--to) whose stamp is right",
                ahead_s,
            )
    return SkippedOffsets("records_skipped", read.next_offset, clock_ms, skip.reason, skip.principal, read.records)


def _replaced_offsets(
    decision: TruncationAcceptance, position: Position, first: int, read: SkippedRecords, wall_s: float
) -> SkippedOffsets:
    """Return the offsets of a truncation to commit: records from `first` on that are not folded.

    The next opening must not find the truncation again. It recognises the records by their leader
    epoch; without one, only by a clock that is not behind their stamps. Raises `Halted` if the
    clock would pass `wall_s`.
    """
    clock_ms, last = position.clock_ms, read.records[-1] if read.records else None
    if last is not None and last.leader_epoch is None:
        clock_ms = max(clock_ms, last.timestamp_ms)
        if clock_ms > position.clock_ms and (ahead_s := last.timestamp_ms / 1_000 - wall_s) > 1.0:
            raise Halted(
                "log_truncated",
                f"offset {last.offset} is stamped {ahead_s:,.1f} s ahead of this worker's clock, which the partition's "
                "clock would have to follow. Accept the truncation after that time",
                ahead_s,
            )
    events = [record for record in read.records if record.key is not None]  # the others are ticks
    return SkippedOffsets(
        "log_truncation_accepted",
        position.next_offset,
        clock_ms,
        decision.reason,
        decision.principal,
        events,
        (first, min(read.next_offset, position.next_offset) - 1),
    )


def _reject_skip(skip: RecordSkip, why: str, clears_in_s: float | None = None) -> Halted:
    fault, what = skip.fault, f"offsets {skip.first_offset} to {skip.last_offset} are not skipped"
    clears = fault.clears_in_s if clears_in_s is None else clears_in_s
    halted = Halted(fault.reason, f"{what}: {why}. Halted by this: {fault.detail}", clears, fault.offset, fault.key)
    _log.warning("a skip is rejected: %(error)s", offset=skip.first_offset, **error_fields(halted))
    return halted


def _log_skip(partition: int, position: Position, skip: SkippedOffsets) -> None:
    _log.warning(
        "partition %(partition)d continues at offset %(offset)d, not at %(former_offset)d (%(decision)s), "
        "because %(principal)s decided so: %(why)s",
        former_offset=position.next_offset,
        decision=skip.event_type,
        why=skip.reason,
        partition=partition,
        offset=skip.next_offset,
        principal=skip.principal,
    )
