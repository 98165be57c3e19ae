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
from tests.core.producers.control.test_http_control import BODY
from tests.core.producers.served_memory import new_memory, serve_memory
from tests.support.stream_server import StreamAnswer, StreamServer, message, problem, stream_server


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


SESSION_ID = "0b0e7f0a-0000-4000-8000-000000000000"
END = b"event: end\ndata: {}\n\n"


def told(offset: int, version: int) -> bytes:
    return message(f"1:{offset}", {**BODY, "session_id": SESSION_ID, "version": version, "verdict": None})


def use_server(monkeypatch: pytest.MonkeyPatch, server: StreamServer) -> None:
    monkeypatch.setenv("SESSIONARY_BOOTSTRAP_SERVERS", "none:1")  # no folder of a local stack is looked for
    monkeypatch.setenv("SESSIONARY_CONTROL_URL", server.url)
    monkeypatch.setenv("SESSIONARY_API_TOKENS", '{"token": "acme"}')


def test_each_change_is_a_json_line_for_programs(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    answers = StreamAnswer([told(5, 1), told(6, 2)]), StreamAnswer([told(6, 2), told(8, 3), END])
    with stream_server(*answers) as server:
        use_server(monkeypatch, server)
        assert run_command(["session", "follow", SESSION_ID]) == 0
        assert [headers["authorization"] for _, headers in server.asked] == ["Bearer token"] * 2
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [(line["session_id"], line["position"], line["version"]) for line in lines] == [
        (SESSION_ID, "1:5", 1),
        (SESSION_ID, "1:6", 2),
        (SESSION_ID, "1:8", 3),
    ]


def test_a_person_reads_lines_and_the_command_ends_after_a_silence(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sessionary.infra.cli.tables.wants_json", lambda asked: asked)
    monkeypatch.setattr(lists, "find_session", lambda *_: {"session_id": SESSION_ID, "tenant_id": "acme"})
    monkeypatch.setattr(lists, "clickhouse_client", lambda _: None)
    with stream_server(StreamAnswer([told(5, 1)], stays=True)) as server:
        use_server(monkeypatch, server)
        assert run_command(["session", "follow", SESSION_ID[:8], "--timeout", "0.1"]) == 0
    assert capfd.readouterr().out == "1:5  Active  processing  2  1  {}\n"


def test_an_unknown_session_is_said(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    with stream_server(problem(404, "unknown_session")) as server:
        use_server(monkeypatch, server)
        assert run_command(["session", "follow", SESSION_ID]) != 0
        assert len(server.asked) == 1
    out, err = capfd.readouterr()
    assert (out, "unknown_session" in err) == ("", True)
