"""Librdkafka clients that are purged and replaced."""

import threading
from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from sessionary.schemas.kafka.clients import discard_producer, flush_producer, purge_producer
from tests.support.mock_cluster import mock_cluster
from tests.support.waiting import wait_until

# No broker: whatever is produced stays in the queue.
_END_TXN = 26  # Kafka's API key
CONFIG = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}


def produce_two(producer: Producer) -> list[int]:
    """Queue two records; return the list that their error codes go to."""
    codes: list[int] = []

    def on_delivery(error: KafkaError | None, _: Message) -> None:
        codes.append(0 if error is None else error.code())

    for _ in range(2):
        producer.produce("t", b"x", partition=0, on_delivery=on_delivery)
    return codes


def test_a_purge_reports_each_record_and_leaves_the_producer_usable() -> None:
    producer = Producer(CONFIG)
    for _ in range(2):
        codes = produce_two(producer)
        purge_producer(producer)
        # Errors of the connection count as waiting too, and may come at any time.
        assert flush_producer(producer, 60.0) == 0
        assert codes == [KafkaError._PURGE_QUEUE] * 2


def test_a_discarded_producer_reports_its_records_and_is_freed_in_the_background(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    producer = Producer(CONFIG)
    codes = produce_two(producer)
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def note_start(thread: threading.Thread) -> None:
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", note_start)
    discard_producer(producer)
    assert codes == [KafkaError._PURGE_QUEUE] * 2
    discarding = [thread for thread in started if thread.name == "sessionary-discard"]
    assert len(discarding) == 1
    assert discarding[0].daemon
    wait_until(lambda: not discarding[0].is_alive(), 60, "the end of the thread")


@pytest.mark.parametrize("end", [purge_producer, discard_producer])
def test_a_producer_with_a_fatal_error_can_be_purged_and_discarded(end: Callable[[Producer], None]) -> None:
    """The first poll after it raises the error once more, also if a call has raised it already."""
    with mock_cluster() as cluster:
        cluster.create_topic("t", [1])
        producer = Producer({**CONFIG, "bootstrap.servers": cluster.bootstrap_servers, "transactional.id": "t"})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce("t", b"x")
        cluster.refuse_request(_END_TXN, KafkaError.INVALID_TXN_STATE)
        with pytest.raises(KafkaException) as raised:
            producer.commit_transaction(30)
        assert raised.value.args[0].fatal()
        end(producer)
        with pytest.raises(KafkaException):
            producer.produce("t", b"y")
