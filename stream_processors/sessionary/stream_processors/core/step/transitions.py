"""The machine of steps as data: one value for each transition.

                step_started
                     │
                     ▼
    failed ────▶ running ────▶ succeeded          skipped (before any attempt)
       ▲             │
       └─────────────┘

Attempts are numbered from 1. An attempt that was interrupted is followed by the next one. That a
step which succeeded or was skipped is skipped once more changes nothing: so a resumed run says why
it does nothing.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from sessionary.schemas.events import StepFailed, StepSucceeded
from sessionary.schemas.records import StepState
from sessionary.schemas.types import StepStateName
from sessionary.stream_processors.core.machine import Objection

# The step, the payload, who asked for it; what is wrong, or None.
StepGuard = Callable[[StepState | None, Any, str | None], Objection | None]


class StepTransition(NamedTuple):
    """One transition of a step. A source of None is a step without a row."""

    id: str
    source: StepStateName | None
    event_type: str
    target: StepStateName
    guard: StepGuard = lambda step, payload, actor: None


def _retry(step: StepState | None, payload: object, actor: str | None) -> Objection | None:
    error = step.error if step is not None else None
    if actor is None and (error is None or error.error_class != "retryable"):
        return Objection("not_retryable", "the step's error is fatal, and the event names no actor")
    return None


def _succeed(step: StepState | None, payload: StepSucceeded, actor: str | None) -> Objection | None:
    return Objection("invalid_value", "a step that succeeds has an output") if payload.output_json is None else None


def _fail(step: StepState | None, payload: StepFailed, actor: str | None) -> Objection | None:
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
)

# Events that are possible in these states, and change nothing.
REPEATED: Final[frozenset[tuple[StepStateName | None, str]]] = frozenset(
    {("succeeded", "step_skipped"), ("skipped", "step_skipped")}
)
BY_EVENT: Final[Mapping[tuple[StepStateName | None, str], StepTransition]] = {
    (transition.source, transition.event_type): transition for transition in STEP_TRANSITIONS
}

__all__ = ["BY_EVENT", "REPEATED", "STEP_TRANSITIONS", "StepGuard", "StepTransition"]
