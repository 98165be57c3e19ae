"""`sessionary integrity` without any server: what it says of servers that answer in part."""

import json
import re
import time

import pytest

from sessionary.infra.cli.app import run
from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.schemas.errors import Unavailable
from sessionary.sinks.integrity import landed_ends, repair, topic_counts
from sessionary.sinks.integrity.repair import RepairedPartition
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


def test_a_repair_gives_each_fault_that_is_left_its_cause(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    names = ["audit_rows_missing", "history_rows_missing", "history_end_missing", "audit_dead_letters", "batch_doubled"]
    names += ["chain_broken", "history_rows_unexpected", "audit_deleted_unread", "history_log_shorter"]
    servers.faults = [{**FAULT, "fault": name} for name in names]
    behind = RepairedPartition("audit", 1, 0, 0, 0, None, None, None, 900, 0)
    asked: list[object] = []

    def repair_rows(_settings: object, kind: str, *rest: object) -> list[RepairedPartition]:
        asked.append(rest[-1])
        return [behind] if kind == "audit" else []

    monkeypatch.setattr(repair, "repair_rows", repair_rows)
    monkeypatch.setattr(repair, "repair_run_events", lambda *_: [])
    assert run(["integrity", "repair", "--from", "2026-01-01", "--json"]) == 1
    said = dict(line.split(": ", 1) for line in capfd.readouterr().err.splitlines() if "(partition 1" in line)
    assert list(said) == names
    assert said["audit_rows_missing"].endswith(
        "sink audit has not written all of Kafka's records yet, see sessionary lag"
    )
    assert said["history_rows_missing"].endswith("Kafka has no record for what is missing")
    assert said["history_end_missing"].endswith("let --from include it")
    assert said["audit_dead_letters"].endswith("see sink_dead_letters")
    assert all(asked == servers.faults for asked in asked)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("audit_row_missing", "no kind of fault 'audit_row_missing': audit_rows_missing"),
        ("cleanup_lost", "no kind of fault 'cleanup_lost'"),
        ("", "no kind of fault ''"),
    ],
)
def test_a_misspelt_fault_is_refused_before_any_server_is_asked(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], fault: str, said: str
) -> None:
    asked: list[object] = []
    monkeypatch.setattr("sessionary.infra.topics.count_brokers", asked.append)
    assert run(["integrity", "dismiss", fault, "--reason", "known", "--by", "ann"]) == 5
    assert said in capfd.readouterr().err
    assert asked == []


def test_a_period_is_how_long_ago_a_date_or_a_full_time_in_check_and_repair_alike(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    servers.faults = []
    asked: list[str] = []

    def fetch_rows(_: ClickHouseClient, sql: str, **__: object) -> list[dict[str, object]]:
        asked.append(sql)
        return []

    monkeypatch.setattr(ClickHouseClient, "fetch_rows", fetch_rows)
    monkeypatch.setattr(repair, "repair_rows", lambda *_: [])
    monkeypatch.setattr(repair, "repair_run_events", lambda *_: [])
    begun_s = int(time.time())
    for command in ("check", "repair"):
        for text in ("2026-01-02", "2026-01-02T00:00", "2026-01-02T01:00:00+01:00", "2026-01-02 00:00:00.0Z"):
            assert run(["integrity", command, "--from", text, "--to", "2026-01-03"]) == 0
        assert run(["integrity", command, "--from", "2h"]) == 0
    bounds = [tuple(map(int, re.findall(r"toDateTime\((\d+)", sql))) for sql in asked if "v_integrity_between" in sql]
    fixed = {bound for bound in bounds if bound[0] < begun_s - 8_000}
    assert fixed == {(1_767_312_000, 1_767_398_400)}
    ago = {bound[0] - begun_s for bound in bounds if bound not in fixed}
    assert ago
    assert all(-7_200 <= seconds <= -7_200 + 60 for seconds in ago)
    capfd.readouterr()
    for option, text in (("--from", "yesterday"), ("--to", "soon")):
        assert run(["integrity", "check", option, text]) == 5
        assert f"{option} {text}: give 90s, 15m, 2h or 7d ago" in capfd.readouterr().err
    assert run(["integrity", "check", "--from", "2026-01-03", "--to", "2026-01-03"]) == 5
    assert "is not after" in capfd.readouterr().err
