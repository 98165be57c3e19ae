"""The protocol of a machine: one family of rows, and the rules that change them.

A partition's state knows machines only. For each record it asks one machine to `decide`; the answer
is a list of facts. Each fact is applied to the row by `evolve` and reported by `report`. Between
records, the machine whose row is due is asked to `fire`, which gives facts too.

    record ── decide ──▶ facts ── evolve ──▶ row after
    deadline ─ fire ───▶   │
                           └───── report ──▶ audit records, dead letters, clean-up requests

Everything here is pure and sees time as data: `now_ms` is the partition's clock.
"""

from collections.abc import Callable, Hashable, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol, TypeVar, final

from sessionary.schemas.codec import Event
from sessionary.schemas.ids import SessionKey
from sessionary.schemas.records import (
    AgentState,
    ArtifactState,
    EndedToolCall,
    FinishedRun,
    MessageState,
    QuotaVerdict,
    RunState,
    StepState,
    TimedStep,
    ToolCallState,
)
from sessionary.schemas.types import ClockRepair, RefusalReason, RuleSet
from sessionary.stream_processors.core.model import Emitted, EventLog, LogRecord, Place, RowFate, Stream

RowT = TypeVar("RowT")
FactT = TypeVar("FactT")
NO_SESSION: Final = SessionKey("", "")
ChildRow = StepState | TimedStep | ToolCallState | EndedToolCall | ArtifactState | MessageState | AgentState


class Remains(Enum):
    """What a machine gets instead of a gravestone: there was a row under this key."""

    REMAINS = "remains"


REMAINS: Final = Remains.REMAINS


class Fault(NamedTuple):
    """Why a record cannot be taken as an event of the session that its key names."""

    reason: RefusalReason
    detail: str


class Objection(NamedTuple):
    """Why an event does not apply to the rows that it is about."""

    reason: RefusalReason
    detail: str


@final
class Arrival:
    """A record of the log, read as far as it can be. Rules change nothing of it.

    `event` is None if the value cannot be read, or if its envelope has a text that is too long;
    `fault` then says why. A fault beside an event says that the event does not belong under the
    record's key. `session` is `NO_SESSION` if the key names none. `rules` are those by which it is
    judged. `hole_end_ms`: before it, no event may have been heard; 0 if there was no hole.
    `clock_repair` is the number of the last repair of the partition's clock, which a new row's
    times include; 0 if there was none.
    `run` is the row under `run_key`: the run that the event's envelope names; None if there is
    none. The key is empty if the event names none.
    `child` is the row under `child_key`: the step, the reserved call, the artifact or the agent
    that the event names, or the turn whose row a message takes; the key is None if it names none.
    `siblings` is how many children the parent of a child that is not there has.
    `quota` is set, and `event` and `fault` are None, if the record is a processor's verdict on a
    claim to a quota.
    """

    __slots__ = (
        "child",
        "child_key",
        "clock_repair",
        "event",
        "fault",
        "hole_end_ms",
        "log",
        "now_ms",
        "quota",
        "record",
        "rules",
        "run",
        "run_key",
        "session",
        "siblings",
    )

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
        quota: QuotaVerdict | None = None,
    ) -> None:
        """The batch sets the rest once it has looked up the rows that the event names."""
        self.record = record
        self.session = session
        self.event = event
        self.fault = fault
        self.log = log
        self.now_ms = now_ms
        self.rules = rules
        self.hole_end_ms = hole_end_ms
        self.quota = quota
        self.clock_repair = 0
        self.run_key = b""
        self.run: RunState | FinishedRun | None = None
        self.child_key: bytes | None = None
        self.child: ChildRow | None = None
        self.siblings = 0


@final
class ForRow:
    """A fact for a row under another key than the one that is judged or that fires.

    The machine of `row_class` receives it (`receive_fact`). Among facts these come last.
    """

    __slots__ = ("fact", "key", "row_class")

    def __init__(self, key: bytes, row_class: type[Any], fact: Any) -> None:
        self.key = key
        self.row_class = row_class
        self.fact = fact


@final
class Decision:
    """What a record comes to: facts in order; whether it is refused, or a duplicate.

    `only_counted`: it is refused, and leaves no record.
    """

    __slots__ = ("duplicate", "facts", "only_counted", "refusal")

    def __init__(
        self,
        facts: Sequence[Any],
        refusal: RefusalReason | None = None,
        *,
        duplicate: bool = False,
        only_counted: bool = False,
    ) -> None:
        self.facts = facts
        self.refusal = refusal
        self.duplicate = duplicate
        self.only_counted = only_counted


class RowParts(NamedTuple):
    """How the content of a row becomes a changelog record of its own, so that few events write it.

    When a row is due does not depend on its content.
    """

    split: Callable[[Any, int], tuple[Any, bytes | None]]  # row, rules → the rest, the content; None: it stays
    is_split: Callable[[Any], bool]  # whether a row, as it was read, lacks its content
    join: Callable[[Any, bytes], Any]  # undoes `split`; raises `DecodeError`
    prefixes: frozenset[bytes]  # with which the contents, as any release wrote them, begin


