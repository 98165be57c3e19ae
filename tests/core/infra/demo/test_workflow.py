"""What each process made of each step, and which figures are faults."""

from typing import Any

from sessionary.infra.demo.workflow import EXAMPLE, HELD_ANSWERS, WorkflowReport, step_table

STORED = "succeeded in attempt 1: its stored output is used"
GOOD = {
    "run": "completed",
    "messages_sent": 1,
    "requests_to_send": 1,
    "steps_done_twice": 0,
    "steps_skipped_unasked": 0,
}


def row(process: int | None, event_type: str, name: str, state: str = "", reason: str = "") -> dict[str, Any]:
    return {"process": process, "event_type": event_type, "name": name, "state": state, "reason": reason}


def test_a_step_is_skipped_done_again_or_new_with_its_reason() -> None:
    table = step_table(
        [
            row(1, "step_started", "fetch_issue"),
            row(1, "step_succeeded", "fetch_issue"),
            row(1, "step_started", "search_kb"),
            row(2, "step_skipped", "fetch_issue", reason=STORED),
            row(2, "step_started", "search_kb"),
            row(2, "step_succeeded", "search_kb"),
            row(2, "step_started", "notify_team"),
            row(2, "step_succeeded", "notify_team"),
        ]
    )
    assert [tuple(step.values()) for step in table] == [
        ("fetch_issue", "done", "skipped", STORED),
        ("search_kb", "killed in it", "done", "it had not ended; its call only reads, and was made again"),
        ("notify_team", "not begun", "done", "the first process did not come to it"),
    ]


def test_a_call_that_was_unknown_is_the_reason_of_its_step() -> None:
    (step,) = step_table(
        [
            row(1, "step_started", "notify_team"),
            row(None, "tool_call_unknown", "send_message", "unknown"),
            row(2, "tool_call_resolved", "send_message", "succeeded"),
            row(2, "step_started", "notify_team"),
            row(2, "step_succeeded", "notify_team"),
        ]
    )
    assert (step["first_process"], step["second_process"]) == ("killed in it", "done")
    assert step["why"] == "its call was unknown; the messenger was asked by its key, and had sent it"


def test_a_second_message_is_a_fault() -> None:
    assert WorkflowReport([], [], [], dict(GOOD)).faults == {}
    twice = WorkflowReport([], [], [], {**GOOD, "messages_sent": 2, "run": "paused"})
    assert twice.faults == {"messages_sent": 2, "run": "paused"}


def test_an_answer_can_be_held_in_each_step_of_the_example() -> None:
    text = (EXAMPLE / "services.py").read_text("utf-8")
    assert all(f'"{kind}"' in text for kind in HELD_ANSWERS.values())
    assert all(f'"{name}"' in (EXAMPLE / "workflow.py").read_text("utf-8") for name in HELD_ANSWERS)
