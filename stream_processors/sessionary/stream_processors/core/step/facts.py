"""What can happen to a step, and what its session hears. Times are ms of log time."""

from typing import NamedTuple, final

from sessionary.schemas.types import ErrorInfo
from sessionary.stream_processors.core.step.transitions import StepRow


@final
class StepMoved:
    """An event made the step, or changed it."""

    __slots__ = ("row",)

    def __init__(self, row: StepRow) -> None:
        self.row = row


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
