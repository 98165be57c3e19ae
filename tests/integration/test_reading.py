"""The tests' own reader ends although records keep coming."""

import threading

from confluent_kafka import Producer

from sessionary.schemas.settings import KafkaSettings
from tests.support.reading import read_topic

PAUSE_S = 0.02


def test_a_topic_that_grows_all_the_time_is_read_to_where_it_ended(kafka: KafkaSettings) -> None:
    stop, first = threading.Event(), threading.Event()
    producer = Producer(kafka.client_config())

    def write() -> None:
        """Write faster than a broker answers that there is nothing new."""
        while not stop.wait(PAUSE_S):
            producer.produce(kafka.topics.batches, b"more", partition=0)
            assert producer.flush(120) == 0
            first.set()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert first.wait(120)
        records = read_topic(kafka, kafka.topics.batches, timeout_s=120)
    finally:
        stop.set()
        writer.join()
    assert {record.value for record in records} == {b"more"}
