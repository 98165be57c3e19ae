"""`session ask-again`, against a fake processor."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from sessionary.infra.cli.app import run
from tests.core.infra.cli.commands.operators.test_people import JUDGED, SESSION
from tests.core.infra.fake_control_api import FakeControlApi, serve_fake_api

OTHER = SESSION[:-1] + "0"
CLEANUP = {"topic": "cleanup", "id": "c1", "service_id": "billing", "what": "closed"}
TASK = {"topic": "tasks", "id": "r1", "service_id": "billing", "what": "train"}
HEAD = {"tenant_id": "acme", "session_id": SESSION, "owner_service": "billing", "state": "Terminated"}
NOTHING = {"detail": "no request of the session is open", "reason": "nothing_open"}


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeControlApi]:
    with serve_fake_api() as served:
        monkeypatch.setenv("SESSIONARY_CONTROL_URL", served.url)
        monkeypatch.setenv("SESSIONARY_OPERATOR_TOKEN", "op")
        yield served


def path(session: str = SESSION) -> str:
    return f"/v1/sessions/{session}/ask-again?tenant=acme"


def page(*rows: dict[str, Any], missing: tuple[int, ...] = ()) -> tuple[int, dict[str, Any]]:
    found: dict[str, Any] = {
        "open_requests": list(rows),
        "next_cursor": None,
        "missing_partitions": list(missing),
        "positions": {},
    }
    return 200, found


def printed(capfd: pytest.CaptureFixture[str]) -> list[tuple[str, str, str]]:
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    return [(line["session_id"], line["id"], line["outcome"]) for line in lines]


def test_one_session(api: FakeControlApi, capfd: pytest.CaptureFixture[str]) -> None:
    api.answers = {path(): (200, {**JUDGED, "requests": [CLEANUP, TASK]})}
    assert run(["session", "ask-again", SESSION, "--tenant", "acme", "--reason", "lost", "--json"]) == 0
    assert printed(capfd) == [(SESSION, "c1", "asked again"), (SESSION, "r1", "asked again")]
    ((method, asked, body),) = [(each.method, each.path, each.body) for each in api.asked]
    assert (method, asked, json.loads(body)) == ("POST", path(), {"reason": "lost"})


@pytest.mark.parametrize(
    ("status", "problem", "code", "said"),
    [
        (409, NOTHING, 5, "no request of the session is open"),
        (404, {"detail": "unknown session", "reason": "unknown_session"}, 4, "unknown session"),
        (410, {"detail": "the session is archived", "reason": "session_archived"}, 4, "the session is archived"),
    ],
)
def test_one_session_that_cannot_be_asked_for(
    api: FakeControlApi, capfd: pytest.CaptureFixture[str], status: int, problem: dict[str, str], code: int, said: str
) -> None:
    api.answers = {path(): (status, problem)}
    assert run(["session", "ask-again", SESSION, "--tenant", "acme", "--reason", "lost"]) == code
    assert said in capfd.readouterr().err


def test_all_sessions_but_those_that_are_done_meanwhile(api: FakeControlApi, capfd: pytest.CaptureFixture[str]) -> None:
    listed = "/v1/open-requests?tenant=acme&limit=1000"
    api.answers = {
        listed: page({**HEAD, "requests": [CLEANUP]}, {**HEAD, "session_id": OTHER, "requests": [CLEANUP]}),
        path(): (409, NOTHING),
        path(OTHER): (200, {**JUDGED, "session_id": OTHER, "requests": [TASK]}),
    }
    assert run(["session", "ask-again", "--all", "--tenant", "acme", "--reason", "lost", "--json"]) == 0
    assert printed(capfd) == [(OTHER, "r1", "asked again")]


def test_a_refusal_is_not_passed_over_in_silence(api: FakeControlApi, capfd: pytest.CaptureFixture[str]) -> None:
    """Such as that of a worker without the key by which the event is signed."""
    api.answers = {
        "/v1/open-requests?limit=1000": page({**HEAD, "requests": [CLEANUP, TASK]}),
        path(): (409, {"detail": "the worker does not know the key", "reason": "bad_signature"}),
    }
    assert run(["session", "ask-again", "--all", "--reason", "lost", "--json"]) == 1
    output = capfd.readouterr()
    outcomes = [json.loads(line)["outcome"] for line in output.out.splitlines()]
    assert outcomes == ["refused: the worker does not know the key"] * 2
    assert "refused: the worker does not know the key" in output.err


def test_a_dry_run_lists_and_sends_nothing(api: FakeControlApi, capfd: pytest.CaptureFixture[str]) -> None:
    one = f"/v1/open-requests?tenant=acme&session_id={SESSION}&limit=1000"
    api.answers = {
        "/v1/open-requests?limit=1000": page({**HEAD, "requests": [CLEANUP, TASK]}),
        one: page({**HEAD, "requests": [TASK]}),
    }
    assert run(["session", "ask-again", "--all", "--dry-run", "--json"]) == 0
    assert printed(capfd) == [(SESSION, "c1", "open"), (SESSION, "r1", "open")]
    assert run(["session", "ask-again", SESSION, "--tenant", "acme", "--dry-run", "--json"]) == 0
    assert printed(capfd) == [(SESSION, "r1", "open")]
    assert {request.method for request in api.asked} == {"GET"}


def test_sessions_of_a_halted_partition_are_not_passed_over_in_silence(
    api: FakeControlApi, capfd: pytest.CaptureFixture[str]
) -> None:
    api.answers = {"/v1/open-requests?limit=1000": page(missing=(3,))}
    assert run(["session", "ask-again", "--all", "--reason", "lost"]) == 1
    assert "partitions 3 did not answer" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--reason", "x"], "name a session, or say --all"),
        ([SESSION, "--all", "--reason", "x"], "name a session, or say --all"),
        (["--all"], "say why, by --reason"),
        ([SESSION], "say why, by --reason"),
    ],
)
def test_what_is_no_request(
    api: FakeControlApi, capfd: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert run(["session", "ask-again", *arguments]) == 5
    assert said in capfd.readouterr().err
    assert api.asked == []
