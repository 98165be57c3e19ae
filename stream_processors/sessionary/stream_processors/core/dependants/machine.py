"""What the machines of all that depends on a session share: they decide and report nothing.

The session's machine does both: it asks their judges, and reports what it is told.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar, cast

from sessionary.schemas.codec import Decoder
from sessionary.schemas.errors import DecodeError
from sessionary.schemas.records import RunGravestone
from sessionary.schemas.types import ClockRepair
from sessionary.stream_processors.core.clock import NEVER_MS
from sessionary.stream_processors.core.dependants.row_size import DependantRow, estimate_row_bytes
from sessionary.stream_processors.core.machine import Arrival, Decision, RowKind
from sessionary.stream_processors.core.model import Emitted, Place, Stream

RowT = TypeVar("RowT", bound=DependantRow | RunGravestone)


class DependantMachine(Generic[RowT]):
    """The part of a `Machine` that all dependants of a session have.

    Holds no state; one instance serves any number of partitions.
    """

    name: ClassVar[str]  # of one row, for errors
    row_kinds: Sequence[RowKind] = ()
    event_types: frozenset[str] = frozenset()
    streams: frozenset[Stream] = frozenset()
    reported_facts: frozenset[type[Any]] = frozenset()

    def __init__(self) -> None:
        self._decoder = Decoder()
        self._row_classes = tuple(kind.row_class for kind in self.row_kinds)

    def row_key(self, arrival: Arrival) -> bytes:
        """Return the key of the row that an event names."""
        return arrival.child_key or b""

    def decode(self, value: bytes) -> RowT:
        """Return a row of one of the machine's classes. Raises `DecodeError`."""
        row = self._decoder.decode_record(value)
        if not isinstance(row, self._row_classes):
            raise DecodeError("unknown_schema", f"a {type(row).__name__} is no {self.name}")
        return cast("RowT", row)

    def decide(self, row: RowT | None, arrival: Arrival) -> Decision:
        """Raise `NotImplementedError`: the session's machine decides."""
        raise NotImplementedError(f"the session's machine decides on the events of {self.name}s")

    def receive_fact(self, row: RowT | None, fact: Any) -> Sequence[Any]:
        """Return the fact."""
        return (fact,)

    def report(
        self, key: bytes, row: RowT | None, after: RowT | None, fact: Any, arrival: Arrival | None, place: Place
    ) -> Sequence[Emitted]:
        """Return nothing: the session reports what it is told."""
        return ()

    estimate_bytes = staticmethod(estimate_row_bytes)


class UnclockedMachine(DependantMachine[RowT]):
    """The part of a `Machine` that dependants without a clock have: their rows never fire."""

    def due_ms(self, row: RowT, hole_end_ms: int = 0) -> int:
        """Return a time that never comes."""
        return NEVER_MS

    def repair_times(self, row: RowT, repairs: Sequence[ClockRepair]) -> RowT:
        """Return the row: only the times of live rows are repaired."""
        return row

    def is_only_postponed(self, row: RowT, after: RowT) -> bool:
        """Return True: no row is ever due."""
        return True

    def fire(self, row: RowT, now_ms: int, hole_end_ms: int = 0) -> Sequence[Any]:
        """Raise `NotImplementedError`: no row is ever due."""
        raise NotImplementedError(f"no {self.name} has a clock")
