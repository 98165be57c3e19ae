"""`sessionary rejected list` finds the rejected records of a user, an agent and a session."""

import json

import pytest

from sessionary.infra.cli.app import run
from sessionary.schemas.settings import ClickHouseSettings
from tests.support.aged_rows import AgedRows
from tests.support.event_factory import EventFactory
from tests.support.judged_rows import JudgedRows


def test_rejected_records_are_found_by_user_by_agent_and_by_session(
    tables: ClickHouseSettings, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SESSIONARY_CLICKHOUSE_URL", tables.clickhouse_url)
    monkeypatch.setenv("SESSIONARY_CLICKHOUSE_DATABASE", tables.clickhouse_database)
    log, agent = JudgedRows(AgedRows(tables)), EventFactory()
    log.start(agent)
    people = [("ann", "planner"), ("ann", "writer"), ("bob", "writer")]
    for user, name in people:
        # A session begins once: each of these is rejected.
        assert log.send(agent, "session_started", {"user_id": user, "agent_id": name}) not in ("applied", "duplicate")
    assert log.append(agent.key.encoded(), b"this is no Avro") == "undecodable"
    log.land()

    def log_positions(*options: str) -> list[str]:
        assert run(["rejected", "list", "--json", *options]) == 0
        return sorted(json.loads(line)["log_position"] for line in capfd.readouterr().out.splitlines())

    assert log_positions() == ["0:4", "0:5", "0:6", "0:7"]
    assert log_positions("--user", "ann") == ["0:4", "0:5"]
    assert log_positions("--agent", "writer") == ["0:5", "0:6"]
    assert log_positions("--user", "ann", "--agent", "writer") == ["0:5"]
    whole = agent.key.session_id
    for session in (whole, whole[:13], whole.upper(), whole.replace("-", "")):
        assert log_positions("--session", session) == log_positions()
    assert log_positions("--session", "ffffffff-ffff") == []
    assert log_positions("--user", "ann", "--since", "2100-01-01") == log_positions("--user", "zoe") == []
