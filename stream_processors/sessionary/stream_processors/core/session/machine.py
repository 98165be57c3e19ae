"""The session's machine: rows of sessions, and the gravestones that remain of archived ones.

`transitions` and `accepted` say what may happen, `decide` in which order a record is checked, `facts`
what can come of it, `effects` what a fact changes, `report` what it leaves in the audit trail.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sessionary.schemas.codec import Decoder, encode_record, record_header
from sessionary.schemas.errors import DecodeError
from sessionary.schemas.events import PAYLOADS
from sessionary.schemas.records import Gravestone, SessionState
from sessionary.schemas.types import ClockName
from sessionary.stream_processors.core.machine import Arrival, Decision, RowKind
from sessionary.stream_processors.core.model import Emitted, Place, Stream
from sessionary.stream_processors.core.session.clocks import SessionClock, format_seconds
from sessionary.stream_processors.core.session.decide import decide_event, session_rules
from sessionary.stream_processors.core.session.effects import SessionRow, apply_fact
from sessionary.stream_processors.core.session.facts import Buried, SessionFact, Transitioned
from sessionary.stream_processors.core.session.report import REPORTED_FACTS, report_fact
from sessionary.stream_processors.core.session.transitions import TRANSITIONS, Transition

GRAVESTONE_MS = 1_209_600_000  # 14 days: the events topic's retention + the age limit of a client's spool


class SessionDeadline(NamedTuple):
    """When a session's earliest clock fires (ms of log time), which one, its limit in ms, and what it does."""

    due_ms: int
    clock: ClockName
    limit_ms: int
    fires: tuple[Transition, SessionClock]


class SessionMachine:
    """Implements `Machine` for sessions. Holds no state; one instance serves any number of partitions."""

    row_kinds: Sequence[RowKind] = (
        RowKind(SessionState, live=True, prefix=record_header(SessionState), encode=encode_record),
        RowKind(Gravestone, live=False, prefix=record_header(Gravestone), encode=encode_record),
    )
    event_types: frozenset[str] = frozenset(PAYLOADS)
    streams: frozenset[Stream] = frozenset({"audit", "rejected", "cleanup"})
    reported_facts: frozenset[type[object]] = REPORTED_FACTS

    def __init__(self, transitions: Sequence[Transition] = TRANSITIONS, gravestone_ms: int = GRAVESTONE_MS) -> None:
        """Take a table of transitions, and how long a gravestone remains (ms of log time)."""
        self._rules = session_rules(transitions)
        self._clocked = _clocks_by_state(transitions)
        self._gravestone_ms = gravestone_ms
        self._decoder = Decoder()

    def row_key(self, arrival: Arrival) -> bytes:
        """Return the record's own key: it is the session's."""
        return arrival.record.key or b""

    def decode(self, value: bytes) -> SessionRow:
        """Return a session or a gravestone. Raises `DecodeError`."""
        row = self._decoder.record(value)
        if not isinstance(row, SessionState | Gravestone):
            raise DecodeError("unknown_schema", f"a {type(row).__name__} is no row")
        return row

    def decide(self, row: SessionRow | None, arrival: Arrival) -> Decision:
        """Judge a record against its session."""
        return decide_event(self._rules, row, arrival)

    def evolve(self, row: SessionRow | None, fact: SessionFact) -> SessionRow | None:
        """Apply a fact."""
        return apply_fact(row, fact)

    def report(
        self,
        key: bytes,
        row: SessionRow | None,
        after: SessionRow | None,
        fact: SessionFact,
        arrival: Arrival | None,
        place: Place,
    ) -> Sequence[Emitted]:
        """Return a fact's audit record, rejected record and clean-up request."""
        return report_fact(key, row, after, fact, arrival, place)

    def due_ms(self, row: SessionRow) -> int:
        """Return a session's earliest deadline, or a gravestone's end (ms of log time)."""
        return self.deadline(row).due_ms if isinstance(row, SessionState) else row.expires_at

    def is_only_postponed(self, row: SessionRow, after: SessionRow) -> bool:
        """Return True within Active: there limits are fixed, and every clock only moves forward."""
        return (
            isinstance(row, SessionState) and isinstance(after, SessionState) and after.state == "Active" == row.state
        )

    def deadline(self, state: SessionState) -> SessionDeadline:
        """Return the earliest deadline; every state has one. Of equal ones, the table's first clock wins."""
        earliest: SessionDeadline | None = None
        for transition, clock in self._clocked[state.state]:
            due = clock.due(state)
            if due is not None and (earliest is None or due.due_ms < earliest.due_ms):
                earliest = SessionDeadline(due.due_ms, clock.name, due.limit_ms, (transition, clock))
        assert earliest is not None
        return earliest

    def fire(self, row: SessionRow, now_ms: int) -> Sequence[SessionFact]:
        """Return the transition that the session's deadline makes; the reason names the limit."""
        assert isinstance(row, SessionState)
        deadline = self.deadline(row)
        transition, clock = deadline.fires
        reason = clock.reason.format(limit=format_seconds(deadline.limit_ms))
        fact = Transitioned(transition, now_ms, clock.reason_code, reason, due_ms=deadline.due_ms)
        return (fact, Buried(now_ms + self._gravestone_ms)) if transition.target == "Archived" else (fact,)


def _clocks_by_state(transitions: Sequence[Transition]) -> Mapping[str, Sequence[tuple[Transition, SessionClock]]]:
    clocked: dict[str, list[tuple[Transition, SessionClock]]] = {}
    for transition in transitions:
        for clock in transition.clocks:
            clocked.setdefault(f"{transition.source}", []).append((transition, clock))
    return clocked


__all__ = ["GRAVESTONE_MS", "SessionDeadline", "SessionMachine"]
