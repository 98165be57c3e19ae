"""A family of children: rows that belong to a session or a run, and vanish with it.

A *child* is a step of a run, a call or an artifact of a run or a session, an agent or a turn of a
session. Its key is its parent's, and a suffix of fixed length (`schemas.ids`). Each family is one
module in `children`, and one line in `families`: its rows, which events are about them, and how
those are judged. The session's judge asks it after the session and the run have nothing against the
event.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, final

from sessionary.schemas.codec import Decoder, Event
from sessionary.schemas.errors import DecodeError
from sessionary.schemas.ids import SessionKey
from sessionary.schemas.records import FinishedRun, QuotaVerdict, RunState, SessionState, TimedStep, ToolCallState
from sessionary.schemas.types import ClockRepair, RuleSet
from sessionary.stream_processors.core.clock import NEVER_MS
from sessionary.stream_processors.core.judge import Arrival, Fault, Objection
from sessionary.stream_processors.core.model import Decision, EventLog, LogRecord, Place, RowLookup
from sessionary.stream_processors.core.row_size import estimate_row_bytes
from sessionary.stream_processors.core.rows import AnyRows, RowKind

LimitedT = TypeVar("LimitedT", TimedStep, ToolCallState)


class ChildFact(Protocol):
    """What an event or the clock of a child is for its session."""

    def apply(self, row: SessionState) -> SessionState:
        """Return the session's row after it."""
        ...


class ReportedFact(ChildFact, Protocol):
    """A fact that leaves records."""

    def report(
        self, session: SessionKey, row: SessionState, after: SessionState, arrival: Arrival | None, place: Place
    ) -> Sequence[Any]:
        """Return the records; `row` and `after`: the session's row before and after the fact."""
        ...


@final
class Judged:
    """What an event comes to for a child.

    `row` is the child as it is from now on; None: it stays. `run` is its run, if that changes too.
    """

    __slots__ = ("facts", "row", "run")

    def __init__(self, row: Any, facts: Sequence[ChildFact] = (), run: RunState | FinishedRun | None = None) -> None:
        self.row = row
        self.facts = facts
        self.run = run


class ChildFamily(NamedTuple):
    """One family of children."""

    rows: AnyRows
    payloads: tuple[type[Any], ...]  # whose events are about a child of this family
    # The event, the keys of its session and its run (empty if it names none), and the session if
    # there is one; returns the key of the child's row, or None if the event is about none.
    key_of: Callable[[Event, bytes, bytes, Any], bytes | None]
    judge: Callable[[SessionState, Event, "SessionArrival"], Judged | Objection]
    reported_facts: frozenset[type[Any]] = frozenset()
    # Whether a new child takes the row of an old one once there are enough: then none is too many.
    is_ring: bool = False


@final
class SessionArrival(Arrival):
    """An arrival under the key of a session, with the rows that its event names.

    `run` is the row under `run_key`, None if there is none; the key is empty if the event names
    none. `child` is the row under `child_key`, of `family`; the key is None if the event names no
    child. `siblings` is how many children the parent of a child that is not there has. `quota` is
    set, and `event` and `fault` are None, if the record is a verdict on a claim to a quota.
    """

    __slots__ = ("child", "child_key", "family", "quota", "run", "run_key", "siblings")

    def __init__(
        self,
        record: LogRecord,
        session: SessionKey,
        event: Event | None,
        fault: Fault | None,
        log: EventLog,
        now_ms: int,
        rules: RuleSet,
        hole_end_ms: int = 0,
    ) -> None:
        """The judge sets the rest once it has looked up the rows that the event names."""
        super().__init__(record, session, event, fault, log, now_ms, rules, hole_end_ms)
        self.quota: QuotaVerdict | None = None
        self.run_key = b""
        self.run: RunState | FinishedRun | None = None
        self.family: ChildFamily | None = None
        self.child_key: bytes | None = None
        self.child: Any = None
        self.siblings = 0


class StoredRows:
    """The part of `Rows` that is the same for all rows that depend on a session."""

    def __init__(self, name: str, kinds: Sequence[RowKind]) -> None:
        """`name` is that of one row, for errors."""
        self.name = name
        self.kinds = kinds
        self._decoder = Decoder()
        self._row_classes = tuple(kind.row_class for kind in kinds)

    def decode(self, value: bytes) -> Any:
        """Return a row of one of the family's classes. Raises `DecodeError`."""
        row = self._decoder.decode_record(value)
        if not isinstance(row, self._row_classes):
            raise DecodeError("unknown_schema", f"a {type(row).__name__} is no {self.name}")
        return row

    def estimate_bytes(self, row: Any) -> int:
        """Return about how many bytes a row takes in the changelog."""
        return estimate_row_bytes(row)


class UnclockedRows(StoredRows):
    """Rows of children that have no clock: they are never due."""

    def due_ms(self, row: Any, hole_end_ms: int = 0) -> int:
        """Return a time that never comes."""
        return NEVER_MS

    def repair_times(self, row: Any, repairs: Sequence[ClockRepair]) -> Any:
        """Return the row: only the times of live rows are repaired."""
        return row

    def is_only_postponed(self, row: Any, after: Any) -> bool:
        """Return True: no row is ever due."""
        return True

    def fire(self, key: bytes, row: Any, rows: RowLookup, now_ms: int, hole_end_ms: int = 0) -> Decision:
        """Return nothing: no row is ever due."""
        return Decision(())


def session_facts(rows: RowLookup, row: Any, *facts: ChildFact) -> Sequence[ChildFact]:
    """Return the facts for a row's session; none if it is archived: it reports nothing more."""
    session = rows.get_row(SessionKey(row.tenant_id, row.session_id).encoded())
    return facts if isinstance(session, SessionState) else ()


def repair_limit(row: LimitedT, repairs: Sequence[ClockRepair]) -> LimitedT:
    """Return a row with a limit after repairs of the clock; the same object if it has them all.

    Of its limit never more than the whole is left.
    """
    for number, _, clock_ms, shift_ms, _ in repairs:
        if number > row.clock_repair:
            repaired: Any = row._replace(
                started_at=min(row.started_at + shift_ms, clock_ms),
                due_at=min(row.due_at + shift_ms, clock_ms + row.limit_ms),
                clock_repair=number,
            )
            row = repaired  # the compiler's type checker wants this step
    return row
