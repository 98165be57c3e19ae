"""A producer's first batches arrive, though a broker without enough replicas refuses some of them.

The replicas come back while many new producers retry. A broker that takes a producer's second batch
before the first one loses the first, and librdkafka calls it delivered; by librdkafka alone three
of a hundred producers lost one.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message

from sessionary.producers import ProducerSettings
from sessionary.producers.delivery.kafka_producer import KafkaProducer
from sessionary.producers.ports import OutRecord
from sessionary.schemas.ids import partition_of
from sessionary.schemas.settings import KafkaSettings
from tests.integration.test_three_brokers import ThreeBrokers
from tests.support.pipelines import alter_topic, refuse_records
from tests.support.reading import read_topic
from tests.support.waiting import wait_until

PRODUCERS, RECORDS, ROUNDS = 25, 8, 6
KEY = b"acme:k"
RETRIES_S = 1.0


@pytest.fixture
def two_of_three(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ThreeBrokers]:
    """Three brokers, one of which is stopped; two replicas of each partition are in sync."""
    brokers = ThreeBrokers(tmp_path / "brokers", request.node.name)
    try:
        brokers.start()
        brokers.stop(3)
        wait_until(lambda: brokers.has_replicas(2), 120, "two replicas in sync")
        yield brokers
    finally:
        brokers.stop()


def test_no_first_batch_is_lost_while_replicas_come_back(two_of_three: ThreeBrokers, tmp_path: Path) -> None:
    kafka = two_of_three.kafka
    expected: set[bytes] = set()
    for turn in range(ROUNDS):
        needed, partition = {"min.insync.replicas": "3"}, partition_of(KEY, kafka.partitions)
        refuse_records(kafka, kafka.topics.events, needed, partition, b"probe", KafkaError.NOT_ENOUGH_REPLICAS)
        expected |= _produce_first_records(kafka, tmp_path, turn)
    assert expected - set(_values(kafka)) == set()


def _produce_first_records(kafka: KafkaSettings, folder: Path, turn: int) -> set[bytes]:
    """Let new producers send while too few replicas are in sync, then lower what is enough."""
    own = {**kafka.model_dump(), "librdkafka": {"batch.num.messages": "1"}, "spool_dir": folder}
    settings = ProducerSettings.from_env({}, **own)
    delivered: list[bytes] = []
    wanted = {b"%d-%d-%d" % (turn, n, i) for n in range(PRODUCERS) for i in range(RECORDS)}

    def report(error: KafkaError | None, message: Message) -> None:
        assert error is None
        value = message.value()
        assert isinstance(value, bytes)
        delivered.append(value)

    with ExitStack() as stack:
        producers = []
        for _ in range(PRODUCERS):
            producers.append(KafkaProducer(settings, lambda e: None, lambda: None, lambda e: None, lambda s: None))
            stack.callback(producers[-1].close, 60.0)
        for n, producer in enumerate(producers):
            for i in range(RECORDS):
                value = b"%d-%d-%d" % (turn, n, i)
                producer.produce_record(OutRecord(KEY, value, [], "", "", "", "", "", i + 1), report)
        time.sleep(RETRIES_S)  # what is refused is retried meanwhile; that it is cannot be seen from here
        assert delivered == []
        alter_topic(kafka, kafka.topics.events, {"min.insync.replicas": "2"})
        wait_until(lambda: len(delivered) == len(wanted), 60, "all to be acknowledged")
    return wanted


def _values(kafka: KafkaSettings) -> list[bytes | None]:
    return [stored.value for stored in read_topic(kafka, kafka.topics.events)]
