"""The machine of steps as data: one value for each transition.

                step_started
                     │
                     ▼
    failed ────▶ running ────▶ succeeded          skipped (before any attempt)
       ▲             │
       └─────────────┘ (or by its limit)

Attempts are numbered from 1. An attempt that was interrupted is followed by the next one. One that
says how long it may take fails by its clock. That a step which succeeded or was skipped is skipped
once more changes nothing: so a resumed run says why it does nothing.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple

from sessionary.schemas.events import StepFailed, StepSucceeded
from sessionary.schemas.records import StepState, TimedStep
from sessionary.schemas.types import ErrorInfo, StepStateName
from sessionary.stream_processors.core.machine import Objection

StepRow = StepState | TimedStep
# The step, the payload, who asked for it; what is wrong, or None.
StepGuard = Callable[[StepRow | None, Any, str | None], Objection | None]


class StepTransition(NamedTuple):
    """One transition of a step. A source of None is a step without a row.

    One by `clock` is what the step's own clock does.
    """

    id: str
    source: StepStateName | None
    event_type: str
    target: StepStateName
    guard: StepGuard = lambda step, payload, actor: None
    by: Literal["client", "clock"] = "client"


def _retry(step: StepRow | None, payload: object, actor: str | None) -> Objection | None:
    error = step.error if isinstance(step, StepState) else None
    if actor is None and (error is None or error.error_class != "retryable"):
        return Objection("not_retryable", "the step's error is fatal, and the event names no actor")
    return None


def _succeed(step: StepRow | None, payload: StepSucceeded, actor: str | None) -> Objection | None:
    return Objection("invalid_value", "a step that succeeds has an output") if payload.output_json is None else None


def _fail(step: StepRow | None, payload: StepFailed, actor: str | None) -> Objection | None:
    if payload.error.error_class == "UNKNOWN":
        return Objection("missing_error_class", "an error is retryable or fatal")
    return None


STEP_TRANSITIONS: tuple[StepTransition, ...] = (
    StepTransition("P01", None, "step_started", "running"),
    StepTransition("P02", "failed", "step_started", "running", _retry),
    StepTransition("P03", "running", "step_started", "running"),
    StepTransition("P04", "running", "step_succeeded", "succeeded", _succeed),
    StepTransition("P05", "running", "step_failed", "failed", _fail),
    StepTransition("P06", None, "step_skipped", "skipped"),
    StepTransition("P07", "running", "step_failed", "failed", by="clock"),
)

# Events that are possible in these states, and change nothing.
REPEATED: Final[frozenset[tuple[StepStateName | None, str]]] = frozenset(
    {("succeeded", "step_skipped"), ("skipped", "step_skipped")}
)
BY_EVENT: Final[Mapping[tuple[StepStateName | None, str], StepTransition]] = {
    (transition.source, transition.event_type): transition
    for transition in STEP_TRANSITIONS
    if transition.by == "client"
}


def state_of(step: StepRow) -> StepStateName:
    """Return the state of a step."""
    return step.state if isinstance(step, StepState) else "running"


def end_attempt(
    step: StepRow,
    state: StepStateName,
    at_ms: int,
    *,
    output_json: str | None = None,
    error: ErrorInfo | None = None,
) -> StepState:
    """Return a running step as it is once its attempt has ended (ms of log time)."""
    return StepState(
        tenant_id=step.tenant_id,
        session_id=step.session_id,
        run_id=step.run_id,
        name=step.name,
        step_id=step.step_id,
        state=state,
        attempt=step.attempt,
        started_at=step.started_at,
        entered_at=at_ms,
        error=error,
        input_json=step.input_json,
        output_json=output_json,
    )
