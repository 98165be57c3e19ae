"""What can happen to a step, and what its session hears. Times are ms of log time."""

from typing import NamedTuple

from sessionary.schemas.types import ErrorInfo
from sessionary.stream_processors.core.step.transitions import StepRow


class StepMoved(NamedTuple):
    """An event made the step, or changed it."""

    row: StepRow


class StepExpired(NamedTuple):
    """No end of the attempt was reported within its limit."""

    at_ms: int
    error: ErrorInfo


class StepTimedOut(NamedTuple):
    """Tells a session that an attempt failed by its limit; its clock was due at `due_ms`."""

    run_id: str
    name: str
    attempt: int
    at_ms: int
    due_ms: int
    reason_code: str
    reason: str


StepFact = StepMoved | StepExpired

__all__ = ["StepExpired", "StepFact", "StepMoved", "StepTimedOut"]
