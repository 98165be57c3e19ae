"""Reads the first record that a group has not read, of many partitions at once.

Only a reader can tell whether what lies between a committed offset and the log's end are records:
a log of transactions ends with a marker that no consumer is given. And Kafka has no request for the
time of the record at an offset.
"""

import time
from collections.abc import Collection, Mapping
from itertools import islice

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from sessionary.infra.lag.cluster_sample import FirstRecord, Place, UnreadPlace
from sessionary.schemas.kafka.clients import close_in_background
from sessionary.schemas.settings import KafkaSettings
from sessionary.sinks.core.block_due import IDLE_RECORDS

# Together 16 MiB. If a batch is larger than a partition's share, the broker sends it alone, and a
# fetch answers for one partition.
_PARTITIONS_AT_ONCE = 64
_FETCH_BYTES = 1 << 18
_POLL_S = 0.05
_QUIET_S = 0.2  # with no answer for this long, further offsets of answered partitions are read


class FirstRecordReader:
    """One consumer outside of any group, and what it found for the places of the last question.

    A record at an offset never changes, so each place is read once. Not thread-safe.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        """Connect to nothing yet."""
        self._config = {
            **settings.reader_config_of(f"{settings.topic_prefix}.lag"),  # it never joins and never commits
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 10,
            "fetch.queue.backoff.ms": 5,
            "queued.min.messages": 1,
            "max.partition.fetch.bytes": _FETCH_BYTES,
        }
        self._idle = {getattr(settings.topics, topic): is_idle for topic, is_idle in IDLE_RECORDS.items()}
        self._consumer: Consumer | None = None
        self._found: dict[UnreadPlace, FirstRecord] = {}
        self._late: set[Place] = set()

    def read_first(
        self, wanted: Collection[UnreadPlace], log_ends: Mapping[Place, int], timeout_s: float
    ) -> dict[UnreadPlace, FirstRecord]:
        """Return the first record of each place that answers, or that there is none.

        `log_ends`: where the logs end now. Blocks for `timeout_s`, 50 ms more at most.
        """
        self._found = {
            unread: first
            for unread in wanted
            if (first := self._found.get(unread)) is not None
            and (first.timestamp_ms is not None or first.offset >= log_ends[unread.place])
        }
        deadline_s = time.monotonic() + timeout_s
        try:
            consumer = self._open_consumer(timeout_s)  # also if nothing is missing: it is ready then
            if missing := [unread for unread in wanted if unread not in self._found]:
                self._read_missing(consumer, missing, deadline_s)
        except KafkaException:
            self.close()
        return dict(self._found)

    def close(self) -> None:
        """Disconnect, in the background."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            close_in_background(consumer)

    def _open_consumer(self, timeout_s: float) -> Consumer:
        if self._consumer is None:
            self._consumer = Consumer(self._config)
            # A topic that it does not know yet would cost a second when it is assigned.
            self._consumer.list_topics(timeout=timeout_s)
        return self._consumer

    def _read_missing(self, consumer: Consumer, missing: list[UnreadPlace], deadline_s: float) -> None:
        left: dict[Place, list[int]] = {}
        # Places that did not answer last time come last, so that they do not hold up the others.
        for place, offset in sorted(missing, key=lambda unread: (unread.place in self._late, unread)):
            left.setdefault(place, []).append(offset)
        self._late = set()
        answered = False
        while left and time.monotonic() < deadline_s:
            answered |= self._read_some(consumer, left, deadline_s)
        consumer.unassign()
        if not answered:  # it may have lost its last broker for ever (librdkafka issue 5301)
            self.close()

    def _read_some(self, consumer: Consumer, left: dict[Place, list[int]], deadline_s: float) -> bool:
        """Read at the lowest offset of some partitions; return whether anything arrived."""
        asked = {place: offsets[0] for place, offsets in islice(left.items(), _PARTITIONS_AT_ONCE)}
        consumer.assign([TopicPartition(*place, offset) for place, offset in asked.items()])
        quiet_from_s = time.monotonic()
        answered = False
        while asked and (now_s := time.monotonic()) < deadline_s:
            if len(asked) < len(left) and now_s - quiet_from_s > _QUIET_S:
                break
            for message in consumer.consume(len(asked), _POLL_S):
                answered = True  # an error too: the consumer reaches its brokers
                if self._take_message(message, asked, left):
                    quiet_from_s = now_s
        self._late |= asked.keys()
        for place in asked:
            left[place] = left.pop(place)
        return answered

    def _take_message(self, message: Message, asked: dict[Place, int], left: dict[Place, list[int]]) -> bool:
        """Take a record, or the log's end, if its partition still waits for one."""
        place, offset, error = Place(message.topic() or "", message.partition() or 0), message.offset(), message.error()
        if place not in asked or offset is None or offset < asked[place]:
            return False
        if error is None:
            is_idle = self._idle.get(place.topic)
            first = FirstRecord(
                offset, message.timestamp()[1], is_idle=is_idle is not None and is_idle(message.value())
            )
        elif error.code() == KafkaError._PARTITION_EOF:
            first = FirstRecord(offset, None)
        else:
            return False
        del asked[place]
        passed = [wanted for wanted in left[place] if wanted <= offset]
        self._found.update((UnreadPlace(place, wanted), first) for wanted in passed)
        left[place] = left[place][len(passed) :]
        if not left[place]:
            del left[place]
        return True
