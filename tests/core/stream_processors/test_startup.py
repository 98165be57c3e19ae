"""What a process does before its worker joins the group: topics."""

import logging
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from sessionary.schemas.topics import topic_specs
from sessionary.stream_processors import startup
from sessionary.stream_processors.settings import ProcessorSettings
from sessionary.stream_processors.startup import wait_for_topics


class ForbiddingAdmin:
    """A broker with correct topics, whose settings this user may not read."""

    def __init__(self, config: object) -> None:
        """Any configuration will do."""

    def list_topics(self, timeout: float) -> Any:
        return SimpleNamespace(
            topics={spec.name: SimpleNamespace(partitions=[None] * 4) for spec in topic_specs("sessionary", 4)}
        )

    def describe_configs(self, resources: list[Any], request_timeout: float) -> dict[Any, "Future[Any]"]:
        answers = {resource: Future[Any]() for resource in resources}
        for answer in answers.values():
            answer.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
        return answers


def test_a_worker_that_may_not_read_settings_says_so_once_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(startup, "AdminClient", ForbiddingAdmin)
    wait_for_topics(ProcessorSettings(), lambda: False)
    [line] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "sessionary.events" in line
    assert "DescribeConfigs" in line
