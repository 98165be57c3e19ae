"""The judge of a partition: it reads the log's records, and decides on each of them.

A processor has one judge, and one family of rows is its home: the rows under the records' own keys.

    record ── read ──▶ arrival ── decide ──▶ facts ── evolve ──▶ home row after
                                    │          └───── report ──▶ audit records, dead letters
    deadline ───── Rows.fire ───────┴──────▶ writes: rows under other keys

`decide` and `fire` see all rows of the partition, and change none: a `Decision` lists the changes.
Everything here is pure and sees time as data: `now_ms` is the partition's clock.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from sessionary.schemas.codec import Decoder, Event
from sessionary.schemas.errors import DecodeError, Invalid
from sessionary.schemas.ids import SessionKey, parse_key
from sessionary.schemas.records import RulesActivation
from sessionary.schemas.signatures import SigningKeys
from sessionary.schemas.types import AnnouncedRules, RejectionReason, RuleSet
from sessionary.stream_processors.core.model import (
    Decision,
    Emitted,
    EventLog,
    LogRecord,
    OutputCause,
    RowLookup,
    Stream,
)
from sessionary.stream_processors.core.rows import AnyRows

NO_SESSION: Final = SessionKey("", "")


class Fault(NamedTuple):
    """Why a record cannot be taken as an event of the session that its key names."""

    reason: RejectionReason
    detail: str


class Objection(NamedTuple):
    """Why an event does not apply to the rows that it is about."""

    reason: RejectionReason
    detail: str


class Arrival:
    """A record of the log, read as far as possible. It does not depend on the rules.

    `event` is None if the value cannot be read, or if its envelope has a text that is too long;
    `fault` then says why. A fault next to an event says that the event does not belong under the
    record's key. `session` is `NO_SESSION` if the key names none. `rules` are those by which it is
    judged. `outage_end_ms`: before it, no event may have been heard; 0 if there was no outage.
    `clock_repair` is the number of the last repair of the partition's clock, which a new row's
    times include; 0 if there was none. `counts_as_tick`: the record is a processor's,
    and is counted with the ticks.
    """

    __slots__ = (
        "clock_repair",
        "counts_as_tick",
        "event",
        "fault",
        "log",
        "now_ms",
        "outage_end_ms",
        "record",
        "rules",
        "session",
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
        outage_end_ms: int = 0,
    ) -> None:
        self.record = record
        self.session = session
        self.event = event
        self.fault = fault
        self.log = log
        self.now_ms = now_ms
        self.rules = rules
        self.outage_end_ms = outage_end_ms
        self.clock_repair = 0
        self.counts_as_tick = False


class Judge(Protocol):
    """Decides on every record of a partition. Holds no state of one."""

    @property
    def families(self) -> Sequence[AnyRows]:
        """All rows of the partition; the first family's are under the records' own keys."""
        ...

    @property
    def streams(self) -> frozenset[Stream]:
        """The streams to which `report` may write."""
        ...

    @property
    def reported_facts(self) -> frozenset[type[Any]]:
        """The classes of facts for which `report` is called."""
        ...

    def read(
        self,
        record: LogRecord,
        row: Any,
        decoder: Decoder,
        log: EventLog,
        now_ms: int,
        rules: RuleSet,
        outage_end_ms: int = 0,
    ) -> Arrival | None:
        """Read a record; None for a tick, which only moves the clock.

        `row` is the row under the record's own key, if there is one: its key needs no second look.
        `outage_end_ms` is as in `Arrival`. `decoder` knows what `rules` know. Raises `Unavailable`
        if a schema registry does not answer.
        """
        ...

    def decide(self, row: Any, arrival: Any, rows: RowLookup) -> Decision:
        """Judge a record; `row` is the one under its key. A rejection is a decision too."""
        ...

    def evolve(self, row: Any, fact: Any) -> Any:
        """Return the home row after a fact; the same object if the fact changes nothing."""
        ...

    def report(
        self, key: bytes, row: Any, after: Any, fact: Any, arrival: Any, cause: OutputCause
    ) -> Sequence[Emitted]:
        """Return the records that a fact leaves.

        `key` is the home row's; `row` and `after` are the row before and after the fact; `arrival`
        is None if a timer fired.
        """
        ...


def apply_facts(
    judge: Judge,
    key: bytes,
    row: Any,
    facts: Sequence[Any],
    arrival: Arrival | None,
    next_place: Callable[[], OutputCause],
) -> tuple[Any, list[Emitted]]:
    """Return the home row after all facts, and the records that they leave, in order."""
    emitted: list[Emitted] = []
    reported, evolve = judge.reported_facts, judge.evolve
    for fact in facts:
        after = evolve(row, fact)
        if type(fact) in reported:
            emitted.extend(judge.report(key, row, after, fact, arrival, next_place()))
        row = after
    return row, emitted


def unread_arrival(record: LogRecord, log: EventLog, now_ms: int, rules: RuleSet) -> Arrival:
    """Return a record to be rejected unread: only its key is read."""
    try:
        session = parse_key(record.key)
    except Invalid:
        session = NO_SESSION
    return Arrival(record, session, None, None, log, now_ms, rules)


def find_forgery(record: LogRecord, keys: SigningKeys) -> str | None:
    """Return why a record that claims authority is no server role's, for people; None if it is."""
    return keys.find_fault(record.key, record.value or b"", record.list_headers())


def begins_rules(record: LogRecord, announced: AnnouncedRules, decoder: Decoder, keys: SigningKeys) -> bool:
    """Return whether the announced rules begin with a record, which a server role has signed.

    No other rules can begin: any client may write to the events topic, but not to the changelog.
    """
    if record.key is not None or record.offset < announced.from_offset:
        return False
    try:
        value = decoder.as_of(announced.version).decode_event(record.value)
    except DecodeError:
        return False
    if not isinstance(value, RulesActivation) or value.rules != announced.rules:
        return False
    return find_forgery(record, keys) is None
