"""The commands by which people step in, against a fake processor."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from sessionary.infra.cli.app import run
from tests.core.infra.fake_control_api import FakeControlApi, serve_fake_api

SESSION = "183108ed-8784-4091-97dd-1ac993fda554"
JUDGED = {
    "session_id": SESSION,
    "tenant_id": "acme",
    "state": "Paused",
    "epoch": 1,
    "version": 2,
    "reason_code": "manual",
    "snapshot_id": "s2",
    "event_id": "e1",
    "verdict": {"partition": 0, "offset": 7, "outcome": "applied", "reason": None},
}
WAITING = {
    "tenant_id": "acme",
    "session_id": SESSION,
    "user_id": "u1",
    "agent_id": "agent",
    "owner_service": "billing",
    "question_id": "q1",
    "question": "Deploy?",
    "asked_ms": 1_700_000_000_000,
    "deadline_ms": 1_700_000_060_000,
}


def path(action: str) -> str:
    return f"/v1/sessions/{SESSION}/{action}?tenant=acme"


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeControlApi]:
    with serve_fake_api() as served:
        monkeypatch.setenv("SESSIONARY_CONTROL_URL", served.url)
        monkeypatch.setenv("SESSIONARY_OPERATOR_TOKEN", "op")
        yield served


@pytest.mark.parametrize(
    ("command", "action", "arguments", "body"),
    [
        ("session pause", "pause", ["--reason", "look"], {"reason": "look"}),
        ("session resume", "resume", ["--reason", "done"], {"reason": "done"}),
        ("session cancel", "cancel", ["--reason", "wrong"], {"reason": "wrong"}),
        ("session claim", "claim", ["--for", "shipping", "--reason", "mute"], {"for": "shipping", "reason": "mute"}),
        ("question approve", "approve", [], {}),
        (
            "question approve",
            "approve",
            ["--reason", "fine", "--question", "q1"],
            {"reason": "fine", "question_id": "q1"},
        ),
        ("question deny", "deny", ["--reason", "no"], {"reason": "no"}),
    ],
)
def test_a_request_is_sent_with_the_operators_token(
    api: FakeControlApi,
    capfd: pytest.CaptureFixture[str],
    command: str,
    action: str,
    arguments: list[str],
    body: dict[str, Any],
) -> None:
    api.answers = {path(action): (200, JUDGED)}
    assert run([*command.split(), SESSION, "--tenant", "acme", *arguments]) == 0
    (asked,) = api.asked
    assert (asked.method, asked.authorization, json.loads(asked.body)) == ("POST", "Bearer op", body)
    assert json.loads(capfd.readouterr().out) == JUDGED


@pytest.mark.parametrize("action", ["pause", "resume", "cancel"])
def test_who_steps_in_says_why(api: FakeControlApi, capfd: pytest.CaptureFixture[str], action: str) -> None:
    assert run(["session", action, SESSION, "--tenant", "acme"]) == 2
    assert "--reason" in capfd.readouterr().err
    assert api.asked == []


def test_a_claim_shows_whose_the_session_is(
    api: FakeControlApi, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessionary.infra.cli.tables.wants_json", lambda asked: asked)
    monkeypatch.setattr("sessionary.infra.cli.commands.operators.people.wants_json", lambda asked: asked)
    api.answers = {path("claim"): (200, {**JUDGED, "owner_service": "shipping"})}
    assert run(["session", "claim", SESSION, "--tenant", "acme", "--for", "shipping", "--reason", "mute"]) == 0
    assert "shipping" in capfd.readouterr().out
    for left_out in ("--for", "--reason"):
        given = {"--for": "shipping", "--reason": "mute"}
        del given[left_out]
        words = [word for option in given.items() for word in option]
        assert run(["session", "claim", SESSION, "--tenant", "acme", *words]) == 2
        assert left_out in capfd.readouterr().err
    assert len(api.asked) == 1


def test_a_rejection_says_what_to_do(api: FakeControlApi, capfd: pytest.CaptureFixture[str]) -> None:
    api.answer_problem(path("resume"), 409, "question_open", "the session waits for an answer: approve or deny it")
    assert run(["session", "resume", SESSION, "--tenant", "acme", "--reason", "go on"]) == 5
    assert capfd.readouterr().err == "sessionary: the session waits for an answer: approve or deny it\n"


def test_an_unknown_session_is_not_found(api: FakeControlApi, capfd: pytest.CaptureFixture[str]) -> None:
    api.answer_problem(path("pause"), 404, "unknown_session", f"tenant acme has no session {SESSION}")
    assert run(["session", "pause", SESSION, "--tenant", "acme", "--reason", "look"]) == 4
    assert f"tenant acme has no session {SESSION}" in capfd.readouterr().err


def test_without_a_verdict_the_same_request_is_sent_again(api: FakeControlApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sessionary.infra.control_api_client._PAUSE_S", 0.0)
    api.answer_problem(path("pause"), 503, "not_ready", "the event is sent, but not judged yet")
    assert run(["session", "pause", SESSION, "--tenant", "acme", "--reason", "look"]) == 3
    assert len(api.asked) == 3


def test_open_questions_are_listed(
    api: FakeControlApi, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page: dict[str, Any] = {"waiting": [WAITING], "next_cursor": None, "missing_partitions": [3], "positions": {}}
    api.answers = {"/v1/waiting?limit=50": (200, page), "/v1/waiting?tenant=acme&limit=1": (200, page)}
    assert run(["question", "list"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out) == WAITING
    assert err == "partitions without an answer, whose questions are missing: 3\n"
    monkeypatch.setattr("sessionary.infra.cli.tables.wants_json", lambda asked: asked)
    monkeypatch.setattr("sessionary.infra.cli.commands.operators.people.wants_json", lambda asked: asked)
    monkeypatch.setenv("COLUMNS", "200")
    assert run(["question", "list", "--tenant", "acme", "--limit", "1"]) == 0
    out = capfd.readouterr().out
    assert "Deploy?" in out
    assert "2023-11-14 22:14:20" in out
