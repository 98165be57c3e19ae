"""The control API's client against a server that says what it is asked to."""

import json
import re
from collections import deque
from typing import Any

import pytest

from sessionary.producers import (
    AuthenticationFailed,
    Invalid,
    ProducerSettings,
    SessionLost,
    SettingsError,
    Unavailable,
)
from sessionary.producers.control import http_control
from sessionary.producers.control.http_control import HttpControl, parse_session
from sessionary.producers.ports import KnownSession, Verdict
from sessionary.schemas.types import Rejection
from tests.support.fake_control import ControlRequest, ControlResponse, control_server

BODY: dict[str, Any] = {
    "session_id": "s",
    "tenant_id": "acme",
    "state": "Active",
    "phase": "processing",
    "epoch": 2,
    "version": 4,
    "owner_service": "billing",
    "state_json": "{}",
    "state_schema_version": 1,
    "snapshot": {"snapshot_id": "snap_1", "state_json": '{"n":1}'},
    "limits": {"model_ms": 30_000},
    "deadline_ms": 5,
    "rejections": [],
    "verdict": {"partition": 1, "offset": 7, "outcome": "rejected", "reason": "stale_epoch"},
    "position": {"partition": 1, "next_offset": 8},
}


def control(url: str | None) -> HttpControl:
    return HttpControl(ProducerSettings.from_env({}, control_url=url, api_token="token-1"))


def test_it_asks_for_the_verdict_and_reads_the_answer() -> None:
    asked: list[ControlRequest] = []

    def answer(one: ControlRequest) -> ControlResponse:
        asked.append(one)
        return ControlResponse(200, BODY)

    with control_server(answer) as url:
        view = control(url).fetch_session("s", (1, 7), 60)
    assert (view.state, view.epoch, view.version, view.snapshot_id) == ("Active", 2, 4, "snap_1")
    assert view.limits.model_ms == 30_000
    assert view.verdict == Verdict(applied=False, reason="stale_epoch")
    assert asked[0].query["after"] == "1:7"
    assert 0 < int(asked[0].query["wait_ms"]) <= 60_000
    assert asked[0].authorization == "Bearer token-1"


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({}, ()),
        ({"data_classes": ["personal", "medical"]}, ("personal", "medical")),
        ({"data_classes": ["of a later release", "UNKNOWN", "financial"]}, ("financial",)),
    ],
)
def test_it_reads_the_data_classes_that_it_can_write(given: dict[str, list[str]], read: tuple[str, ...]) -> None:
    assert parse_session({**BODY, **given}).data_classes == read


def test_a_verdict_that_is_not_kept_is_neither_applied_nor_rejected() -> None:
    verdict = {"partition": 1, "offset": 7, "outcome": "not_kept", "reason": None}
    assert parse_session({**BODY, "verdict": verdict}).verdict == Verdict(applied=False, reason=None, kept=False)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (401, AuthenticationFailed),
        (403, AuthenticationFailed),
        (404, SessionLost),
        (410, SessionLost),
        (400, Invalid),
        (500, Unavailable),
        (503, Unavailable),
    ],
)
def test_problems_become_named_errors(status: int, error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_control, "_RETRY_S_MAX", 3_600.0)  # there is no time for a second question
    with (
        control_server(lambda _: ControlResponse(status, {"detail": "because"}, {"Retry-After": "900"})) as url,
        pytest.raises(error, match="because"),
    ):
        control(url).fetch_session("s", None, 60)


@pytest.mark.parametrize("body", [b"<html>", b"[]", json.dumps({**BODY, "limits": "none"}).encode()])
def test_an_answer_that_is_no_session_is_no_crash(body: bytes) -> None:
    with control_server(lambda _: ControlResponse(200, body)) as url, pytest.raises(Unavailable):
        control(url).fetch_session("s", None, 0.1)


