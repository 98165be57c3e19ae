"""Asks the broker about a partition's log: its range of offsets, and the records at a position.

A log that lost records which were folded already (an unclean leader election, a power loss) is
recognised by one of three signs:

- It ends below the position.
- It has grown past the position since. Then the record below the position is not the folded one.
  It was stamped later than the position's clock, which is the maximum of the folded stamps.
- Or it was written under a later leader epoch than the folded record.

The last sign is exact, if the broker reports the epochs. The second sign fails if the new leader's
clock is behind the former one's, and the log grew past the position within this difference.
"""

import contextlib
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from sessionary.schemas.codec import Decoder
from sessionary.schemas.errors import DecodeError
from sessionary.schemas.kafka.clients import is_left_over, is_unreadable_batch
from sessionary.schemas.records import BatchAcknowledged, BatchRecord, Position
from sessionary.stream_processors.core.clock import believed_from
from sessionary.stream_processors.errors import Halted, Lost
from sessionary.stream_processors.runtime.changelog import reader_of
from sessionary.stream_processors.runtime.log_identity import is_other_topic
from sessionary.stream_processors.settings import ProcessorSettings

_PROBE_S = 5.0
_REPEAT_AFTER_S = 2.0
_LAST_OFFSETS = 100  # of `batches`, where each transaction leaves two, and an acknowledgement


class RecordStamp(NamedTuple):
    """The values that distinguish a record from another one at the same offset."""

    timestamp_ms: int
    leader_epoch: int | None  # of the leader that appended it; None: unknown


class LogProbe(NamedTuple):
    """The broker's answer."""

    start_offset: int  # the log's first offset
    end_offset: int  # the offset that its next record will have
    first_offset: int | None = None  # of the first record at or after the offset asked for; None: there is none
    previous: RecordStamp | None = None  # of the record below the offset asked for; None: there is none

    def check_position(self, partition: int, position: Position) -> None:
        """Raise `Halted` if the log lacks the records after `position`, or was cut below it."""
        if position.next_offset < self.start_offset:
            raise Halted(
                "log_gap",
                f"partition {partition}: next is offset {position.next_offset}, but the log holds "
                f"{self.start_offset} to {self.end_offset}: records were deleted before they were folded. "
                f"Give them up: sessionary partition accept-gap {partition}",
            )
        if (fault := self.find_truncation(partition, position)) is not None:
            raise fault

    def shows_folded_record(self, position: Position) -> bool:
        """Return whether the record below `position` is, for certain, the one that was folded.

        A log that was cut and has grown past the position may show no sign of it. So a loss that
        was found is over only if the log proves it: one leader appends one record at an offset. If
        the broker gives topics no ids, the log may be that of another topic, whose epochs begin
        again; its record is a later one. The probe must have been made for the position's offset.
        """
        if (
            self.previous is None
            or position.leader_epoch is None
            or self.previous.leader_epoch != position.leader_epoch
        ):
            return False
        return position.events_topic_id is not None or not self._is_stamped_later(position)

    def _is_stamped_later(self, position: Position) -> bool:
        """Return whether the record below the position has a stamp that counts, after the clock."""
        if self.previous is None or position.next_offset <= believed_from(position.clock_repairs):
            return False
        return self.previous.timestamp_ms > position.clock_ms

    def find_truncation(self, partition: int, position: Position, leader_epoch_max: int | None = None) -> Halted | None:
        """Return the fault if the log lacks records below `position` that were folded, or None.

        The probe must have been made for the position's offset. `leader_epoch_max`: the leader
        epoch at a time when the position was this one already.
        """
        next_offset = position.next_offset
        if self.end_offset < next_offset:
            return log_truncated(partition, next_offset, f"the log ends at {self.end_offset}", self.end_offset)
        if self.previous is None:
            return None
        stamp_ms, epoch = self.previous
        if position.leader_epoch is not None and epoch is not None:
            leader_epoch_max = position.leader_epoch
        elif self._is_stamped_later(position):
            return log_truncated(
                partition,
                next_offset,
                f"offset {next_offset - 1} now has a record of {stamp_ms} ms, after the last folded one "
                f"({position.clock_ms} ms); the log ends at {self.end_offset}",
            )
        if leader_epoch_max is not None and epoch is not None and epoch > leader_epoch_max:
            return log_truncated(
                partition,
                next_offset,
                f"offset {next_offset - 1} now has a record of leader epoch {epoch}, but was folded in epoch "
                f"{leader_epoch_max} or before; the log ends at {self.end_offset}",
            )
        return None


