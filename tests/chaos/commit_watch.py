"""Follows events and transactions: how far a partition goes, who wrote its newest one and when."""

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from tests.auditor.decoding import decode_record
from tests.auditor.evidence import ACKNOWLEDGEMENT
from tests.chaos.stack import PARTITIONS, PREFIX

# Ticks come each second. A consumer that is notified once that there is no broker, by one that its
# own controller has fenced, forgets it for ever (librdkafka issue 5301).
SILENCE_S_MAX: Final = 10.0


class Commit(NamedTuple):
    """A partition's newest transaction.

    `at_ms` is the broker's timestamp, ms since the epoch; `next_offset` that of the first event
    that is not folded.
    """

    at_ms: int
    instance: str
    number: int
    next_offset: int


class CommitWatch:
    """Reads the topics of batches and events in a thread.

    `event_ends` has the offset after the last event of each partition, ticks apart. It and
    `commits` are replaced, never changed in place.
    """

    def __init__(
        self,
        servers: str,
        new_consumer: Callable[[dict[str, Any]], Consumer] = Consumer,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.commits: dict[int, Commit] = {}
        self.event_ends: dict[int, int] = {}
        self._new_consumer, self._clock_s = new_consumer, clock_s
        self._config = {
            "bootstrap.servers": servers,
            "group.id": "chaos-watch",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
        }
        topics = (f"{PREFIX}.batches", f"{PREFIX}.events")
        self._places = {(topic, number): 0 for topic in topics for number in range(PARTITIONS)}
        self._consumer = self._open_consumer()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def _open_consumer(self) -> Consumer:
        """Return a consumer that goes on where the last one stood."""
        self._heard_s = self._clock_s()
        consumer = self._new_consumer(self._config)
        consumer.assign([TopicPartition(*place, offset) for place, offset in self._places.items()])
        return consumer

    def owned_by(self, instance: str) -> set[int]:
        """Return the partitions whose newest transaction is from this instance."""
        return {number for number, commit in self.commits.items() if commit.instance == instance}

    def count_at_work(self, instance: str, than_ms: int) -> int:
        """Return how many partitions have their newest transaction from it, after `than_ms`."""
        return sum(commit.instance == instance and commit.at_ms > than_ms for commit in self.commits.values())

    def committed_since(self, partitions: set[int], than_ms: int) -> bool:
        """Return True if each of these partitions has a transaction written after `than_ms`."""
        commits = self.commits
        return all(number in commits and commits[number].at_ms > than_ms for number in partitions)

    def close(self) -> None:
        """Stop the thread and close the consumer."""
        self._stop.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(KafkaException):
                for message in self._consumer.consume(500, 0.05):
                    if message.error() is None:
                        self._note_message(message)
            if self._clock_s() - self._heard_s > SILENCE_S_MAX:
                self._consumer.close()
                self._consumer = self._open_consumer()

    def _note_message(self, message: Message) -> None:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None
        assert partition is not None
        assert offset is not None
        self._heard_s = self._clock_s()
        self._places[topic, partition] = offset + 1
        if topic == f"{PREFIX}.events":
            self._note_event(message)
        else:
            self._note_batch(message)

    def _note_event(self, message: Message) -> None:
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        if message.key() is not None:  # otherwise it is a tick
            self.event_ends = {**self.event_ends, partition: offset + 1}

    def _note_batch(self, message: Message) -> None:
        value = message.value()
        assert isinstance(value, bytes)
        kind, fields = decode_record(value)
        if kind == ACKNOWLEDGEMENT:
            return
        commit = Commit(message.timestamp()[1], fields["instance"], fields["number"], fields["last_offset"] + 1)
        self.commits = {**self.commits, fields["partition"]: commit}
