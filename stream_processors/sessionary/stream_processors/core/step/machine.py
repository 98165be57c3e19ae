"""The machine of steps: a row holds the last attempt at a step, and vanishes with its run.

It decides on no event: the session's machine does (`judge`).
"""

from collections.abc import Sequence
from typing import NamedTuple

from sessionary.schemas.codec import encode_record, record_headers
from sessionary.schemas.records import StepContent, StepState
from sessionary.schemas.types import ClockRepair
from sessionary.stream_processors.core.clock import NEVER_MS
from sessionary.stream_processors.core.dependants.machine import DependantMachine
from sessionary.stream_processors.core.dependants.row_size import content_parts
from sessionary.stream_processors.core.machine import RowKind


class StepMoved(NamedTuple):
    """An event made the step, or changed it."""

    row: StepState


class StepMachine(DependantMachine[StepState]):
    """Implements `Machine` for steps."""

    name = "step"
    row_kinds: Sequence[RowKind] = (
        RowKind(
            StepState,
            live=False,
            prefixes=record_headers(StepState),
            encode=encode_record,
            parts=content_parts(StepContent),
            is_child=True,
        ),
    )

    def evolve(self, row: StepState | None, fact: StepMoved) -> StepState:
        """Return the row that the judgement made."""
        return fact.row

    def receive_fact(self, row: StepState | None, fact: StepMoved) -> Sequence[StepMoved]:
        """Return the fact."""
        return (fact,)

    def due_ms(self, row: StepState, hole_end_ms: int = 0) -> int:
        """Return a moment that does not come: a step vanishes with its run."""
        return NEVER_MS

    def repair_times(self, row: StepState, repairs: Sequence[ClockRepair]) -> StepState:
        """Return the row: it is not live."""
        return row

    def is_only_postponed(self, row: StepState, after: StepState) -> bool:
        """Return True: no step is ever due."""
        return True

    def fire(self, row: StepState, now_ms: int, hole_end_ms: int = 0) -> Sequence[StepMoved]:
        """Raise `NotImplementedError`: no step is ever due."""
        raise NotImplementedError("no step is ever due")


__all__ = ["StepMachine", "StepMoved"]
