"""Lists of tasks by the control API over HTTP."""

from typing import Any

import pytest

from sessionary.producers import ProducerSettings, Unavailable
from sessionary.producers.control.http_control import HttpControl
from sessionary.producers.ports import TaskFilter
from sessionary.schemas.ids import SessionKey, new_task_id
from tests.support.fake_control import ControlRequest, ControlResponse, control_server

SESSION = "11111111-1111-4111-8111-111111111111"
HEAD = {
    **dict.fromkeys(("error", "progress", "artifact_id", "holder")),
    "session_id": SESSION,
    "task_type": "train",
    "state": "running",
    "user_id": "u1",
    **dict.fromkeys(("created_ms", "entered_ms", "last_event_ms"), 1),
}


def head(name: str) -> dict[str, Any]:
    return {**HEAD, "run_id": new_task_id(SessionKey("acme", SESSION), name)}


def part(runs: list[dict[str, Any]], cursor: str | None = None, missing: tuple[int, ...] = ()) -> dict[str, Any]:
    return {"runs": runs, "next_cursor": cursor, "missing_partitions": list(missing), "positions": {}}


def control_of(url: str) -> HttpControl:
    return HttpControl(ProducerSettings.from_env({}, control_url=url), "acme")


def test_a_list_is_asked_for_part_by_part_and_has_only_tasks() -> None:
    asked: list[ControlRequest] = []
    parts = [part([head("a"), {**HEAD, "run_id": "a-detached-run"}], "c1"), part([]), part([head("b")])]

    def answer(request: ControlRequest) -> ControlResponse:
        asked.append(request)
        return ControlResponse(200, parts[len(asked) - 1])

    with control_server(answer) as url:
        control = control_of(url)
        first = control.fetch_tasks(TaskFilter("u1", "running", 2), 60.0)
        last = control.fetch_tasks(TaskFilter(cursor=first.next_cursor), 60.0)
    (view,) = first.tasks
    assert (view.task_id, view.user_id, view.task_type, view.result_json) == (head("a")["run_id"], "u1", "train", None)
    assert (first.next_cursor, last.tasks, last.next_cursor) == ("c1", [], None)
    wanted = {"user_id": "u1", "state": "running", "mode": "detached", "limit": "2", "tenant": "acme"}
    assert dict(asked[0].query) == wanted
    assert dict(asked[1].query) == {"cursor": "c1", "mode": "detached", "limit": "100", "tenant": "acme"}


def test_a_list_waits_for_the_partitions_that_do_not_answer() -> None:
    answers = [part([head("a")], missing=(3,)), part([head("a"), head("b")])]
    with control_server(lambda request: ControlResponse(200, answers.pop(0))) as url:
        found = control_of(url).fetch_tasks(TaskFilter(), 60.0)
    assert [view.task_id for view in found.tasks] == [head(name)["run_id"] for name in "ab"]
    with (
        control_server(lambda request: ControlResponse(200, part([], missing=(3, 5)))) as url,
        pytest.raises(Unavailable, match="no worker answers for the partitions 3, 5"),
    ):
        control_of(url).fetch_tasks(TaskFilter(), 0.0)


def test_an_answer_that_is_no_list_says_so() -> None:
    with (
        control_server(lambda request: ControlResponse(200, {"runs": [1]})) as url,
        pytest.raises(Unavailable, match="not a list of runs"),
    ):
        control_of(url).fetch_tasks(TaskFilter(), 0.0)
