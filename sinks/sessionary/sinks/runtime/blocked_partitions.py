"""Partitions that wait while the others continue.

running ──(fault of this partition)──▶ blocked ──(pause, each twice as long)──▶ trying
   ▲                                      ▲───────────────(fault)────────────────┤
   └──────────(records, or the log's end; if a write failed: written)────────────┘

If its topic was made again, a partition stays blocked for the whole assignment. If an operator had
the processor skip a batch that cannot be read, the next try begins after it. The audit trail says
so.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from confluent_kafka import KafkaException, Message, TopicPartition

from sessionary.schemas.kafka.clients import HELP, describe_unreadable_batch
from sessionary.schemas.telemetry.log_fields import ERROR_CLASS, OFFSET, REASON
from sessionary.schemas.telemetry.role_logs import error_fields, role_logger
from sessionary.sinks.errors import PARTITION_REASONS, RETRY_FIRST_S, RETRY_LAST_S, OperatorError, Transient
from sessionary.sinks.metrics import SinkMetrics
from sessionary.sinks.runtime.ports import KafkaConsumer

RETRY_S: Final = 30.0
RETRY_S_MAX: Final = 300.0
BATCH_UNREADABLE: Final = "batch_unreadable"
_log = role_logger(__name__)


# Returns the last offset that was skipped with an offset of a partition, or None. May raise the
# sinks' errors.
FindSkip = Callable[[int, int], int | None]


class _Blocked(NamedTuple):
    reason: str
    is_write: bool  # its block could not be written; else it cannot be read
    batch_offset: int  # at which a batch begins that cannot be read
    retry_at_s: float | None  # None: it is being tried again
    pause_s: float


class BlockedPartitions:
    """The blocked partitions of one assignment. `now_s` is always monotonic."""

    def __init__(self, topic: str, metrics: SinkMetrics, find_skip: FindSkip) -> None:
        self._topic = topic
        self._find_skip = find_skip
        self._metrics = metrics
        self._blocked: dict[int, _Blocked] = {}

    def is_blocked(self, partition: int) -> bool:
        """Whether a partition is blocked, also while it is tried again."""
        return partition in self._blocked

    def holds(self, partition: int) -> bool:
        """Whether a partition is blocked: its arriving records must be dropped."""
        former = self._blocked.get(partition)
        return former is not None and former.retry_at_s is not None

    def holds_writes(self, partition: int) -> bool:
        """Whether a partition's block waits, because it could not be written."""
        return self.holds(partition) and self._blocked[partition].is_write

    def block_partition(
        self,
        consumer: KafkaConsumer,
        partition: int,
        reason: str,
        what: str,
        now_s: float,
        *,
        is_write: bool = False,
        first_s: float | None = None,
        batch_offset: int = 0,
    ) -> None:
        """Pause a partition; try it again after `first_s`, then after twice as long each time.

        `what` says for people what is wrong and what to do. `is_write`: its block could not be
        written; else it cannot be read. `first_s` is `RETRY_S` by default. `batch_offset`: at
        which a batch begins that cannot be read.
        """
        former = self._blocked.get(partition)
        if former is not None and former.retry_at_s is not None:
            return
        if former is None or former.reason != reason:
            self.forget_partition(partition)
            _log.error(
                "partition %(partition)d is blocked, and tried again now and then: %(what)s",
                what=what,
                partition=partition,
                **_cause_fields(reason, batch_offset),
            )
            self._metrics.block_partition(partition, reason)
            pause_s = RETRY_S if first_s is None else first_s
        else:
            pause_s = min(RETRY_LAST_S if is_write else RETRY_S_MAX, 2.0 * former.pause_s)
        self._blocked[partition] = _Blocked(reason, is_write, batch_offset, now_s + pause_s, pause_s)
        consumer.pause([TopicPartition(self._topic, partition)])

    def block_unreadable(self, consumer: KafkaConsumer, message: Message, now_s: float) -> None:
        """Block the partition of a batch that cannot be read, which `message` reports."""
        what = f"{describe_unreadable_batch(message)}. {HELP}"
        place = message.partition() or 0, message.offset() or 0
        self.block_partition(consumer, place[0], BATCH_UNREADABLE, what, now_s, batch_offset=place[1])

    def block_writes(
        self, consumer: KafkaConsumer, partitions: Iterable[int], error: Transient | OperatorError, now_s: float
    ) -> None:
        """Block the partitions of a block that could not be written.

        Raises `error` if it is not the block's, so that it stops all partitions.
        """
        if error.reason not in PARTITION_REASONS:
            raise error
        self._metrics.count_retry(error.reason)
        for partition in partitions:
            self.block_partition(
                consumer, partition, error.reason, str(error), now_s, is_write=True, first_s=RETRY_FIRST_S
            )

    def halt_partition(self, partition: int, reason: str, what: str) -> None:
        """Block a partition until the next assignment."""
        _log.error(
            "partition %(partition)d is halted: %(what)s", what=what, partition=partition, **_cause_fields(reason, 0)
        )
        self.forget_partition(partition)
        self._metrics.block_partition(partition, reason)
        self._blocked[partition] = _Blocked(
            reason, is_write=False, batch_offset=0, retry_at_s=math.inf, pause_s=math.inf
        )

    def retry_due(self, consumer: KafkaConsumer, next_offsets: Mapping[int, int], now_s: float) -> None:
        """Read blocked partitions again whose pause is over, each from its next offset on.

        `next_offsets` are those of all partitions that are assigned. If an unreadable batch was
        skipped, its partition is read from the offset after it.
        """
        for partition, blocked in self._blocked.items():
            if blocked.retry_at_s is None or now_s < blocked.retry_at_s:
                continue
            next_offset = self._offset_after_skip(partition, blocked, next_offsets[partition])
            place = TopicPartition(self._topic, partition, next_offset)
            try:
                consumer.seek(place)  # what was fetched before is not delivered any more
            except KafkaException:
                # librdkafka has given the partition up, if the log did not have its offset.
                fetch_again(consumer, self._topic, {**next_offsets, partition: next_offset})
            consumer.resume([place])
            self._blocked[partition] = blocked._replace(retry_at_s=None)

    def _offset_after_skip(self, partition: int, blocked: _Blocked, next_offset: int) -> int:
        if blocked.reason != BATCH_UNREADABLE:
            return next_offset
        offset = max(next_offset, blocked.batch_offset)
        try:
            last = self._find_skip(partition, offset)
        except (Transient, OperatorError) as error:
            _log.warning(
                "partition %(partition)d: it is not known if its batch was skipped: %(error)s",
                partition=partition,
                offset=offset,
                **error_fields(error),
            )
            return next_offset
        if last is None:
            return next_offset
        _log.warning(
            "partition %(partition)d: offsets %(offset)d to %(last_offset)d were skipped by an operator's decision",
            last_offset=last,
            partition=partition,
            offset=offset,
        )
        return last + 1

    def end_block(self, partition: int, *, is_write: bool = False) -> None:
        """Note that a partition that was tried again can be read, or its block was written."""
        former = self._blocked.get(partition)
        if former is not None and not self.holds(partition) and former.is_write == is_write:
            _log.warning("partition %(partition)d is no longer blocked", partition=partition)
            self.forget_partition(partition)

    def forget_partition(self, partition: int) -> None:
        """Forget a partition: it leaves, or begins again at the group's offset."""
        if self._blocked.pop(partition, None) is not None:
            self._metrics.unblock_partition(partition)

    def forget_partitions(self, partitions: Iterable[int] | None = None) -> None:
        """Forget these partitions, by default all."""
        for partition in tuple(self._blocked if partitions is None else partitions):
            self.forget_partition(partition)


def _cause_fields(reason: str, batch_offset: int) -> dict[str, object]:
    """Return why a partition is blocked as fields, with the offset of an unreadable batch."""
    place = {OFFSET: batch_offset} if reason == BATCH_UNREADABLE else {}
    return {REASON: reason, ERROR_CLASS: reason, **place}


def fetch_again(consumer: KafkaConsumer, topic: str, next_offsets: Mapping[int, int]) -> None:
    """Fetch all assigned partitions again, each from its next offset on; they stay paused."""
    consumer.assign([TopicPartition(topic, partition, offset) for partition, offset in next_offsets.items()])
