"""The machine of steps: a row holds the last attempt at a step, and vanishes with its run.

An attempt with a limit fails by its clock; one without costs no timer. The machine decides on no
event: the session's does (`judge`).
"""

from collections.abc import Sequence

from sessionary.schemas.codec import encode_record, record_headers
from sessionary.schemas.ids import SessionKey
from sessionary.schemas.limits import MODEL_LIMIT
from sessionary.schemas.records import SessionState, StepContent, StepState, TimedStep
from sessionary.schemas.types import ClockRepair, ErrorInfo
from sessionary.stream_processors.core.clock import NEVER_MS, format_seconds
from sessionary.stream_processors.core.dependants.limited_row import repair_limit
from sessionary.stream_processors.core.dependants.machine import DependantMachine
from sessionary.stream_processors.core.dependants.row_size import content_parts
from sessionary.stream_processors.core.machine import ForRow, RowKind
from sessionary.stream_processors.core.step.facts import StepExpired, StepFact, StepMoved, StepTimedOut
from sessionary.stream_processors.core.step.transitions import StepRow, end_attempt

_CONTENT = content_parts(StepContent)


class StepMachine(DependantMachine[StepRow]):
    """Implements `Machine` for steps."""

    name = "step"
    row_kinds: Sequence[RowKind] = (
        RowKind(
            TimedStep,
            live=True,
            prefixes=record_headers(TimedStep),
            encode=encode_record,
            parts=_CONTENT,
            is_child=True,
        ),
        RowKind(
            StepState,
            live=False,
            prefixes=record_headers(StepState),
            encode=encode_record,
            parts=_CONTENT,
            is_child=True,
        ),
    )

    def evolve(self, row: StepRow | None, fact: StepFact) -> StepRow:
        """Return the row after a fact."""
        if isinstance(fact, StepMoved):
            return fact.row
        assert row is not None
        return end_attempt(row, "failed", fact.at_ms, error=fact.error)

    def due_ms(self, row: StepRow, hole_end_ms: int = 0) -> int:
        """Return when an attempt with a limit fails (ms of log time); other rows stay."""
        return row.due_at if isinstance(row, TimedStep) else NEVER_MS

    def repair_times(self, row: StepRow, repairs: Sequence[ClockRepair]) -> StepRow:
        """Return a row with its times as they are after repairs of the partition's clock."""
        return repair_limit(row, repairs) if isinstance(row, TimedStep) else row

    def is_only_postponed(self, row: StepRow, after: StepRow) -> bool:
        """Return whether the limit ends at the same time, or later."""
        return self.due_ms(row) <= self.due_ms(after)

    def fire(self, row: StepRow, now_ms: int, hole_end_ms: int = 0) -> Sequence[StepFact | ForRow]:
        """Return the failure of an attempt whose limit is over; its session hears of it."""
        assert isinstance(row, TimedStep)
        limit = format_seconds(row.limit_ms)
        reason = f"Step failed after {limit}: no end of {row.name} was reported within its model limit"
        told = StepTimedOut(row.run_id, row.name, row.attempt, now_ms, row.due_at, MODEL_LIMIT, reason)
        session = SessionKey(row.tenant_id, row.session_id)
        expired = StepExpired(now_ms, ErrorInfo("retryable", MODEL_LIMIT, reason))
        return expired, ForRow(session.encoded(), SessionState, told)
