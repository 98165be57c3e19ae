"""Clean-up requests on a real broker: one that cannot be read, a consumer that reads nothing."""

import socket
from collections.abc import Callable
from contextlib import closing

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from sessionary.producers.control import request_consumer
from sessionary.producers.control.request_consumer import KafkaRequestConsumer, RequestConsumer, open_consumer
from sessionary.producers.errors import UnreadableRequest
from sessionary.producers.ports import OnReceipt, Receipt
from sessionary.producers.settings import ProducerSettings
from sessionary.schemas.codec import SINGLE_OBJECT, Decoder, Record, encode_record
from sessionary.schemas.ids import SessionKey
from sessionary.schemas.records import CleanupRequest
from sessionary.schemas.settings import KafkaSettings
from tests.support.waiting import wait_until

SESSION_ID = "0b0e7f0a-0000-4000-8000-000000000000"
NEWER = SINGLE_OBJECT + b"\xee" * 8 + b"a body of a later release"


def new_request(cleanup_id: str) -> CleanupRequest:
    return CleanupRequest(cleanup_id, "acme", SESSION_ID, "billing", 1, "closed", "", ["close_connection"], 1)


def append_values(kafka: KafkaSettings, partition: int, *values: bytes) -> None:
    producer = Producer(kafka.client_config())
    for value in values:
        producer.produce(kafka.topics.cleanup, value, SessionKey("acme", SESSION_ID).encoded(), partition)
    assert producer.flush(120) == 0


class NewerDecoder(Decoder):
    """A decoder of a later release."""

    def decode_record(self, value: bytes | None) -> Record:
        return new_request("newer") if value == NEWER else super().decode_record(value)


class Service:
    """A clean-up consumer whose handler answers at once."""

    def __init__(
        self, kafka: KafkaSettings, new_consumer: Callable[[], RequestConsumer] | None = None, *, newer: bool = False
    ) -> None:
        self.handled: list[str] = []
        self.errors: list[Exception] = []
        self._kafka = kafka
        self._consumer = KafkaRequestConsumer(
            producer_settings(kafka), "acme", "billing", self.errors.append, new_consumer=new_consumer
        )
        if newer:
            self._consumer._decoder = NewerDecoder()
        self._consumer.start(self._answer_request)

    def close(self) -> None:
        self._consumer.close(120)

    def _answer_request(self, request: CleanupRequest, on_receipt: OnReceipt) -> None:
        self.handled.append(request.cleanup_id)
        on_receipt(Receipt(0, 0))


def producer_settings(kafka: KafkaSettings) -> ProducerSettings:
    return ProducerSettings(**kafka.model_dump())


def group_id(kafka: KafkaSettings) -> str:
    return f"{kafka.topic_prefix}.cleanup.acme:billing"


def committed_offsets(kafka: KafkaSettings) -> list[int]:
    """Return what the service's group has committed for the partitions 0 and 1; -1: nothing.

    Empty if the broker does not tell: the first group of a new broker has to wait for its topic.
    """
    consumer = Consumer({**kafka.client_config(), "group.id": group_id(kafka)})
    try:
        places = [TopicPartition(kafka.topics.cleanup, partition) for partition in (0, 1)]
        return [max(place.offset, -1) for place in consumer.committed(places, timeout=60)]
    except KafkaException:
        return []
    finally:
        consumer.close()


def test_an_older_client_stops_at_a_request_that_a_newer_client_then_answers(kafka: KafkaSettings) -> None:
    append_values(kafka, 0, encode_record(new_request("one")), NEWER, encode_record(new_request("behind it")))
    append_values(kafka, 1, encode_record(new_request("other")))
    with closing(Service(kafka)) as older:
        wait_until(lambda: committed_offsets(kafka) == [1, 1], 60, "the commits of the older client")
        append_values(kafka, 1, encode_record(new_request("other later")))
        wait_until(lambda: committed_offsets(kafka) == [1, 2], 60, "the other partition to go on")
    assert sorted(older.handled) == ["one", "other", "other later"]
    (error,) = older.errors
    assert isinstance(error, UnreadableRequest)
    assert (error.topic, error.partition, error.offset) == (kafka.topics.cleanup, 0, 1)
    with closing(Service(kafka, newer=True)) as newer:
        wait_until(lambda: committed_offsets(kafka) == [3, 2], 60, "the commits of the newer client")
    assert newer.handled == ["newer", "behind it"]
    assert newer.errors == []


def test_a_consumer_that_reaches_no_broker_is_replaced_by_one_that_answers(
    kafka: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_consumer, "ASK_EVERY_S", 0.3)
    monkeypatch.setattr(request_consumer, "_JOIN_S_MAX", 1.0)
    append_values(kafka, 0, encode_record(new_request("one")))
    settings = producer_settings(kafka)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections, and answers nothing
        lost = settings.model_copy(update={"bootstrap_servers": f"127.0.0.1:{silent.getsockname()[1]}"})
        opened: list[KafkaSettings] = []

        def new_consumer() -> RequestConsumer:
            monkeypatch.setattr(request_consumer, "_JOIN_S_MAX", 60.0)  # the second one has all the time it needs
            opened.append(settings if opened else lost)
            return open_consumer(settings if len(opened) > 1 else lost, group_id(kafka))

        with closing(Service(kafka, new_consumer)) as service:
            wait_until(lambda: service.handled == ["one"], 60, "the answer")
            wait_until(lambda: committed_offsets(kafka)[:1] == [1], 60, "the commit")
    assert opened == [lost, settings]
    assert "begins again with a new consumer" in str(service.errors)