class LogTruncated(Halted):
    """A log was cut below the position. `lost_from`: its first lost offset; None if unknown."""

    def __init__(self, detail: str, lost_from: int | None) -> None:
        super().__init__("log_truncated", detail)
        self.lost_from = lost_from


def log_truncated(partition: int, next_offset: int, found: str, lost_from: int | None = None) -> LogTruncated:
    """Return the fault of a log that was cut below a position; `found` is how that shows."""
    return LogTruncated(
        f"partition {partition}: all records below offset {next_offset} are folded, but {found}. Possible causes: the "
        "broker lost folded records (unclean leader election, or power loss), or other records were copied here. What "
        "is appended below that offset would never be folded. Bring the replica that has them back, or go on without: "
        f"sessionary partition accept-truncation {partition}",
        lost_from,
    )


def probe_log(settings: ProcessorSettings, partition: int, offset: int) -> LogProbe:
    """Ask for a partition of the events topic, and for the records around `offset`.

    A log that ends below `offset` is asked again after 2 s: a new leader's answer may be old. A
    batch that cannot be read counts as its first record.
    Blocks. Raises `Lost` without an answer.
    """
    reader = reader_of(settings)
    try:
        topic = TopicPartition(settings.topics.events, partition, offset)
        log = LogProbe(*_offset_range(reader, topic))
        if log.end_offset < offset:
            time.sleep(_REPEAT_AFTER_S)
            log = LogProbe(*_offset_range(reader, topic))
        if not log.start_offset <= offset <= log.end_offset:
            return log
        topic.offset = max(log.start_offset, offset - 1)
        reader.assign([topic])
        message = _next_message(reader, topic)
        if message is not None and is_unreadable_batch(message):
            # The record below may be in a batch that cannot be read, and shows nothing then.
            topic.offset = offset
            reader.assign([topic])
            message = _next_message(reader, topic) if offset < log.end_offset else None
        elif message is not None and (message.offset() or 0) < offset:
            log = log._replace(previous=RecordStamp(message.timestamp()[1], message.leader_epoch()))
            topic.offset = offset
            message = _next_message(reader, topic) if offset < log.end_offset else None
        return log if message is None else log._replace(first_offset=max(offset, message.offset() or 0))
    except KafkaException as error:
        raise Lost(f"events of partition {partition}: {error.args[0]}") from error
    finally:
        reader.close()


def find_traces(settings: ProcessorSettings, topics: Iterable[str], partition: int, position: Position) -> list[str]:
    """Return what shows that a partition was folded beyond `position`, a phrase each.

    `topics`: those on which its transactions leave records. If there is no position (batch 0), that
    are the group's offset and any of these records. Otherwise it is a later record on `batches`;
    the group's offset counts ticks that waited for their commit. What an aborted transaction left
    shows nothing, nor what a worker of former topics, which had other ids, left in these. Blocks.
    Raises `Lost` without an answer.
    """
    # A consumer of the group that never joins it may ask for the group's offsets.
    reader = Consumer({**settings.reader_config(), **settings.opening_config(), "group.id": settings.group_id})
    try:
        if position.batch_number:
            batches = TopicPartition(settings.topics.batches, partition)
            last = _last_batch(reader, batches) if batches.topic in topics else None
            is_later = last is not None and last.number > position.batch_number
            return [f"{batches.topic} has its batch {last.number}"] if last is not None and is_later else []
        traces: list[str] = []
        offset = _committed_offset(reader, TopicPartition(settings.topics.events, partition), position.events_topic_id)
        if offset > 0:
            traces.append(f"the group {settings.group_id} has committed its offset {offset}")
        aged: list[str] = []
        for topic in topics:
            place = TopicPartition(topic, partition, OFFSET_BEGINNING)
            start, end = _offset_range(reader, place)
            if start < end and (first := _first_record(reader, place)) is not None:
                traces.append(f"{topic} has its records from offset {first} on")
            elif start > 0:
                aged.append(f"{topic} begins at offset {start}")
        # Aborted records become too old too, but hardly those of two topics at once.
        return traces + aged if traces or len(aged) > 1 else []
    except KafkaException as error:
        raise Lost(f"partition {partition}: how far it was folded is not known: {error.args[0]}") from error
    finally:
        reader.close()


class FoldProgress(NamedTuple):
    """What shows how far a partition was folded, besides its position."""

    first_batch: BatchRecord | None  # that the log of batches still has
    last_batch: BatchRecord | None
    committed_offset: int  # the group's; 0 if there is none


