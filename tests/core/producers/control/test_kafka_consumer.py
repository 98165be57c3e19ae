"""What the consumer of requests asks of Kafka."""

from typing import Any

import pytest

from sessionary.producers.control import kafka_consumer
from sessionary.producers.settings import ProducerSettings


def test_the_requests_of_a_killed_process_wait_for_seconds_only(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[dict[str, Any]] = []
    monkeypatch.setattr(kafka_consumer, "Consumer", opened.append)
    kafka_consumer.open_consumer(ProducerSettings(), "prefix.migration.acme:billing")
    (options,) = opened
    assert options["group.id"] == "prefix.migration.acme:billing"
    assert options["session.timeout.ms"] == 10_000  # librdkafka's own is 45 s
