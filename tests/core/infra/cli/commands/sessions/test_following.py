"""`sessionary session follow`, against a control API that sends what a test wrote down."""

import json

import pytest

from sessionary.infra.cli.app import run as run_command
from sessionary.infra.cli.commands.sessions import following
from tests.core.producers.control.test_http_control import BODY
from tests.support.stream_server import StreamAnswer, StreamServer, message, problem, stream_server

SESSION_ID = "0b0e7f0a-0000-4000-8000-000000000000"
END = b"event: end\ndata: {}\n\n"


def reported(offset: int, version: int) -> bytes:
    return message(f"1:{offset}", {**BODY, "session_id": SESSION_ID, "version": version, "verdict": None})


def use_server(monkeypatch: pytest.MonkeyPatch, server: StreamServer) -> None:
    monkeypatch.setenv("SESSIONARY_BOOTSTRAP_SERVERS", "none:1")  # no folder of a local stack is looked for
    monkeypatch.setenv("SESSIONARY_CONTROL_URL", server.url)
    monkeypatch.setenv("SESSIONARY_API_TOKENS", '{"token": "acme"}')


def test_each_change_is_a_json_line_for_programs(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    answers = StreamAnswer([reported(5, 1), reported(6, 2)]), StreamAnswer([reported(6, 2), reported(8, 3), END])
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
    monkeypatch.setattr(following, "find_session", lambda *_: {"session_id": SESSION_ID, "tenant_id": "acme"})
    monkeypatch.setattr(following, "clickhouse_client", lambda _: None)
    with stream_server(StreamAnswer([reported(5, 1)], stays=True)) as server:
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
