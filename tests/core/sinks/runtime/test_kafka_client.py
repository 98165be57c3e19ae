import os
import socket
import subprocess
import sys
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

from confluent_kafka import KafkaError, KafkaException, Message

from sessionary.schemas.kafka.clients import AdminConnection
from sessionary.sinks.core.sink_kinds import SINKS
from sessionary.sinks.runtime.kafka_client import (
    consumer_config,
    find_former,
    records_from_messages,
    split_messages,
)
from sessionary.sinks.settings import SinkSettings


def test_messages_become_records_with_their_headers() -> None:
    messages = [
        Message("t.audit", 2, 5, b"k", b"v", [("h", b"1"), ("h", None)], timestamp=(1, 1_005)),
        Message("t.audit", 2, 6, b"k", None, timestamp=(1, 1_006)),
    ]
    full, empty = records_from_messages("t.audit", 2, messages)
    assert full[:6] == ("t.audit", 2, 5, 1_005, b"k", b"v")
    assert full.headers == [("h", b"1"), ("h", b"")]
    assert full.size == 2
    assert (empty.offset, empty.value, empty.headers, empty.size) == (6, None, [], 1)


def test_every_sink_reads_committed_records_only_and_an_instance_has_its_own_name() -> None:
    settings = SinkSettings(instance="a", sink_session_timeout_ms=6_000)
    configs = {kind: consumer_config(definition, settings) for kind, definition in SINKS.items()}
    assert {config["isolation.level"] for config in configs.values()} == {"read_committed"}
    assert configs["audit"]["group.instance.id"] == "sessionary.sink.audit.a"
    assert configs["audit"]["heartbeat.interval.ms"] == 1_000
    assert "group.instance.id" not in consumer_config(SINKS["audit"], SinkSettings())


def test_messages_are_split_where_their_partition_or_their_kind_changes() -> None:
    end = KafkaError(KafkaError._PARTITION_EOF)
    places = [(0, None), (0, None), (1, None), (1, end), (1, end), (1, None), (0, None)]
    messages = [Message("t.audit", number, offset, error=error) for offset, (number, error) in enumerate(places)]
    found = [(number, kind, [one.offset() for one in part]) for number, kind, part in split_messages(messages)]
    assert found == [(0, True, [0, 1]), (1, True, [2]), (1, False, [3, 4]), (1, True, [5]), (0, True, [6])]
    assert list(split_messages([])) == []


class Group:
    """Answers as an admin client does which members a group has."""

    def __init__(self, *members: tuple[str, str, str]) -> None:
        self.members = [
            SimpleNamespace(client_id=client_id, group_instance_id=name, host=host) for client_id, name, host in members
        ]
        self.is_away = self.has_ended = False

    def open_client(self) -> Any:
        return self

    def end_client(self) -> None:
        self.has_ended = True

    def describe_consumer_groups(self, groups: list[str], *, request_timeout: float) -> dict[str, Future[Any]]:
        answer = Future[Any]()
        if self.is_away:
            answer.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
        else:
            answer.set_result(SimpleNamespace(members=self.members))
        return {groups[0]: answer}


def test_a_sink_finds_the_process_that_has_its_name() -> None:
    audit, settings = SINKS["audit"], SinkSettings(instance="a")
    config, name = consumer_config(audit, settings), "sessionary.sink.audit.a"
    host, own = socket.gethostname(), str(config["client.id"])

    def find(*members: tuple[str, str, str]) -> str | None:
        return find_former(cast(AdminConnection, Group(*members)), audit, settings)

    assert find() is None
    assert find((own, name, "/10.0.0.1"), ("sessionary-h-1", "sessionary.sink.audit.b", "/10.0.0.1")) is None
    assert find(("sessionary-other-host-7", name, "/10.0.0.2")) == "other-host-7 at 10.0.0.2"
    assert find((f"sessionary-{host}-{os.getppid()}", name, "/10.0.0.1")) == f"{host}-{os.getppid()} at 10.0.0.1"
    assert find(("rdkafka", name, "/10.0.0.2")) == "a process at 10.0.0.2"


def test_a_former_run_of_a_sink_on_its_host_is_no_other_process() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    group = Group((f"sessionary-{socket.gethostname()}-{ended.pid}", "sessionary.sink.audit.a", "/10.0.0.1"))
    assert find_former(cast(AdminConnection, group), SINKS["audit"], SinkSettings(instance="a")) is None


def test_kafka_that_does_not_answer_keeps_no_sink_from_its_start() -> None:
    group = Group()
    group.is_away = True
    assert find_former(cast(AdminConnection, group), SINKS["audit"], SinkSettings(instance="a")) is None
    assert group.has_ended
