"""Rows that depend on a session, and the families of children among them.

A *child* is a step of a run, a call or an artifact of a run or a session, an agent or a turn of a
session; it vanishes with its parent. Its key is the parent's, and a suffix of fixed length
(`schemas.ids`). Each family is one module in `children`, and one line in `families`. It defines its
rows, the events about them, and the judgement of these events. The session's judge asks the family
once the session and the run have accepted the event.

A row's size is bounded as a session's is (`RuleSet.row_bytes_max`: key and whole row). Its content
may become a separate changelog record.
"""

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple, Protocol, TypeVar, final

from sessionary.schemas.codec import Decoder, Event, encode_record, record_headers
from sessionary.schemas.errors import DecodeError
from sessionary.schemas.ids import SessionKey, snapshot_number
from sessionary.schemas.records import (
    FinishedRun,
    MessageContent,
    QuotaVerdict,
    RunContent,
    RunState,
    SessionState,
    StepContent,
    TimedStep,
    ToolCallContent,
    ToolCallState,
)
from sessionary.schemas.types import ClockRepair, RuleSet
from sessionary.stream_processors.core.clock import NEVER_MS
from sessionary.stream_processors.core.judge import Arrival, Fault, Objection
from sessionary.stream_processors.core.model import Decision, EventLog, LogRecord, OutputCause, RowLookup
from sessionary.stream_processors.core.rows import AnyRows, RowKind, RowParts

CONTENT_CHARACTERS_MAX: Final = 1_000  # stored in the row itself; a second record costs more
_FIXED_BYTES: Final = 200  # about what a row takes besides its texts, and its record besides the row
_BYTES_PER_CHARACTER_MAX: Final = 4
_DECODER: Final = Decoder()
LimitedT = TypeVar("LimitedT", TimedStep, ToolCallState)


class ChildFact(Protocol):
    """The meaning of a child's event or clock for its session."""

    def apply(self, row: SessionState) -> SessionState:
        """Return the session's row after the fact."""
        ...


class ReportedFact(ChildFact, Protocol):
    """A fact that leaves records."""

    def report(
        self, session: SessionKey, row: SessionState, after: SessionState, arrival: Arrival | None, cause: OutputCause
    ) -> Sequence[Any]:
        """Return the records; `row` and `after`: the session's row before and after the fact."""
        ...


@final
class Judged:
    """The outcome of an event for a child.

    `row` is the child after the event; None: unchanged. `run` is its run, if that changes too.
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
    # Takes the event, the keys of its session and its run (empty if it names none), and the session
    # if there is one. Returns the key of the child's row, or None if the event is about no child.
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
    child. `siblings` is the number of the parent's children, if the child does not exist. `quota`
    is set, and `event` and `fault` are None, if the record is a verdict on a claim to a quota.
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
        outage_end_ms: int = 0,
    ) -> None:
        """The judge sets the rest once it has looked up the rows that the event names."""
        super().__init__(record, session, event, fault, log, now_ms, rules, outage_end_ms)
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
        """`name`: of one row, for errors."""
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

    def due_ms(self, row: Any, outage_end_ms: int = 0) -> int:
        """Return a time that never comes."""
        return NEVER_MS

    def repair_times(self, row: Any, repairs: Sequence[ClockRepair]) -> Any:
        """Return the row: only the times of live rows are repaired."""
        return row

    def is_only_postponed(self, row: Any, after: Any) -> bool:
        """Return True: no row is ever due."""
        return True

    def fire(self, key: bytes, row: Any, rows: RowLookup, now_ms: int, outage_end_ms: int = 0) -> Decision:
        """Return nothing: no row is ever due."""
        return Decision(())


def session_facts(rows: RowLookup, row: Any, *facts: ChildFact) -> Sequence[ChildFact]:
    """Return the facts for a row's session; none if it is archived: it reports nothing more."""
    session = rows.get_row(SessionKey(row.tenant_id, row.session_id).encoded())
    return facts if isinstance(session, SessionState) else ()


def repair_limit(row: LimitedT, repairs: Sequence[ClockRepair]) -> LimitedT:
    """Return a row with a limit after repairs of the clock; the same object if it has them all.

    The remaining time never exceeds the limit.
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


def object_to_snapshot_id(snapshot_id: str) -> Objection | None:
    """Return an objection to an id that is not `snap_` and 12 hex digits."""
    if snapshot_number(snapshot_id) is not None:
        return None
    return Objection("invalid_value", f"snapshot_id {snapshot_id!r:.80} is not snap_ and 12 hex digits")


def object_to_row_size(name: str, key: bytes, after: Any, arrival: Arrival) -> Objection | None:
    """Return why an event makes a row too large, or None.

    `after` is the row after the event, a NamedTuple; `name` is the row's name for people.
    """
    limit = arrival.rules.row_bytes_max
    characters = sum(map(len, _texts(after)))
    if len(key) + _FIXED_BYTES + characters * _BYTES_PER_CHARACTER_MAX <= limit:
        return None  # as almost every row
    size = len(key) + len(encode_record(after, arrival.rules.version))
    if size <= limit:
        return None
    return Objection("state_too_large", f"the {name}'s row would have {size} bytes, more than {limit}")


def estimate_row_bytes(row: Any) -> int:
    """Return about how many bytes a row's changelog record takes; no text of it is left out."""
    size = _FIXED_BYTES
    for text in _texts(row):
        size += len(text) if text.isascii() else len(text.encode())
    return size


def content_parts(content_class: type[RunContent | StepContent | ToolCallContent | MessageContent]) -> RowParts:
    """Return how to split rows whose content has the fields of a class; a small content stays."""
    names = content_class._fields
    texts_of: Callable[[Any], tuple[Any, ...]] = attrgetter(*names) if len(names) > 1 else _only_text(names[0])

    def split(row: Any, rules: int) -> tuple[Any, bytes | None]:
        texts, size = texts_of(row), 0
        for text in texts:
            if text:
                size += len(text)
        if size <= CONTENT_CHARACTERS_MAX:
            return row, None
        rest = row._replace(**dict.fromkeys(names), content_apart=True)
        return rest, encode_record(content_class(*texts), rules)

    def is_split(row: Any) -> bool:
        apart: bool = row.content_apart
        return apart

    def join(row: Any, content: bytes) -> Any:
        found = _DECODER.decode_record(content)
        if not isinstance(found, content_class):
            raise DecodeError("unknown_schema", f"a {type(found).__name__} is no {content_class.__name__}")
        return row._replace(**found._asdict(), content_apart=False)

    return RowParts(split, is_split, join, record_headers(content_class))


def _only_text(name: str) -> Callable[[Any], tuple[Any, ...]]:
    def text_of(row: Any) -> tuple[Any, ...]:
        return (getattr(row, name),)

    return text_of


def _texts(row: Iterable[Any]) -> list[str]:
    """Return all texts of a row, those of values within it too."""
    texts = [value for value in row if type(value) is str]
    for value in row:
        if isinstance(value, (tuple, list)) and value:
            texts += _texts(value)
    return texts
