"""Checks of an event's own values: names, numbers, lengths and limits."""

from collections.abc import Sequence
from typing import Final

from sessionary.schemas.codec import Event
from sessionary.schemas.errors import Invalid
from sessionary.schemas.events import SessionCreated, SessionPaused, SessionResumed
from sessionary.schemas.ids import SessionKey, creation_ms, derived_id, successor_id, valid_name
from sessionary.schemas.limits import LIMIT_MAX, NUMBER_MAX, RANGES, with_defaults
from sessionary.schemas.records import SessionState, Tombstone
from sessionary.schemas.types import Envelope, Limits, RejectionReason, SessionLimits
from sessionary.stream_processors.core.judge import Objection
from sessionary.stream_processors.core.sequencing import SequenceCheck, hash_producer
from sessionary.stream_processors.core.session.facts import (
    ContextExceeded,
    ContextMeasured,
    GapFound,
    SequenceMoved,
    SessionFact,
    Transitioned,
)
from sessionary.stream_processors.core.session.people import (
    asked_question,
    begun_hold,
    given_answer,
    is_by_operator,
)
from sessionary.stream_processors.core.session.snapshots import committed_snapshot

# For so long after it was first sent an event may be delivered again: the retention of the events
# topic, and the age limit of a client's spool. It is a part of the rules.
REDELIVERY_MS_MAX: Final = 1_209_600_000  # 14 days


def tombstone_end_ms(grave: Tombstone) -> int:
    """Return when a tombstone vanishes, in ms of log time.

    A session id that holds its time needs none once its creation would be too old.
    """
    made_ms = creation_ms(grave.session_id)
    return grave.expires_at if made_ms is None else min(grave.expires_at, made_ms + REDELIVERY_MS_MAX)


def object_to_number(reason: RejectionReason, envelope: Envelope) -> Objection:
    """Return the objection to an event's number in its sender's sequence."""
    detail = f"number {envelope.producer_seq} of producer {envelope.producer_id}"
    if reason == "producer_conflict":
        detail += " is another event's: two processes use this id"
    return Objection(reason, detail)


def facts_of_number(sequence: SequenceCheck | None, owner_heard: int | None = None) -> Sequence[SessionFact]:
    """Return the facts of an event's number for its session; a heartbeat has no number (None).

    `owner_heard`: log time in ms if the event is a sign of life of the owning service, else None.
    """
    if sequence is None:
        return ()
    moved = SequenceMoved(sequence.producers, sequence.forgotten, owner_heard)
    return (moved,) if sequence.gap is None else (moved, GapFound(sequence.gap))


def object_to_age(session_id: str, now_ms: int) -> Objection | None:
    """Return an objection if a session is created whose tombstone may have vanished, or None.

    Only an id of version 7 holds its time of creation.
    """
    made_ms = creation_ms(session_id)
    if made_ms is None or made_ms + REDELIVERY_MS_MAX > now_ms:
        return None
    days = REDELIVERY_MS_MAX // 86_400_000
    return Objection("too_old", f"session id {session_id} was made more than {days} days ago, by its own time")


def invalid_envelope(envelope: Envelope, row: SessionState | None = None) -> str:
    """Return the fault of an envelope's values, or ''.

    Names that the row already has are valid.
    """
    if envelope.event_type != "heartbeat" and envelope.producer_seq < 1:
        return f"producer_seq is {envelope.producer_seq}; it counts from 1"
    if envelope.producer_seq > NUMBER_MAX:
        return f"producer_seq is {envelope.producer_seq}; it must be at most {NUMBER_MAX}"
    if envelope.epoch < 0:
        return f"epoch is {envelope.epoch}"
    if not (row is not None and envelope.service_id == row.owner_service) and not valid_name(envelope.service_id):
        return f"service_id {envelope.service_id!r} is no name"
    if not (row is not None and envelope.agent_id == row.agent_id) and not valid_name(envelope.agent_id):
        return f"agent_id {envelope.agent_id!r} is no name"
    is_holder = row is not None and row.holder != "" and envelope.producer_id == row.holder
    if not is_holder and not valid_name(envelope.producer_id):
        return f"producer_id {envelope.producer_id!r} is no name"
    if envelope.event_type == "session_created" and not envelope.user_id:
        return "session_created names no user"
    return ""


def complete_transition(row: SessionState, event: Event, fact: Transitioned) -> Transitioned:
    """Return the transition of an event, with all its values for the session.

    A pause by an operator or a migration gets the snapshot of the row. A new epoch from a client's
    event fences off earlier senders; a new epoch from an operator's event does not.
    """
    envelope, payload = event
    by_operator = is_by_operator(event)
    if isinstance(payload, SessionPaused):
        snapshot = committed_snapshot(row) if by_operator and payload.snapshot is None else fact.snapshot
        question, hold = asked_question(row, envelope, payload), begun_hold(row, envelope, payload)
        return fact._replace(snapshot=snapshot, question=question, hold=hold)
    if isinstance(payload, SessionResumed):
        answer = given_answer(row, envelope, payload)
        return fact._replace(answer=answer, fences=not by_operator, ends_turn=_is_in_other_turn(row, envelope))
    if fact.transition.event_type == "session_migration_loaded":
        return fact._replace(snapshot=committed_snapshot(row))
    if fact.transition.event_type == "session_recovered":
        return fact._replace(fences=True, ends_turn=_is_in_other_turn(row, envelope))
    return fact


def _is_in_other_turn(row: SessionState, envelope: Envelope) -> bool:
    """Return whether another producer than the event's is in a turn."""
    return row.turn_by not in (0, hash_producer(envelope.producer_id))


def object_to_external_id(session: SessionKey, payload: SessionCreated) -> Objection | None:
    """Return the objection to the text that was given as a session's id, or None.

    The session has the id that the text is mapped to, or that of its parent's successor: else one
    session would be found by the text of another.
    """
    text, parent = payload.external_id, payload.parent_session_id
    if text is None or session.session_id == derived_id(session.tenant_id, text):
        return None
    if parent is not None and session.session_id == successor_id(session.tenant_id, parent):
        return None
    return Objection("invalid_value", f"external_id {text!r:.80} is the text of another session's id")


def resolved(limits: Limits) -> SessionLimits:
    """Return `limits` with defaults filled in. Raises `Invalid("invalid_limits")`."""
    result = with_defaults(limits)
    for place, value in enumerate(result):
        if not 0 < value <= LIMIT_MAX:
            name = result._fields[place]
            raise Invalid("invalid_limits", f"{name} is {value}; it must be above 0 and at most {LIMIT_MAX}")
    outside = outside_ranges(result)
    if outside and not limits.override:
        raise Invalid("invalid_limits", f"{'; '.join(outside)}; set override where this is meant")
    return result


def outside_ranges(limits: SessionLimits) -> list[str]:
    """Return, for people, each limit that lies outside its recommended range."""
    return [
        f"{name} {value} is outside {low} to {high}"
        for name, (low, high) in RANGES.items()
        if not low <= (value := getattr(limits, name)) <= high
    ]


def measured_context(row: SessionState, envelope: Envelope) -> list[SessionFact]:
    """Return the facts of an event's context size. Above the limit it is audited once."""
    size, limit = envelope.context_bytes, row.limits.context_limit_bytes
    if size is None:
        return []
    exceeded = size > limit
    facts: list[SessionFact] = []
    if exceeded and not row.context_exceeded:
        facts.append(ContextExceeded(size, limit))
    if (size, exceeded) != (row.context_bytes, row.context_exceeded):
        facts.append(ContextMeasured(size, exceeded))
    return facts