class RowKind(NamedTuple):
    """A class of rows, and its bytes in the changelog and in stores.

    A live row keeps its partition's clock going and fires when it is due. A row that is not live is
    what remains of one; it vanishes without a record when it is due.

    What remains is packed if it has an `expiry_ms`: only a hash of its key is kept. Then and
    before, its machine gets `REMAINS` instead of it for `decide`, `evolve` and `report`,
    and must not change it.

    A child belongs to another row, its parent: its key is the parent's and a suffix
    (`schemas.ids`). It vanishes with its parent, or when only a gravestone is left of that.
    When a child that is not live is due has no meaning.
    """

    row_class: type[Any]
    live: bool
    prefixes: frozenset[bytes]  # with which the bytes of this kind, as any release wrote them, begin
    encode: Callable[[Any, int], bytes]  # a row, and the version of the rules in force
    parts: RowParts | None = None  # None: rows are always written whole
    # when a row that is not live vanishes, ms of log time; None: it is never packed
    expiry_ms: Callable[[Any], int] | None = None
    label: Callable[[Any], Hashable] | None = None  # rows are counted by it, for metrics; None: they are not counted
    is_child: bool = False
    # since when a row holds a connection open, ms of log time; None: rows of this kind hold none
    open_since_ms: Callable[[Any], int | None] | None = None
    # what remains under the key of a row that vanishes, and is not live; None: nothing does
    remains: Callable[[Any], Any] | None = None

    @property
    def fate(self) -> RowFate:
        """What becomes of rows of this kind."""
        return RowFate(self.live, self.expiry_ms is not None, self.is_child, self.label is not None)


class Machine(Protocol[RowT, FactT]):
    """One family of rows. See the module's docstring for the order of calls."""

    row_kinds: Sequence[RowKind]
    event_types: frozenset[str]  # whose events this machine decides on
    streams: frozenset[Stream]  # what `report` may write to
    reported_facts: frozenset[type[Any]]  # the classes of facts that `report` is called for

    def row_key(self, arrival: Arrival) -> bytes:
        """Return the key of the row that an event of this family is about."""
        ...

    def decode(self, value: bytes) -> RowT:
        """Return a row from bytes that any release wrote. Raises `DecodeError` for other bytes."""
        ...

    def decide(self, row: RowT | None, arrival: Arrival) -> Decision:
        """Judge a record. A refusal is a decision too, so this never raises."""
        ...

    def evolve(self, row: RowT | None, fact: FactT) -> RowT | None:
        """Apply a fact. Returns the same object if the fact changes nothing."""
        ...

    def receive_fact(self, row: RowT | None, fact: Any) -> Sequence[Any]:
        """Return what a fact from another row's machine (`ForRow`) comes to here.

        Facts for this row, and `ForRow`s; none if the row is not concerned. Most machines return
        the fact itself.
        """
        ...

    def report(
        self, key: bytes, row: RowT | None, after: RowT | None, fact: FactT, arrival: Arrival | None, place: Place
    ) -> Sequence[Emitted]:
        """Return the records that a fact leaves.

        `key` is the row's; `row` and `after` are the row before and after the fact; `arrival` is
        None if a timer fired.
        """
        ...

    def estimate_bytes(self, row: RowT) -> int:
        """Return about how many bytes a row takes in the changelog; no text of it is left out.

        Encodes nothing: it is called once per row and batch.
        """
        ...

    def due_ms(self, row: RowT, hole_end_ms: int = 0) -> int:
        """Return when a row is due, in ms of log time.

        `hole_end_ms`: when the partition's last hole ended. It may
        postpone a live row, and never makes one due earlier.
        """
        ...

    def repair_times(self, row: RowT, repairs: Sequence[ClockRepair]) -> RowT:
        """Return a live row with its times as they are after repairs of the partition's clock.

        The same object if it includes them all. `repairs`: the partition's, at least one.
        """
        ...

    def is_only_postponed(self, row: RowT, after: RowT) -> bool:
        """Return True only if `after` cannot be due earlier than `row`. Saves working out `due_ms`.

        Both rows are live.
        """
        ...

    def fire(self, row: RowT, now_ms: int, hole_end_ms: int = 0) -> Sequence[FactT | ForRow]:
        """Return what the deadline of a live row comes to, once it has passed.

        `hole_end_ms` is as in `due_ms`. Facts for other rows (`ForRow`) come last.
        """
        ...


AnyMachine = Machine[Any, Any]


def split_facts(facts: Sequence[Any]) -> tuple[Sequence[Any], Sequence[ForRow]]:
    """Return the facts for the row itself, and those for other rows."""
    if not facts or type(facts[-1]) is not ForRow:
        return facts, ()  # as almost always
    own = [fact for fact in facts if type(fact) is not ForRow]
    return own, [fact for fact in facts if type(fact) is ForRow]


def apply_facts(
    machine: AnyMachine,
    key: bytes,
    row: Any,
    facts: Sequence[Any],
    arrival: Arrival | None,
    next_place: Callable[[], Place],
) -> tuple[Any, list[Emitted]]:
    """Return the row after all facts, and the records that they leave, in order."""
    emitted: list[Emitted] = []
    reported, evolve = machine.reported_facts, machine.evolve
    for fact in facts:
        after = evolve(row, fact)
        if type(fact) in reported:
            emitted.extend(machine.report(key, row, after, fact, arrival, next_place()))
        row = after
    return row, emitted
