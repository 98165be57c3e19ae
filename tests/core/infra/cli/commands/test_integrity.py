"""`sessionary integrity` without any server: what it says of servers that answer in part."""

import json

import pytest

from sessionary.infra.cli.app import run
from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.schemas.errors import Unavailable
from sessionary.sinks.integrity import landed_ends, topic_counts
from sessionary.sinks.integrity.topic_counts import TopicComparison

FAULT = {
    "fault": "audit_rows_missing",
    "partition": 1,
    "rows": 2,
    "first_offset": 10,
    "last_offset": 19,
    "session_id": "",
    "tenant_id": "",
}


class Servers:
    """What ClickHouse and Kafka answer."""

    def __init__(self) -> None:
        self.faults = [FAULT]
        self.compared = TopicComparison([], [])
        self.away: Unavailable | None = None

    def find_ends(self, *_: object) -> list[landed_ends.EndFault]:
        if self.away is not None:
            raise self.away
        return []


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Servers:
    made = Servers()
    monkeypatch.setattr(ClickHouseClient, "fetch_rows", lambda *_: list(made.faults))
    monkeypatch.setattr("sessionary.infra.topics.count_brokers", lambda _: 1)
    monkeypatch.setattr(landed_ends, "find_end_faults", made.find_ends)
    monkeypatch.setattr(topic_counts, "compare_topics", lambda *_: made.compared)
    return made


def test_a_kafka_that_fails_meanwhile_hides_no_fault_of_the_rows(
    servers: Servers, capfd: pytest.CaptureFixture[str]
) -> None:
    servers.away = Unavailable("the leader of a log is away", 2.0)
    assert run(["integrity", "check", "--json"]) == 1
    printed = capfd.readouterr()
    assert [json.loads(line) for line in printed.out.splitlines()] == [FAULT]
    assert "the ends of the tables are not compared: the leader of a log is away" in printed.err
    servers.faults = []
    assert run(["integrity", "check", "--json"]) == 3


def test_success_says_what_was_not_compared(servers: Servers, capfd: pytest.CaptureFixture[str]) -> None:
    servers.faults = []

    def last_line(*options: str) -> str:
        capfd.readouterr()
        assert run(["integrity", "check", *options]) == 0
        return capfd.readouterr().err.splitlines()[-1]

    assert last_line() == "no row is missing or doubled, nor is a request"
    assert last_line("--to", "2026-01-01").endswith("no request is compared, because --to was given")
    servers.compared = TopicComparison([], ["p.tasks is not compared: it is away"])
    assert last_line().endswith("nor is a request, of those that are compared: see the lines above")