def test_a_retry_after_that_is_a_date_is_no_crash() -> None:
    dated = ControlResponse(502, b"<html>", {"Retry-After": "Tue, 1 Jan"})
    with control_server(lambda _: dated) as url, pytest.raises(Unavailable):
        control(url).fetch_session("s", None, 0.1)


def test_a_503_is_asked_again_until_there_is_an_answer() -> None:
    said = deque(
        [
            ControlResponse(503, {}, {"Retry-After": "0"}),
            ControlResponse(503, {}, {"Retry-After": "0"}),
            ControlResponse(200, BODY),
        ]
    )
    with control_server(lambda _: said.popleft()) as url:
        assert control(url).fetch_session("s", (1, 7), 60).epoch == 2
    assert not said


def test_nobody_there_is_unavailable_and_no_url_is_a_settings_error() -> None:
    with control_server(lambda _: ControlResponse(200, BODY)) as url:
        pass
    with pytest.raises(Unavailable):
        control(url).fetch_session("s", None, 0.1)
    with pytest.raises(SettingsError, match="SESSIONARY_CONTROL_URL"):
        control(None).check_configured()


CHANGES: dict[str, Any] = {
    "tenant": "acme",
    "positions": {"1": 8},
    "sessions": [
        {
            "session_id": "s",
            "state": "Timeout",
            "epoch": 2,
            "holder": None,
            "reason_code": "inactive",
            "rejections": [{"offset": 7, "reason": "late", "event_id": "e"}],
            "verdict": None,
            "producer_seq": 4,
        }
    ],
}


def test_it_polls_for_many_sessions_and_names_its_tenant() -> None:
    asked: list[ControlRequest] = []

    def answer(one: ControlRequest) -> ControlResponse:
        asked.append(one)
        return ControlResponse(200, CHANGES if one.session_id == "poll" else BODY)

    with control_server(answer) as url:
        settings = ProducerSettings.from_env({}, control_url=url, api_token="token-1")
        polling = HttpControl(settings, "acme")
        changes = polling.poll_sessions([KnownSession("s", "Active", 2, "p", 5, (1, 7), "p", 3, 2)], 60)
        polling.fetch_session("s", None, 60)
    assert changes.positions == {1: 8}
    (session,) = changes.sessions
    assert (session.state, session.epoch, session.reason_code, session.verdict) == ("Timeout", 2, "inactive", None)
    assert (session.rejections, session.producer_seq) == ((Rejection(7, "late", "e"),), 4)
    assert json.loads(asked[0].body) == {
        "tenant": "acme",
        "sessions": [
            {
                "session_id": "s",
                "state": "Active",
                "epoch": 2,
                "holder": "p",
                "rejected_after": 5,
                "after": "1:7",
                "producer_id": "p",
                "last_seq": 3,
                "agents": 2,
            }
        ],
    }
    assert asked[0].authorization == "Bearer token-1"
    assert asked[1].query["tenant"] == "acme"


@pytest.mark.parametrize(
    ("response", "error", "says"),
    [
        (
            ControlResponse(403, {"detail": "the token is for acme, the client says globex"}),
            AuthenticationFailed,
            "globex",
        ),
        (ControlResponse(405, {"detail": "POST"}), Unavailable, "knows no polls: upgrade the processors"),
        (ControlResponse(404, {"detail": "POST"}), Unavailable, "knows no polls: upgrade the processors"),
        (ControlResponse(503, {"detail": "later"}), Unavailable, "later"),
        (ControlResponse(200, {"positions": {"x": 1}, "sessions": []}), Unavailable, "not one to a poll"),
        (ControlResponse(200, [1]), Unavailable, "not one to a poll"),
        (ControlResponse(400, {"detail": "sessions[0]"}), Invalid, "sessions[0]"),
    ],
)
def test_an_answer_to_a_poll_that_is_no_answer_is_an_error(
    response: ControlResponse, error: type[Exception], says: str
) -> None:
    with control_server(lambda _: response) as url, pytest.raises(error, match=re.escape(says)):
        control(url).poll_sessions([], 60)
