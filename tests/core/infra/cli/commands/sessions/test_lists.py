"""`sessionary session conversation`, against the real API over a client in memory."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sessionary.infra.cli.app import run as run_command
from sessionary.infra.cli.commands.sessions import lists
from sessionary.producers import Session
from sessionary.producers.testing import memory_client
from sessionary.schemas.ids import new_session_id
from tests.core.producers.served_memory import new_memory, serve_memory


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    client, memory = memory_client(memory=new_memory())
    made = client.create(user_id="ann").start()
    made.message("user", "What will May bring?")
    made.conversation.add_result("revenue", {"april": 7})
    made.message("assistant", "8, I think")
    with serve_memory(memory, tmp_path) as url, client:
        monkeypatch.setenv("SESSIONARY_BOOTSTRAP_SERVERS", "none:1")  # no folder of a local stack is looked for
        monkeypatch.setenv("SESSIONARY_CONTROL_URL", url)
        monkeypatch.setenv("SESSIONARY_API_TOKENS", '{"token": "acme"}')
        yield made


def test_the_last_turns_are_json_lines_for_programs(session: Session, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command(["session", "conversation", session.session_id, "--last", "2"]) == 0
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [(line["turn"], line["role"], line["content"], line["name"]) for line in lines] == [
        (2, "tool", '{"april":7}', "revenue"),
        (3, "assistant", "8, I think", None),
    ]


def test_a_person_reads_a_table(
    session: Session, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessionary.infra.cli.tables.wants_json", lambda asked: asked)
    monkeypatch.setenv("COLUMNS", "200")
    assert run_command(["session", "conversation", session.session_id]) == 0
    head, *rows = capfd.readouterr().out.splitlines()
    assert head.split() == ["turn", "role", "name", "content", "service", "agent", "run"]
    assert [row.split()[:2] for row in rows] == [["1", "user"], ["2", "tool"], ["3", "assistant"]]
    assert "What will May bring?" in rows[0]


def test_the_beginning_of_an_id_is_looked_up(
    session: Session, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = session.session_id[:8]

    def find(source: object, given: str, tenant: str | None) -> dict[str, str]:
        assert (given, tenant) == (begun, None)
        return {"session_id": session.session_id, "tenant_id": "acme"}

    monkeypatch.setattr(lists, "clickhouse_client", lambda data: None)
    monkeypatch.setattr(lists, "find_session", find)
    assert run_command(["session", "conversation", begun, "--last", "1"]) == 0
    assert json.loads(capfd.readouterr().out)["content"] == "8, I think"


@pytest.mark.usefixtures("session")
def test_an_unknown_session_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    session_id = new_session_id()
    assert run_command(["session", "conversation", session_id]) != 0
    assert session_id in capfd.readouterr().err
