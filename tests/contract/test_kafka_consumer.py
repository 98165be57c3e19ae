"""What a sink expects of its Kafka consumer, asked of the driver and of the one that tests use."""

from collections.abc import Callable, Iterator
from typing import Protocol

import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaError, Message, Producer, TopicPartition

from sessionary.schemas.settings import KafkaSettings
from sessionary.sinks.core.sink_kinds import SINKS
from sessionary.sinks.runtime.kafka_client import open_consumer
from sessionary.sinks.runtime.ports import KafkaConsumer
from sessionary.sinks.settings import SinkSettings
from tests.support.fake_kafka import FakeConsumer
from tests.support.waiting import wait_until

PARTITIONS = [0, 1]


class ConsumerRig(Protocol):
    """A consumer, and a way to write to its topic."""

    consumer: KafkaConsumer
    topic: str

    def append_records(self, partition: int, count: int) -> None: ...
    def close(self) -> None: ...


class FakeRig:
    def __init__(self) -> None:
        self._fake = FakeConsumer("t.events")
        self._fake.schedule_assignment(*PARTITIONS)
        self.consumer: KafkaConsumer = self._fake
        self.topic = self._fake.topic

    def append_records(self, partition: int, count: int) -> None:
        self._fake.append_records(partition, count)

    def close(self) -> None:
        pass


class DriverRig:
    def __init__(self, kafka: KafkaSettings) -> None:
        # The broker must not expel a consumer whose machine pauses: it would begin again.
        settings = SinkSettings.model_validate({**kafka.model_dump(), "sink_session_timeout_ms": 120_000})
        self.errors: list[KafkaError] = []
        self.consumer = open_consumer(SINKS["history"], settings, self.errors.append)
        self.topic = kafka.topics.events
        self._producer = Producer(kafka.client_config())

    def append_records(self, partition: int, count: int) -> None:
        for _ in range(count):
            self._producer.produce(self.topic, b"v", partition=partition)
        assert self._producer.flush(120) == 0

    def close(self) -> None:
        assert [error for error in self.errors if error.fatal()] == []


@pytest.fixture(params=["fake", "driver"])
def rig(request: pytest.FixtureRequest) -> Iterator[ConsumerRig]:
    made: ConsumerRig = FakeRig() if request.param == "fake" else DriverRig(request.getfixturevalue("kafka"))
    yield made
    made.close()


class Delivery:
    """Everything that a consumer has delivered since the last `clear`."""

    def __init__(self, consumer: KafkaConsumer) -> None:
        self._consumer = consumer
        self.offsets: dict[int, list[int]] = {partition: [] for partition in PARTITIONS}
        self.ends: dict[int, int] = {}

    def clear(self) -> None:
        self.offsets = {partition: [] for partition in PARTITIONS}
        self.ends = {}

    def consume_until(self, condition: Callable[[], bool], what: str) -> None:
        def consumed() -> bool:
            for message in self._consumer.consume(100, 0.1):
                self._take(message)
            return condition()

        wait_until(consumed, 30, what)

    def _take(self, message: Message) -> None:
        error, partition, offset = message.error(), message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        if error is None:
            self.offsets.setdefault(partition, []).append(offset)
        elif error.code() == KafkaError._PARTITION_EOF:
            self.ends[partition] = offset


def test_a_consumer_delivers_pauses_commits_and_leaves_as_a_sink_expects(rig: ConsumerRig) -> None:
    consumer, topic = rig.consumer, rig.topic
    delivery = Delivery(consumer)
    assigned: list[int] = []
    revoked: list[int] = []
    offsets_before: list[int] = []

    def on_assign(_consumer: object, partitions: list[TopicPartition]) -> None:
        assigned.extend(sorted(place.partition for place in partitions))
        offsets_before.extend(place.offset for place in consumer.committed(partitions, timeout=120))
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in PARTITIONS])

    def on_revoke(_consumer: object, partitions: list[TopicPartition]) -> None:
        revoked.extend(sorted(place.partition for place in partitions))

    rig.append_records(0, 3)
    rig.append_records(1, 1)
    consumer.subscribe([topic], on_assign=on_assign, on_revoke=on_revoke, on_lost=on_revoke)

    # Callbacks run inside `consume`; records come in order, then the log's end as an event.
    delivery.consume_until(lambda: set(delivery.ends) >= set(PARTITIONS), "the end of both partitions")
    assert set(assigned) >= set(PARTITIONS)
    assert all(offset < 0 for offset in offsets_before)
    assert delivery.offsets == {0: [0, 1, 2], 1: [0]}
    assert delivery.ends == {0: 3, 1: 1}
    watermarks = consumer.get_watermark_offsets(TopicPartition(topic, 0), cached=True)
    assert watermarks is not None
    assert watermarks[1] == 3

    # A paused partition stays paused across assignments, until it is resumed.
    delivery.clear()
    consumer.pause([TopicPartition(topic, 0)])
    consumer.assign([TopicPartition(topic, 0, 1), TopicPartition(topic, 1, 0)])
    rig.append_records(0, 1)
    delivery.consume_until(lambda: 1 in delivery.ends, "the end of the partition that is not paused")
    assert delivery.offsets == {0: [], 1: [0]}
    consumer.resume([TopicPartition(topic, 0)])
    delivery.consume_until(lambda: len(delivery.offsets[0]) >= 3, "the records of the resumed partition")
    assert delivery.offsets == {0: [1, 2, 3], 1: [0]}

    # A partition that is sought is read from there on, also if it was paused meanwhile.
    delivery.clear()
    consumer.pause([TopicPartition(topic, 0)])
    consumer.seek(TopicPartition(topic, 0, 2))
    consumer.resume([TopicPartition(topic, 0)])
    delivery.consume_until(lambda: 0 in delivery.ends, "the end of the sought partition")
    assert delivery.offsets == {0: [2, 3], 1: []}

    # Who reaches a broker gets an answer about the topic.
    consumer.list_topics(topic, timeout=120)

    # A commit keeps the metadata beside the offset.
    done = consumer.commit(offsets=[TopicPartition(topic, 0, 2, metadata="to 3")], asynchronous=False)
    assert [place.error for place in done] == [None]
    ((found),) = consumer.committed([TopicPartition(topic, 0)], timeout=120)
    assert (found.offset, found.metadata) == (2, "to 3")

    # Leaving revokes what is assigned.
    assert revoked == []
    consumer.close()
    assert set(revoked) >= set(PARTITIONS)
