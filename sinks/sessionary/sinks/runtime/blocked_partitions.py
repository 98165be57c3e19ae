"""Partitions that wait before a batch that cannot be read, while the others go on.

reading ──(batch unreadable)──▶ blocked ──(30 s, then twice as long each time)──▶ trying
   ▲                               ▲────────────(batch unreadable)──────────────────┤
   └──────────────────────────────────(records, or the log's end)───────────────────┘

If an operator had the processor skip the batch, the next try begins after it. The audit trail says
so.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from confluent_kafka import KafkaException, Message, TopicPartition

from sessionary.schemas.kafka.unreadable_batches import HELP, describe_unreadable_batch
from sessionary.sinks.errors import OperatorError, Transient
from sessionary.sinks.metrics import SinkMetrics
from sessionary.sinks.runtime.ports import KafkaConsumer

RETRY_S: Final = 30.0
RETRY_S_MAX: Final = 300.0
REASON: Final = "batch_unreadable"
_log = logging.getLogger(__name__)


# Returns the last offset of what was skipped with an offset of a partition, or None. May raise the
# sinks' errors.
FindSkip = Callable[[int, int], int | None]


class _Blocked(NamedTuple):
    batch_offset: int  # at which the batch begins
    retry_at_s: float | None  # None: it is being tried again
    pause_s: float


class BlockedPartitions:
    """The blocked partitions of one assignment. `now_s` is always monotonic."""

    def __init__(self, topic: str, metrics: SinkMetrics, find_skip: FindSkip) -> None:
        self._topic = topic
        self._find_skip = find_skip
        self._metrics = metrics
        self._blocked: dict[int, _Blocked] = {}

    def holds(self, partition: int) -> bool:
        """Whether a partition is blocked: what arrives of it must be dropped."""
        former = self._blocked.get(partition)
        return former is not None and former.retry_at_s is not None

    def block_partition(self, consumer: KafkaConsumer, message: Message, now_s: float) -> None:
        """Pause the partition of a batch that cannot be read, which `message` reports."""
        partition = message.partition() or 0
        former = self._blocked.get(partition)
        if former is None:
            what = f"{describe_unreadable_batch(message)}. {HELP}"
            _log.error("partition %d is blocked, and tried again now and then: %s", partition, what)
            self._metrics.block_partition(partition, REASON)
        elif former.retry_at_s is not None:
            return
        pause_s = RETRY_S if former is None else min(RETRY_S_MAX, 2.0 * former.pause_s)
        self._blocked[partition] = _Blocked(message.offset() or 0, now_s + pause_s, pause_s)
        consumer.pause([TopicPartition(self._topic, partition)])

    def retry_due(self, consumer: KafkaConsumer, next_offsets: Mapping[int, int], now_s: float) -> None:
        """Read blocked partitions again whose pause is over, each from its next offset on.

        If the batch was skipped, read from the offset after it.
        """
        for partition, blocked in self._blocked.items():
            if blocked.retry_at_s is None or now_s < blocked.retry_at_s:
                continue
            next_offset = self._offset_after_skip(partition, max(next_offsets[partition], blocked.batch_offset))
            place = TopicPartition(self._topic, partition, next_offset or next_offsets[partition])
            try:
                consumer.seek(place)  # what was fetched before is not delivered any more
            except KafkaException as error:
                _log.warning("partition %d cannot be tried again yet: %s", partition, error.args[0])
                self._blocked[partition] = blocked._replace(retry_at_s=now_s + blocked.pause_s)
                continue
            consumer.resume([place])
            self._blocked[partition] = blocked._replace(retry_at_s=None)

    def _offset_after_skip(self, partition: int, offset: int) -> int | None:
        try:
            last = self._find_skip(partition, offset)
        except (Transient, OperatorError) as error:
            _log.warning("partition %d: it is not known if its batch was skipped: %s", partition, error)
            return None
        if last is None:
            return None
        _log.warning("partition %d: offsets %d to %d were skipped by an operator's decision", partition, offset, last)
        return last + 1

    def end_block(self, partition: int) -> None:
        """Note that a partition that was tried again can be read."""
        if partition in self._blocked and not self.holds(partition):
            _log.warning("partition %d is no longer blocked", partition)
            self.forget_partition(partition)

    def forget_partition(self, partition: int) -> None:
        """Drop what is known of a partition: it leaves, or begins again at the group's offset."""
        if self._blocked.pop(partition, None) is not None:
            self._metrics.unblock_partition(partition)

    def forget_all(self) -> None:
        """Drop what is known of all partitions."""
        for partition in tuple(self._blocked):
            self.forget_partition(partition)


__all__ = ["REASON", "RETRY_S", "RETRY_S_MAX", "BlockedPartitions", "FindSkip"]
