"""The work that a run has done so far, and the effect of its resumption. Pure."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from sessionary.producers.ports import Json
from sessionary.producers.run_ports import CallView, RunView, StepView
from sessionary.schemas.types import ErrorInfo

DONE_STATES = frozenset({"succeeded", "skipped"})


class ResumePlan(NamedTuple):
    """The effect of resuming a run. The steps are in the order of the run's recorded plan.

    Steps that the plan does not name follow in the order in which they began.

    Attributes:
        run_id: The run.
        state: Its state.
        request: The run's input.
        done: Steps whose stored output is used again.
        to_retry: Steps that failed or were interrupted, and are tried again.
        stop: The step that failed for good, which ends the run; None if there is none, or if the
            plan was made anew without it.
        error: The failure of that step, or the run's own if that is fatal.
        next: The step with which the work continues; None if no known step is left.
        unresolved: Keys of tool calls that may have taken effect: they are resolved first.
        in_progress: Keys of tool calls that are being made, or were when their process ended.
        calls_done: Keys of tool calls that succeeded: they are not made again.
    """

    run_id: str
    state: str
    request: Json
    done: tuple[str, ...]
    to_retry: tuple[str, ...]
    stop: str | None
    error: ErrorInfo | None
    next: str | None
    unresolved: tuple[str, ...]
    in_progress: tuple[str, ...]
    calls_done: tuple[str, ...] = ()


def make_plan(run: RunView, steps: Sequence[StepView], calls: Sequence[CallView]) -> ResumePlan:
    """Return the effect of resuming `run`. `steps` are in the order in which they began."""
    known = {step.name: step for step in steps}
    planned = _planned_names(run.plan_json)
    names = list(dict.fromkeys((*planned, *known)))
    done = tuple(name for name in names if name in known and known[name].state in DONE_STATES)
    failed = [step for step in map(known.get, names) if step is not None and _is_fatal(step)]
    # A step that the plan does not name is of a plan that failed, and was made anew.
    fatal = next((step for step in failed if not planned or step.name.partition("/")[0] in planned), None)
    given_up = {step.name for step in failed} if planned and fatal is None else set()
    error = fatal.error if fatal is not None else run.error
    is_over = run.state in ("completed", "cancelled") or (error is not None and error.error_class != "retryable")
    left = [name for name in names if name not in done and name not in given_up]
    return ResumePlan(
        run_id=run.run_id,
        state=run.state,
        request=None if run.input_json is None else json.loads(run.input_json),
        done=done,
        to_retry=() if is_over else tuple(name for name in left if name in known),
        stop=None if fatal is None else fatal.name,
        error=error,
        next=None if is_over or not left else left[0],
        unresolved=tuple(call.idem_key for call in calls if is_unresolved(call)),
        in_progress=tuple(call.idem_key for call in calls if call.state == "running"),
        calls_done=tuple(call.idem_key for call in calls if call.state == "succeeded"),
    )


def describe_resumption(plan: ResumePlan, *, by_person: bool) -> str:
    """Return why a run resumes, in a line. `by_person`: a person asked for it."""
    goes_on = "goes on" if plan.next is None else f"goes on with step {plan.next}"
    asked = ", as a person asked" if by_person else ""
    return f"{goes_on}{asked}; steps done: {len(plan.done)}, to be tried again: {len(plan.to_retry)}"


def describe_stop(plan: ResumePlan) -> str:
    """Return why a run that failed for good is not resumed, in a line."""
    what = "the run" if plan.stop is None else f"step {plan.stop}"
    return f"not resumed: {what} failed for good"


def describe_retry(step: StepView) -> str:
    """Return why a step is tried again, in a line."""
    if step.error is None:
        return f"attempt {step.attempt} did not finish"
    return f"attempt {step.attempt} failed: {step.error.code} ({step.error.error_class})"


def is_unresolved(call: CallView) -> bool:
    """Return whether a call may have taken effect, and its outcome is unknown."""
    return call.state == "unknown" and call.side_effect


def _is_fatal(step: StepView) -> bool:
    return step.state == "failed" and step.error is not None and step.error.error_class != "retryable"


def _planned_names(plan_json: str | None) -> list[str]:
    """Return the names of steps in a recorded plan: texts, or objects with a `name`, in a list.

    The list is the plan itself, or its member `steps`.
    """
    plan: Any = None if plan_json is None else json.loads(plan_json)
    items = plan.get("steps") if isinstance(plan, dict) else plan
    if not isinstance(items, list):
        return []
    names = [item.get("name") if isinstance(item, dict) else item for item in items]
    return [name for name in names if isinstance(name, str)]
