"""What the control API answers about the steps of a run."""

from typing import Any

from sessionary.schemas.ids import step_key
from sessionary.schemas.records import StepState
from sessionary.schemas.types import ErrorInfo
from sessionary.stream_processors.api.openapi import DOCUMENT
from tests.core.stream_processors.api.run_rig import RunRig

STEP = StepState("acme", "", "r1", "plan", "a-1", "succeeded", 1, 10, 20, None, "[1]", '"done"')


def rig_with_steps(*steps: StepState) -> RunRig:
    """Return a rig whose run `r1` has these steps."""
    rig = RunRig()
    rig.send("run_started", "r1", mode="detached")
    load_steps(rig, *steps)
    return rig


def load_steps(rig: RunRig, *steps: StepState) -> None:
    """Put steps of `r1` into the committed state, of which the oracle does not know."""
    for step in steps:
        row = step._replace(session_id=rig.agent.key.session_id)
        rig.load_child(step_key(rig.run_key("r1"), step.name), row)


def fields(schema: str) -> set[str]:
    """Return the fields that the OpenAPI document promises."""
    return set(DOCUMENT["components"]["schemas"][schema]["properties"])


def shown(document: Any, *names: str) -> tuple[Any, ...]:
    return tuple(document[name] for name in names)


def test_steps_are_listed_by_their_beginning_then_by_name_and_without_content() -> None:
    rig = rig_with_steps(
        STEP._replace(name="write", started_at=30),
        STEP._replace(name="read"),
        STEP._replace(name="plan"),
    )
    status, found = rig.ask("runs", "r1", "steps")
    assert status == 200
    assert [step["name"] for step in found["steps"]] == ["plan", "read", "write"]
    assert [set(step) for step in found["steps"]] == [fields("StepHead")] * 3
    assert set(found) == fields("StepList")
    assert found["position"] == {"partition": 0, "next_offset": rig.rig.fold.position.next_offset}


def test_a_step_is_shown_with_its_input_output_and_error() -> None:
    failed = STEP._replace(name="a/b", state="failed", output_json=None, error=ErrorInfo("fatal", "bad", "no month"))
    rig = rig_with_steps(STEP, failed)
    status, step = rig.ask("runs", "r1", "steps", "plan")
    assert (status, set(step)) == (200, fields("Step"))
    assert shown(step, "name", "state", "attempt", "step_id", "started_ms", "entered_ms", "error") == (
        *("plan", "succeeded", 1, "a-1", 10, 20, None),
    )
    assert shown(step, "run_id", "session_id", "input_json", "output_json") == (
        *("r1", rig.agent.key.session_id, "[1]", '"done"'),
    )
    _, step = rig.ask("runs", "r1", "steps", "a/b")
    assert (step["state"], step["error"]) == (
        "failed",
        {"error_class": "fatal", "code": "bad", "message": "no month"},
    )


def test_the_steps_of_another_run_are_not_shown() -> None:
    rig = rig_with_steps()
    rig.send("run_started", "r2", mode="detached")
    load_steps(rig, STEP)
    assert rig.ask("runs", "r2", "steps")[1]["steps"] == []
    status, problem = rig.ask("runs", "r2", "steps", "plan")
    assert (status, problem["reason"]) == (404, "unknown_step")


def test_the_steps_of_an_unknown_run_and_of_another_tenants_have_the_same_answer() -> None:
    rig = rig_with_steps(STEP)
    for page in (("steps",), ("steps", "plan")):
        unknown, foreign = rig.ask("runs", "r2", *page), rig.ask("runs", "r1", *page, token="other")
        assert (unknown[0], unknown[1]["reason"]) == (foreign[0], foreign[1]["reason"]) == (404, "unknown_run")


def test_more_steps_than_are_read_at_once_are_all_listed() -> None:
    rig = rig_with_steps(*(STEP._replace(name=f"{n}", started_at=n) for n in range(120)))
    _, found = rig.ask("runs", "r1", "steps")
    assert [step["name"] for step in found["steps"]] == [f"{n}" for n in range(120)]
