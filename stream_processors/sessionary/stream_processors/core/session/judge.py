"""The session's judge: it decides on every event of a session, its runs and their children.

`transitions` and `accepted` say what may happen, `decide` in which order a record is checked,
`children` what an event is for runs and children, `facts` what can come of it, `effects` what a
fact changes, `report` what it leaves in the audit trail.

A record is read in this order; what fails is a `Fault`, which becomes a refusal, so that it is
numbered, audited and kept like every other one:

    key ─▶ bytes ─▶ bounds ─▶ tenant and session of the key
"""

from collections.abc import Sequence
from typing import Any

from sessionary.schemas.codec import Decoder, Event
from sessionary.schemas.codec.value_bounds import find_long_text
from sessionary.schemas.errors import DecodeError, Invalid
from sessionary.schemas.ids import SessionKey, parse_key
from sessionary.schemas.records import QuotaVerdict, RulesActivation, Tick
from sessionary.schemas.types import RuleSet
from sessionary.stream_processors.core.family import ChildFamily, SessionArrival
from sessionary.stream_processors.core.judge import NO_SESSION, Fault
from sessionary.stream_processors.core.model import (
    Decision,
    Emitted,
    EventLog,
    LogRecord,
    Place,
    Row,
    RowLookup,
    Stream,
)
from sessionary.stream_processors.core.rows import AnyRows, Remains
from sessionary.stream_processors.core.run.rows import RunRows
from sessionary.stream_processors.core.session.children import decide_claim, find_named_rows
from sessionary.stream_processors.core.session.decide import decide_event, session_rules
from sessionary.stream_processors.core.session.effects import SessionRow, apply_fact
from sessionary.stream_processors.core.session.report import REPORTED_FACTS, report_fact
from sessionary.stream_processors.core.session.rows import GRAVESTONE_MS, SessionRows
from sessionary.stream_processors.core.session.transitions import TRANSITIONS, Transition


class SessionJudge:
    """Implements `Judge`. Holds no state; one instance serves any number of partitions."""

    def __init__(
        self,
        children: Sequence[ChildFamily],
        transitions: Sequence[Transition] = TRANSITIONS,
        gravestone_ms: int = GRAVESTONE_MS,
    ) -> None:
        """Take the families of children, a table of transitions, and how long a gravestone remains.

        `gravestone_ms` is log time. Raises `ValueError` for a table without a beginning, and for
        two families of the same events.
        """
        self.families: Sequence[AnyRows] = (
            SessionRows(transitions, gravestone_ms),
            RunRows(),
            *(family.rows for family in children),
        )
        self.streams: frozenset[Stream] = frozenset({"audit", "rejected", "cleanup", "tasks", "migrations", "quotas"})
        self.reported_facts: frozenset[type[Any]] = REPORTED_FACTS.union(
            *(family.reported_facts for family in children)
        )
        self._by_payload = {payload: family for family in children for payload in family.payloads}
        if len(self._by_payload) != sum(len(family.payloads) for family in children):
            raise ValueError("two families of children are for the same events")
        self._rules = session_rules(transitions)

    def read(
        self,
        record: LogRecord,
        row: Row | None,
        decoder: Decoder,
        log: EventLog,
        now_ms: int,
        rules: RuleSet,
        hole_end_ms: int = 0,
    ) -> SessionArrival | None:
        """Read a record as an event of its key's session; None for a tick.

        Raises `Unavailable` if a schema registry does not answer.
        """
        try:
            if record.key is None and _is_control(decoder.decode_event(record.value), rules):
                return None
            session = SessionKey(row.tenant_id, row.session_id) if row is not None else parse_key(record.key)
        except Invalid as error:
            detail = error.detail if record.key is not None else "a record without key is a tick, and this is none"
            beat = _heartbeat_of(record, decoder)
            return SessionArrival(record, NO_SESSION, beat, Fault("bad_key", detail), log, now_ms, rules)
        try:
            event = decoder.decode_event(record.value)
        except DecodeError as error:
            return SessionArrival(record, session, None, Fault(error.reason, error.detail), log, now_ms, rules)
        if isinstance(event, QuotaVerdict):
            arrival = SessionArrival(record, session, None, None, log, now_ms, rules)
            arrival.quota, arrival.is_tick = event, True
            return arrival
        if not isinstance(event, Event):
            return SessionArrival(record, session, None, Fault("bad_key", "a tick has no key"), log, now_ms, rules)
        envelope, fault = event.envelope, None
        if long_text := find_long_text(envelope):
            # Without the event nothing repeats its texts but the rejected record's bytes.
            return SessionArrival(record, session, None, Fault("invalid_value", long_text), log, now_ms, rules)
        if envelope.tenant_id != session.tenant_id:
            detail = f"tenant {envelope.tenant_id!r} under the key of {session.tenant_id!r}"
            fault = Fault("foreign_tenant", detail)
        elif envelope.session_id != session.session_id:
            detail = f"session {envelope.session_id!r} under the key of {session.session_id!r}"
            fault = Fault("key_mismatch", detail)
        return SessionArrival(record, session, event, fault, log, now_ms, rules, hole_end_ms)

    def decide(self, row: SessionRow | Remains | None, arrival: SessionArrival, rows: RowLookup) -> Decision:
        """Judge a record against its session, and the run and the child that it names."""
        if arrival.quota is not None:
            return decide_claim(row, arrival, arrival.quota, rows)
        event = arrival.event
        if event is not None and (event.envelope.run_id or type(event.payload) in self._by_payload):
            find_named_rows(arrival, rows, self._by_payload)
        return decide_event(self._rules, row, arrival, rows)

    def evolve(self, row: SessionRow | Remains | None, fact: Any) -> SessionRow | Remains | None:
        """Return the session's row after a fact."""
        return apply_fact(row, fact)

    def report(
        self,
        key: bytes,
        row: SessionRow | Remains | None,
        after: SessionRow | Remains | None,
        fact: Any,
        arrival: SessionArrival | None,
        place: Place,
    ) -> Sequence[Emitted]:
        """Return the records of a fact, each with its topic and key."""
        return report_fact(key, row, after, fact, arrival, place)


def _heartbeat_of(record: LogRecord, decoder: Decoder) -> Event | None:
    """Return a record's event if it is a heartbeat, which is never audited; else None."""
    try:
        event = decoder.decode_event(record.value)
    except DecodeError:
        return None
    if not isinstance(event, Event) or event.envelope.event_type != "heartbeat" or find_long_text(event.envelope):
        return None
    return event


def _is_control(value: Event | Tick | RulesActivation | QuotaVerdict, rules: RuleSet) -> bool:
    """Return whether a record without a key is a tick, or repeats that rules have begun."""
    return isinstance(value, Tick) or (isinstance(value, RulesActivation) and value.version <= rules.version)
