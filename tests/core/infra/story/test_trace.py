"""A session's rows as numbered steps."""

import pytest

from sessionary.infra.cli.app import run
from sessionary.infra.story.trace import TraceStep, make_trace
from tests.core.infra.story.story_rows import event_row, iso_time, outcome_row

CALL = {"tool_name": "search", "args_json": '{"q":"a"}', "try_number": 1}


def told(steps: list[TraceStep]) -> list[tuple[int, str, str, str]]:
    return [(step.number, step.what, step.name, step.text) for step in steps]


def test_rejected_events_are_no_steps_and_the_numbers_have_no_gap() -> None:
    rows = [event_row(offset, "tool_call_started", CALL) for offset in (1, 2, 3)]
    steps = make_trace(rows, [outcome_row(2, "rejection", reason_code="call_in_progress")])
    assert [(step.number, step.place) for step in steps] == [(1, (0, 1)), (2, (0, 3))]


@pytest.mark.parametrize(
    ("reason", "told_at"), [(None, [1]), ("stale_epoch", []), ("unknown_session", [4]), ("too_many_producers", [4])]
)
def test_an_event_that_was_delivered_twice_is_one_step_or_none(reason: str | None, told_at: list[int]) -> None:
    rows = [event_row(offset, "tool_call_started", CALL, event_id="same") for offset in (1, 4)]
    outcomes = [] if reason is None else [outcome_row(1, "rejection", reason_code=reason)]
    assert [step.place[1] for step in make_trace(rows, outcomes)] == told_at


@pytest.mark.parametrize(
    ("result", "text", "count"),
    [
        ('{"rows":[1,2],"page":1}', '2 rows: {"rows":[1,2],"page":1}', 2),
        ("[]", "0 records: []", 0),
        ('{"a":[1],"b":[2]}', '{"a":[1],"b":[2]}', None),
        (None, "null", None),
        ("no JSON", "no JSON", None),
        (
            '{"artifact_ref":"artifact:tool_result:ab","summary":"list, 1,247 items, 300,000 bytes of JSON: [1"}',
            "list, 1,247 items, 300,000 bytes of JSON: [1; artifact:tool_result:ab",
            None,
        ),
    ],
)
def test_a_result_says_how_many_records_it_has(result: str | None, text: str, count: int | None) -> None:
    payload = {"tool_name": "search", "try_number": 1, "result_json": result}
    (step,) = make_trace([event_row(1, "tool_call_succeeded", payload)], [])
    assert (step.text, step.records) == (text, count)


def test_a_clock_is_a_step_and_content_that_has_gone_is_said_to_have() -> None:
    rows = [event_row(1, "message_appended"), event_row(9, "session_resumed", {"resume_plan": "go on"}, at_s=9.0)]
    fired = outcome_row(
        5, "transition", "session_timed_out", at_s=5.0, reason_code="inactivity", reason="no sign of life"
    )
    fired["fired_at"] = iso_time(5.0)
    assert told(make_trace(rows, [fired])) == [
        (1, "message", "", "(content removed by retention)"),
        (2, "timed out", "", "no sign of life"),
        (3, "resumed", "", "resume_plan go on"),
    ]


def test_steps_resources_and_failures_are_told() -> None:
    rows = [
        event_row(1, "step_started", {"name": "read", "attempt": 2, "input_json": "{}", "reason": "attempt 1 failed"}),
        event_row(2, "session_activity", {"kind": "read", "uri": "file:///a", "text": None}),
        event_row(3, "session_activity", {"kind": "llm", "text": "thinks"}),
        event_row(
            4,
            "step_failed",
            {"name": "read", "attempt": 2, "error": {"error_class": "fatal", "code": "KeyError", "message": "'a'"}},
        ),
    ]
    assert told(make_trace(rows, [])) == [
        (1, "step", "read", "attempt 2: attempt 1 failed; {}"),
        (2, "resource", "read", "file:///a"),
        (3, "error", "read", "'a' (KeyError), fatal"),
    ]


@pytest.mark.parametrize("other", [["--follow"], ["--html", "page.html"]])
def test_a_trace_is_told_once_and_as_lines(other: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["session", "timeline", "abc", "--trace", *other]) == 5
    assert "--trace tells the story once" in capfd.readouterr().err