def find_progress(
    settings: ProcessorSettings, topics: Iterable[str], partition: int, topic_id: str | None
) -> FoldProgress:
    """Return how far a partition was folded by what its transactions left on `topics`.

    `topic_id`: of the events to which the group's offset must belong. Blocks. Raises `Lost` without
    an answer.
    """
    reader = Consumer({**settings.reader_config(), **settings.opening_config(), "group.id": settings.group_id})
    try:
        batches = TopicPartition(settings.topics.batches, partition)
        has_batches = batches.topic in topics
        return FoldProgress(
            _first_batch(reader, batches) if has_batches else None,
            _last_batch(reader, batches) if has_batches else None,
            _committed_offset(reader, TopicPartition(settings.topics.events, partition), topic_id),
        )
    except KafkaException as error:
        raise Lost(f"partition {partition}: how far it was folded is not known: {error.args[0]}") from error
    finally:
        reader.close()


def _committed_offset(reader: Consumer, events: TopicPartition, topic_id: str | None) -> int:
    """Return the group's offset, 0 if there is none.

    One that names another topic, or that the log does not reach, was committed by a worker that had
    not noticed yet that the topic was made again.
    """
    (committed,) = reader.committed([events], timeout=_PROBE_S)
    if committed.error is not None:
        raise KafkaException(committed.error)
    of_other = is_other_topic(committed.metadata or None, topic_id)
    if committed.offset <= 0 or of_other or committed.offset > _offset_range(reader, events)[1]:
        return 0
    return committed.offset


def _first_record(reader: Consumer, place: TopicPartition) -> int | None:
    """Return the offset of the first committed record that a transaction left, None if none did.

    An acknowledgement is written outside of them, and may come after its topic was made again.
    """
    reader.assign([place])
    while (message := reader.poll(_PROBE_S)) is not None:
        if (error := message.error()) is None:
            if not _is_acknowledgement(message.value()):
                return message.offset()
        elif is_unreadable_batch(message):
            return message.offset()
        elif error.code() == KafkaError._PARTITION_EOF:
            return None
        else:
            raise KafkaException(error)
    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


def _first_batch(reader: Consumer, place: TopicPartition) -> BatchRecord | None:
    start, end = _offset_range(reader, place)
    place.offset = start
    return next(_read_batches(reader, place), None) if start < end else None


def _last_batch(reader: Consumer, place: TopicPartition) -> BatchRecord | None:
    """Return the last committed batch among a log's last offsets, None if none is there.

    A batch of records that cannot be read hides those after it, which show nothing then.
    """
    start, end = _offset_range(reader, place)
    place.offset = max(start, end - _LAST_OFFSETS)
    batches = _read_batches(reader, place) if place.offset < end else ()
    return max(batches, key=lambda batch: batch.number, default=None)


def _read_batches(reader: Consumer, place: TopicPartition) -> Iterator[BatchRecord]:
    """Yield the committed batches from a place on, up to records that cannot be read."""
    reader.assign([place])
    while (message := reader.poll(_PROBE_S)) is not None:
        if (error := message.error()) is None:
            with contextlib.suppress(DecodeError):
                record = Decoder().decode_record(message.value() or b"")
                if isinstance(record, BatchRecord):
                    yield record
        elif error.code() == KafkaError._PARTITION_EOF or is_unreadable_batch(message):
            return
        else:
            raise KafkaException(error)
    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


def _is_acknowledgement(value: bytes | None) -> bool:
    with contextlib.suppress(DecodeError):
        return isinstance(Decoder().decode_record(value or b""), BatchAcknowledged)
    return False


def _offset_range(reader: Consumer, topic: TopicPartition) -> tuple[int, int]:
    start, end = reader.get_watermark_offsets(topic, timeout=_PROBE_S)
    return start, end


def _next_message(reader: Consumer, topic: TopicPartition) -> Message | None:
    """Return the next record, or the report of a batch that cannot be read; None at the log's end.

    Raises `KafkaException` if the broker sends neither for 5 s: a silent one shows nothing.
    """
    message = reader.poll(_PROBE_S)
    if message is not None and is_left_over(message, topic.offset):
        reader.assign([topic])  # fetching stopped there
        message = reader.poll(_PROBE_S)
    if message is None:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
    if (error := message.error()) is None or is_unreadable_batch(message):
        return message
    if error.code() != KafkaError._PARTITION_EOF:
        raise KafkaException(error)
    return None
