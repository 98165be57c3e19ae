"""The Kafka producer: its configuration, and the meaning of its errors."""

from pathlib import Path

import pytest
from confluent_kafka import KafkaError

from sessionary.producers import (
    AuthenticationFailed,
    Unavailable,
)
from sessionary.producers.delivery.kafka_producer import KafkaProducer, named_error, producer_config
from tests.core.producers.kafka_clients import new_settings


def test_the_producer_is_configured_as_promised(tmp_path: Path) -> None:
    config = producer_config(new_settings("127.0.0.1:1", tmp_path))
    expected = {
        "enable.idempotence": True,
        "acks": "all",
        "partitioner": "murmur2_random",
        "linger.ms": 0,  # the sender of the spool lingers itself
        "compression.type": "lz4",
        "message.timeout.ms": 0,
    }
    assert {name: config[name] for name in expected} == expected
    dropping = producer_config(new_settings("127.0.0.1:1", tmp_path, delivery_policy="drop"))
    assert (dropping["message.timeout.ms"], dropping["linger.ms"]) == (120_000, 5)


@pytest.mark.parametrize("code", [KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED])
def test_an_authentication_failure_is_named_and_never_shows_the_password(code: int, tmp_path: Path) -> None:
    of = new_settings("broker:9092", tmp_path, sasl_username="agent", sasl_password="s3cret")
    named = named_error(KafkaError(code), of)
    assert isinstance(named, AuthenticationFailed)
    assert "'agent'" in str(named)
    assert "s3cret" not in str(named)


def test_other_trouble_is_named_too(tmp_path: Path) -> None:
    of = new_settings("broker:9092", tmp_path)
    assert isinstance(named_error(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), of), AuthenticationFailed)
    assert isinstance(named_error(KafkaError(KafkaError._ALL_BROKERS_DOWN), of), Unavailable)


def test_trouble_is_reported_once_until_it_is_over(closed_address: str, tmp_path: Path) -> None:
    reported: list[Exception] = []
    counted: list[str] = []
    settings = new_settings(closed_address, tmp_path)
    producer = KafkaProducer(settings, reported.append, lambda: None, counted.append, lambda statistics: None)
    try:
        for _ in range(3):
            producer.report_error(KafkaError(KafkaError._AUTHENTICATION))
        assert [type(error) for error in reported].count(AuthenticationFailed) == 1
        assert counted.count("authentication") == 3
        assert producer.authentication_error is not None
        producer.clear_errors()
        assert producer.authentication_error is None
        producer.report_error(KafkaError(KafkaError._AUTHENTICATION))
        assert [type(error) for error in reported].count(AuthenticationFailed) == 2
    finally:
        producer.close(5.0)
