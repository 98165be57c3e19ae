"""The first checks of every record: is it an event of the session that its key names?

    key ─▶ bytes ─▶ bounds ─▶ tenant and session of the key ─▶ the machine of the event's family

What fails here is a `Fault`; the machine turns it into a refusal, so that it is numbered, audited
and kept like every other one.
"""

from collections.abc import Callable
from typing import Any

from sessionary.schemas.codec import Decoder, Event
from sessionary.schemas.codec.value_bounds import find_long_text
from sessionary.schemas.errors import DecodeError, Invalid
from sessionary.schemas.ids import SessionKey, parse_key
from sessionary.schemas.records import QuotaVerdict, RulesActivation, Tick
from sessionary.schemas.types import AnnouncedRules, RuleSet
from sessionary.stream_processors.core.machine import NO_SESSION, Arrival, Fault
from sessionary.stream_processors.core.model import EventLog, LogRecord, Row

# Record, row under its key, decoder, log, clock (ms), rules, end of the last hole (ms).
ReadArrival = Callable[[LogRecord, Any, Decoder, EventLog, int, RuleSet, int], Arrival | None]


def read_arrival(
    record: LogRecord,
    row: Row | None,
    decoder: Decoder,
    log: EventLog,
    now_ms: int,
    rules: RuleSet,
    hole_end_ms: int = 0,
) -> Arrival | None:
    """Read a record as an event of its key's session; None for a tick, which only moves the clock.

    `row` is the row under the record's own key, if there is one: its key needs no second look.
    `hole_end_ms` is as in `Arrival`.
    `decoder` knows what `rules` know. Raises `Unavailable` if a schema registry does not answer.
    """
    try:
        if record.key is None and _is_control(decoder.decode_event(record.value), rules):
            return None
        session = SessionKey(row.tenant_id, row.session_id) if row is not None else parse_key(record.key)
    except Invalid as error:
        detail = error.detail if record.key is not None else "a record without key is a tick, and this is none"
        beat = _heartbeat_of(record, decoder)
        return Arrival(record, NO_SESSION, beat, Fault("bad_key", detail), log, now_ms, rules)
    try:
        event = decoder.decode_event(record.value)
    except DecodeError as error:
        return Arrival(record, session, None, Fault(error.reason, error.detail), log, now_ms, rules)
    if isinstance(event, QuotaVerdict):
        return Arrival(record, session, None, None, log, now_ms, rules, quota=event)
    if not isinstance(event, Event):
        return Arrival(record, session, None, Fault("bad_key", "a tick has no key"), log, now_ms, rules)
    envelope, fault = event.envelope, None
    if long_text := find_long_text(envelope):
        # The event is left out, so that nothing repeats its texts but the rejected record's bytes.
        return Arrival(record, session, None, Fault("invalid_value", long_text), log, now_ms, rules)
    if envelope.tenant_id != session.tenant_id:
        detail = f"tenant {envelope.tenant_id!r} under the key of {session.tenant_id!r}"
        fault = Fault("foreign_tenant", detail)
    elif envelope.session_id != session.session_id:
        detail = f"session {envelope.session_id!r} under the key of {session.session_id!r}"
        fault = Fault("key_mismatch", detail)
    return Arrival(record, session, event, fault, log, now_ms, rules, hole_end_ms)


def unread_arrival(record: LogRecord, log: EventLog, now_ms: int, rules: RuleSet) -> Arrival:
    """Return a record as it is refused without being read: only its key is."""
    try:
        session = parse_key(record.key)
    except Invalid:
        session = NO_SESSION
    return Arrival(record, session, None, None, log, now_ms, rules)


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


def begins_rules(record: LogRecord, announced: AnnouncedRules, decoder: Decoder) -> bool:
    """Return whether the announced rules begin with a record.

    Others cannot begin: any client may write to the events topic, but not to the changelog.
    """
    if record.key is not None or record.offset < announced.from_offset:
        return False
    try:
        value = decoder.as_of(announced.version).decode_event(record.value)
    except DecodeError:
        return False
    return isinstance(value, RulesActivation) and value.rules == announced.rules
