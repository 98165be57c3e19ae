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

import time
from collections.abc import Iterable
from typing import NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from sessionary.schemas.kafka.clients import is_left_over, is_unreadable_batch
from sessionary.schemas.records import Position
from sessionary.stream_processors.core.clock import believed_from
from sessionary.stream_processors.errors import Halted, Lost
from sessionary.stream_processors.runtime.changelog import reader_of
from sessionary.stream_processors.settings import ProcessorSettings

_PROBE_S = 5.0
_REPEAT_AFTER_S = 2.0


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
                "Give them up with sessionary partition accept-gap, or begin again under a new SESSIONARY_TOPIC_PREFIX",
            )
        if (fault := self.find_truncation(partition, position)) is not None:
            raise fault

    def shows_folded_record(self, position: Position) -> bool:
        """Return whether the record below `position` is, for certain, the one that was folded.

        A log that was cut and has grown past the position may show no sign of it. So a loss that
        was found is over only if the log proves it. The probe must have been made for the
        position's offset.
        """
        if self.previous is None or position.leader_epoch is None:
            return False
        return self.previous.leader_epoch == position.leader_epoch and self.previous.timestamp_ms <= position.clock_ms

    def find_truncation(self, partition: int, position: Position, leader_epoch_max: int | None = None) -> Halted | None:
        """Return the fault if the log lacks records below `position` that were folded, or None.

        The probe must have been made for the position's offset. `leader_epoch_max`: the leader
        epoch at a time when the position was this one already.
        """
        next_offset = position.next_offset
        if self.end_offset < next_offset:
            return log_truncated(partition, next_offset, f"the log ends at {self.end_offset}")
        if self.previous is None:
            return None
        stamp_ms, epoch = self.previous
        if position.leader_epoch is not None and epoch is not None:
            leader_epoch_max = position.leader_epoch
        elif stamp_ms > position.clock_ms and next_offset > believed_from(position.clock_repairs):
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


def log_truncated(partition: int, next_offset: int, found: str) -> Halted:
    """Return the fault of a log that was cut below a position; `found` is how that shows."""
    return Halted(
        "log_truncated",
        f"partition {partition}: all records below offset {next_offset} are folded, but {found}. The broker lost "
        "folded records (unclean leader election, or power loss); what it appends below that offset would never be "
        "folded. Bring the replica that has them back, or go on without: sessionary partition accept-truncation "
        f"{partition}",
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


def find_traces(settings: ProcessorSettings, topics: Iterable[str], partition: int) -> list[str]:
    """Return what shows that a partition was folded before, a phrase each: offsets and records.

    `topics`: those on which its transactions leave records. What an aborted transaction left shows
    nothing. Blocks. Raises `Lost` without an answer.
    """
    # A consumer of the group that never joins it may ask for the group's offsets.
    reader = Consumer({**settings.reader_config(), **settings.opening_config(), "group.id": settings.group_id})
    try:
        traces: list[str] = []
        events = TopicPartition(settings.topics.events, partition)
        (committed,) = reader.committed([events], timeout=_PROBE_S)
        if committed.error is not None:
            raise KafkaException(committed.error)
        if committed.offset > 0:
            traces.append(f"the group {settings.group_id} has committed its offset {committed.offset}")
        return traces + [
            f"{topic} has its records from offset {first} on"
            for topic in topics
            if (first := _first_committed(reader, TopicPartition(topic, partition, OFFSET_BEGINNING))) is not None
        ]
    except KafkaException as error:
        raise Lost(f"partition {partition}: whether it was folded before is not known: {error.args[0]}") from error
    finally:
        reader.close()


def _first_committed(reader: Consumer, place: TopicPartition) -> int | None:
    """Return the offset of a log's first committed record, None if there is none.

    Of a log that does not begin at 0, it is the beginning: records were deleted for their age.
    """
    start, end = _offset_range(reader, place)
    if start > 0 or end == 0:
        return start or None
    reader.assign([place])
    message = reader.poll(_PROBE_S)
    if message is None:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
    if (error := message.error()) is None or is_unreadable_batch(message):
        return message.offset()
    if error.code() != KafkaError._PARTITION_EOF:
        raise KafkaException(error)
    return None


def position_lost(partition: int, changelog: str, traces: Iterable[str]) -> Halted:
    """Return the fault of a changelog without a position; `traces` show that there was one."""
    return Halted(
        "position_lost",
        f"partition {partition}: the changelog {changelog} has no position, although the partition was folded before: "
        f"{'; '.join(traces)}. The changelog was deleted and made again, or lost its records. Judged from the "
        "beginning, all events would be judged twice, and those of sessions whose first events are deleted wrongly. "
        "No command helps: restore the topic from a replica or a copy of the brokers' disks (a new topic with copied "
        f"records is another one), then run sessionary partition retry {partition}; or begin again under a new "
        "SESSIONARY_TOPIC_PREFIX",
    )


def _offset_range(reader: Consumer, topic: TopicPartition) -> tuple[int, int]:
    start, end = reader.get_watermark_offsets(topic, timeout=_PROBE_S)
    return start, end


def _next_message(reader: Consumer, topic: TopicPartition) -> Message | None:
    """Return the next record, or the report of a batch that cannot be read.

    None at the log's end, or if the broker sends none for 5 s.
    """
    message = reader.poll(_PROBE_S)
    if message is not None and is_left_over(message, topic.offset):
        reader.assign([topic])  # fetching stopped there
        message = reader.poll(_PROBE_S)
    if message is None or (error := message.error()) is None or is_unreadable_batch(message):
        return message
    if error.code() != KafkaError._PARTITION_EOF:
        raise KafkaException(error)
    return None
