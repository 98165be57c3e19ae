"""What a transition brings beside its reason: a snapshot, a question, an answer, an epoch."""

from sessionary.schemas.codec import Event
from sessionary.schemas.events import SessionPaused, SessionResumed
from sessionary.schemas.records import SessionState
from sessionary.stream_processors.core.session.facts import Transitioned
from sessionary.stream_processors.core.session.people.operators import is_by_operator
from sessionary.stream_processors.core.session.people.questions import asked_question, given_answer
from sessionary.stream_processors.core.session.people.snapshots import committed_snapshot


def complete_transition(row: SessionState, event: Event, fact: Transitioned) -> Transitioned:
    """Return what an event comes to, with all that it is for the session; for rules 2.

    An operator's pause gets the snapshot of the row. An epoch that a client's event gives fences
    off who spoke before it; one that an operator's gives does not.
    """
    envelope, payload = event
    by_operator = is_by_operator(event)
    if isinstance(payload, SessionPaused):
        snapshot = committed_snapshot(row) if by_operator and payload.snapshot is None else fact.snapshot
        return fact._replace(snapshot=snapshot, question=asked_question(row, envelope, payload))
    if isinstance(payload, SessionResumed):
        return fact._replace(answer=given_answer(row, envelope, payload), fences=not by_operator)
    return fact._replace(fences=True) if fact.transition.event_type == "session_recovered" else fact


__all__ = ["complete_transition"]
