"""What a process does before its worker joins the group: topics."""

import logging
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from sessionary.schemas.errors import SettingsError
from sessionary.schemas.records import Position
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.schemas.topics import topic_specs
from sessionary.schemas.types import AnnouncedRules
from sessionary.stream_processors import startup
from sessionary.stream_processors.errors import Halted, Lost
from sessionary.stream_processors.group_members import Member
from sessionary.stream_processors.settings import ProcessorSettings
from sessionary.stream_processors.startup import check_group, require_roomy_topics, wait_for_topics, warn_of_plain_api


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


class RoomyAdmin(ForbiddingAdmin):
    """A broker that tells the sizes of the topics it is asked for."""

    SIZES = {"sessionary.audit": "2097152", "sessionary.tasks": "3000000", "sessionary.changelog": "5000000"}

    def describe_configs(self, resources: list[Any], request_timeout: float) -> dict[Any, "Future[Any]"]:
        answers = {resource: Future[Any]() for resource in resources}
        for resource, answer in answers.items():
            size = self.SIZES.get(resource.name, "4000000")
            answer.set_result({"max.message.bytes": SimpleNamespace(value=size)})
        return answers


LARGER = NEWEST_RULES._replace(output_bytes_max=3_000_000)
FIRST = Position(0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    "position", [FIRST._replace(rules=LARGER), FIRST._replace(announced=AnnouncedRules(*LARGER, 5, "ops"))]
)
def test_a_topic_that_takes_less_than_the_rules_may_write_halts_their_partition(
    monkeypatch: pytest.MonkeyPatch, position: Position
) -> None:
    monkeypatch.setattr(startup, "AdminClient", RoomyAdmin)
    with pytest.raises(Halted) as caught:
        require_roomy_topics(ProcessorSettings(), 3, position)
    assert caught.value.reason == "record_too_large"
    assert "topic sessionary.audit has max.message.bytes=2097152, and needs 3000000." in caught.value.detail
    assert "sessionary.tasks" not in caught.value.detail
    monkeypatch.setitem(RoomyAdmin.SIZES, "sessionary.audit", "3000000")
    require_roomy_topics(ProcessorSettings(), 3, position)


def test_a_larger_row_needs_a_larger_changelog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "AdminClient", RoomyAdmin)
    larger = FIRST._replace(rules=NEWEST_RULES._replace(row_bytes_max=5_000_000))
    with pytest.raises(Halted, match=r"sessionary\.changelog has max\.message\.bytes=5000000, and needs 5065536"):
        require_roomy_topics(ProcessorSettings(), 3, larger)


def test_a_broker_is_asked_only_for_what_no_start_has_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "AdminClient", None)
    for rules in (NEWEST_RULES, NEWEST_RULES._replace(output_bytes_max=1, row_bytes_max=1)):
        require_roomy_topics(ProcessorSettings(), 3, FIRST._replace(rules=rules))


def test_settings_that_may_not_be_read_halt_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "AdminClient", ForbiddingAdmin)
    require_roomy_topics(ProcessorSettings(), 3, FIRST._replace(rules=LARGER))


def test_a_broker_that_does_not_answer_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class SilentAdmin(ForbiddingAdmin):
        def describe_configs(self, resources: list[Any], request_timeout: float) -> dict[Any, "Future[Any]"]:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    monkeypatch.setattr(startup, "AdminClient", SilentAdmin)
    with pytest.raises(Lost, match="partition 3: the settings of "):
        require_roomy_topics(ProcessorSettings(), 3, FIRST._replace(rules=LARGER))


def test_the_group_is_asked_before_a_worker_joins_it_and_one_that_does_not_answer_stops_no_worker(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[str] = []

    def list_one(_connection: object, group: str) -> list[Member]:
        asked.append(group)
        return [Member("w9", "host-a-7", "10.0.0.1", frozenset({"tokens"}))]

    def fail(_connection: object, _group: str) -> list[Member]:
        raise Lost("no answer in time")

    monkeypatch.setattr(startup, "list_members", list_one)
    with pytest.raises(SettingsError, match=r"w9 \(host-a-7 at 10.0.0.1\)"):
        check_group(ProcessorSettings())
    check_group(ProcessorSettings.model_validate({"api_tokens": {"token": "acme"}}))
    assert asked == ["sessionary.processor"] * 2
    monkeypatch.setattr(startup, "list_members", fail)
    check_group(ProcessorSettings())
    assert "no answer in time" in caplog.text


@pytest.mark.parametrize(
    ("fields", "warns"),
    [
        ({}, False),
        ({"api_host": "localhost"}, False),
        ({"api_host": "::1"}, False),
        ({"api_host": "0.0.0.0"}, True),
        ({"api_host": "processor.example"}, True),
        ({"api_host": "0.0.0.0", "api_tls_certificate": "c.pem"}, False),
        ({"api_host": "0.0.0.0", "api_port": 0}, False),
    ],
)
def test_a_plain_api_that_other_machines_reach_is_warned_of(
    fields: dict[str, Any], warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_plain_api(ProcessorSettings(**fields))
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * warns
