"""Runs, steps and tool calls by the control API over HTTP."""

from typing import Any

import pytest

from sessionary.producers import Invalid, ProducerSettings, SessionLost, Unavailable, Verdict
from sessionary.producers.control.http_control import HttpControl
from sessionary.producers.control.http_runs import HttpRuns
from sessionary.producers.run_ports import CallView, RunView, StepView
from sessionary.schemas.types import ErrorInfo
from tests.support.fake_control import ControlRequest, ControlResponse, control_server

ERROR = {"error_class": "retryable", "code": "TimeoutError", "message": "slow"}
RUN = {
    **dict.fromkeys(("input_json", "plan_json", "result_json", "artifact_id", "error")),
    "run_id": "r",
    "mode": "attached",
    "task_type": "report",
    "state": "running",
    "verdict": {"outcome": "applied"},
}
STEP = {"name": "a/b", "state": "failed", "attempt": 2, "error": ERROR, "output_json": None}
CALL = {
    "tool_name": "send",
    "idem_key": "k",
    "state": "running",
    "try_number": 1,
    "side_effect": True,
    "reservation": "e-1",
    "error": None,
    "result_json": None,
    "verdict": None,
}


def answer_with(body: Any, status: int = 200) -> tuple[list[ControlRequest], Any]:
    asked: list[ControlRequest] = []

    def answer(request: ControlRequest) -> ControlResponse:
        asked.append(request)
        return ControlResponse(status, body)

    return asked, control_server(answer)


def runs_at(url: str) -> HttpRuns:
    return HttpRuns(HttpControl(ProducerSettings.from_env({}, control_url=url), "acme"))


def test_a_run_is_read_with_the_verdict_on_an_event() -> None:
    asked, server = answer_with(RUN)
    with server as url:
        found = runs_at(url).fetch_run("s", "r", (2, 7), 60.0)
    assert found == RunView("r", "attached", "report", "running", verdict=Verdict(applied=True, reason=None))
    assert (asked[0].session_id, asked[0].query["after"], asked[0].query["tenant"]) == ("r", "2:7", "acme")


def test_steps_are_read() -> None:
    step = StepView("a/b", "failed", 2, ErrorInfo("retryable", "TimeoutError", "slow"))
    _, server = answer_with({"steps": [STEP]})
    with server as url:
        assert runs_at(url).fetch_steps("s", "r", 60.0) == [step]
    asked, server = answer_with(STEP)
    with server as url:
        assert runs_at(url).fetch_step("s", "r", "a/b", 60.0) == step
    assert asked[0].session_id == "a%2Fb"


def test_tool_calls_are_read() -> None:
    call = CallView("send", "k", "running", 1, side_effect=True, reservation="e-1")
    _, server = answer_with({"tool_calls": [CALL]})
    with server as url:
        assert runs_at(url).fetch_calls("s", "r", 60.0) == [call]
    _, server = answer_with(CALL)
    with server as url:
        assert runs_at(url).fetch_call("s", None, "k", None, 60.0) == call


@pytest.mark.parametrize("reason", ["unknown_run", "unknown_step", "unknown_call"])
def test_what_is_unknown_is_none(reason: str) -> None:
    _, server = answer_with({"reason": reason, "detail": "there is none"}, 404)
    with server as url:
        assert runs_at(url).fetch_call("s", "r", "k", None, 60.0) is None


def test_a_past_state_that_differs_is_asked_for_once() -> None:
    """It would be the same again, and the processor pages for each."""
    problem = {"reason": "state_differs", "detail": "its events do not lead to the state; see the runbook"}
    asked, server = answer_with(problem, 500)
    with server as url, pytest.raises(Invalid, match="snapshot snap_1 of session s: its events do not lead") as caught:
        runs_at(url).fetch_snapshot("s", "snap_1", 60.0)
    assert (len(asked), caught.value.reason) == (1, "hash_mismatch")


def test_a_lost_session_and_a_wrong_answer_are_errors() -> None:
    _, server = answer_with({"reason": "unknown_session", "detail": "there is none"}, 404)
    with server as url, pytest.raises(SessionLost):
        runs_at(url).fetch_run("s", "r", None, 60.0)
    _, server = answer_with({"something": "else"})
    with server as url, pytest.raises(Unavailable, match="not run r"):
        runs_at(url).fetch_run("s", "r", None, 60.0)
