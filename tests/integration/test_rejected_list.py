"""`sessionary rejected list` finds the refused records of a user, an agent and a session."""

import json

import pytest

from sessionary.infra.cli.app import run
from sessionary.schemas.settings import ClickHouseSettings
from tests.support.aged_rows import AgedRows
from tests.support.event_factory import EventFactory
from tests.support.judged_rows import JudgedRows


def test_refused_records_are_found_by_user_by_agent_and_by_session(
    tables: ClickHouseSettings, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SESSIONARY_CLICKHOUSE_URL", tables.clickhouse_url)
    monkeypatch.setenv("SESSIONARY_CLICKHOUSE_DATABASE", tables.clickhouse_database)
    log, agent = JudgedRows(AgedRows(tables)), EventFactory()
    log.start(agent)
    people = [("ann", "planner"), ("ann", "writer"), ("bob", "writer")]
    for user, name in people:
        # A session begins once: each of these is refused.
        assert log.send(agent, "session_started", {"user_id": user, "agent_id": name}) not in ("applied", "duplicate")
    assert log.append(agent.key.encoded(), b"this is no Avro") == "undecodable"
    log.land()

    def places(*options: str) -> list[str]:
        assert run(["rejected", "list", "--json", *options]) == 0
        return sorted(json.loads(line)["place"] for line in capfd.readouterr().out.splitlines())

    assert places() == ["0:4", "0:5", "0:6", "0:7"]
    assert places("--user", "ann") == ["0:4", "0:5"]
    assert places("--agent", "writer") == ["0:5", "0:6"]
    assert places("--user", "ann", "--agent", "writer") == ["0:5"]
    whole = agent.key.session_id
    for session in (whole, whole[:13], whole.upper(), whole.replace("-", "")):
        assert places("--session", session) == places()
    assert places("--session", "ffffffff-ffff") == []
    assert places("--user", "ann", "--since", "2100-01-01") == places("--user", "zoe") == []
