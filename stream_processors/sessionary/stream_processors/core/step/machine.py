"""The machine of steps: a row holds the last attempt at a step, and vanishes with its run.

It decides on no event: the session's machine does (`judge`).
"""

from collections.abc import Sequence
from typing import NamedTuple

from sessionary.schemas.codec import Decoder, encode_record, record_headers
from sessionary.schemas.errors import DecodeError
from sessionary.schemas.records import StepContent, StepState
from sessionary.schemas.types import ClockRepair
from sessionary.stream_processors.core.children.row_size import content_parts, estimate_child_bytes
from sessionary.stream_processors.core.clock import NEVER_MS
from sessionary.stream_processors.core.machine import Arrival, Decision, RowKind
from sessionary.stream_processors.core.model import Emitted, Place, Stream


class StepMoved(NamedTuple):
    """An event made the step, or changed it."""

    row: StepState


class StepMachine:
    """Implements `Machine` for steps.

    Holds no state; one instance serves any number of partitions.
    """

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
    event_types: frozenset[str] = frozenset()
    streams: frozenset[Stream] = frozenset()
    reported_facts: frozenset[type[object]] = frozenset()

    def __init__(self) -> None:
        self._decoder = Decoder()

    def row_key(self, arrival: Arrival) -> bytes:
        """Return the key of the step that an event names."""
        return arrival.child_key or b""

    def decode(self, value: bytes) -> StepState:
        """Return a step. Raises `DecodeError`."""
        row = self._decoder.decode_record(value)
        if not isinstance(row, StepState):
            raise DecodeError("unknown_schema", f"a {type(row).__name__} is no step")
        return row

    def decide(self, row: StepState | None, arrival: Arrival) -> Decision:
        """Raise `NotImplementedError`: the session's machine decides on the events of steps."""
        raise NotImplementedError("the session's machine decides on the events of steps")

    def evolve(self, row: StepState | None, fact: StepMoved) -> StepState:
        """Return the row that the judgement made."""
        return fact.row

    def receive_fact(self, row: StepState | None, fact: StepMoved) -> Sequence[StepMoved]:
        """Return the fact."""
        return (fact,)

    def report(
        self,
        key: bytes,
        row: StepState | None,
        after: StepState | None,
        fact: StepMoved,
        arrival: Arrival | None,
        place: Place,
    ) -> Sequence[Emitted]:
        """Return nothing: every change of a step is an event."""
        return ()

    estimate_bytes = staticmethod(estimate_child_bytes)

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
