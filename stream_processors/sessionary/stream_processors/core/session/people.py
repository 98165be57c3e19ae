"""Actions of people on sessions: operators' events, questions, and the pause that waits for them.

Operators' events are those that the control API sends for a principal, and signs. An event without
that signature is rejected before it comes here. A question ends approved,
denied or expired: by an operator's answer, or by its clock. It ends without an answer only with
its session.

No process needs to run meanwhile, nor when the answer comes. So the clocks of activity leave an
answered session as long as a pause may last, until something is heard, and work is done.

An operator's pause is a lock (`SessionState.hold`): it ends by an operator, by its own limit, or
with the session. While it lasts, the time for an answer to an open question does not run.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sessionary.schemas.codec import Event
from sessionary.schemas.events import SessionPaused, SessionResumed
from sessionary.schemas.limits import OPERATOR_HOLD_MS_MAX, OPERATOR_HOLD_MS_MIN
from sessionary.schemas.records import SessionState
from sessionary.schemas.types import Answer, Envelope, Question, SessionHold
from sessionary.stream_processors.core.judge import Objection
from sessionary.stream_processors.core.run.changes import ANSWERS


def is_by_operator(event: Event) -> bool:
    """Return whether the control API sent an event for a principal with the role operator."""
    return getattr(event.payload, "as_operator", False) is True


def is_operators_cancellation(payload: Any) -> bool:
    """Return whether an operator cancels a session, which also ends a session in state Error."""
    return getattr(payload, "as_operator", False) is True and payload.reason == "cancelled"


EXPIRED: Final = "expired"
_APPROVED: Final = "approved"
_DENIED: Final = "denied"
ANSWERS_KEPT: Final = 16


def object_to_answer(row: SessionState, payload: SessionResumed) -> Objection | None:
    """Return why an event does not resume a session, with or without an open question, or None."""
    question = row.question
    if question is None:
        is_answer = payload.approved is not None or payload.question_id is not None
        return Objection("no_question", "the session waits for no answer") if is_answer else None
    if payload.approved is None:
        return Objection("question_open", "the session waits for an answer: approve or deny it")
    if not payload.as_operator:
        return Objection("operator_only", "an answer is an operator's to give")
    if payload.question_id not in (None, question.question_id):
        return Objection("no_question", f"another question is open than {payload.question_id}")
    return None


def object_to_hold(row: SessionState, payload: SessionResumed) -> Objection | None:
    """Return why an event does not end an operator's hold: it is not an operator's."""
    hold = row.hold
    if hold is None or payload.as_operator:
        return None
    until = instant_text(hold_end_ms(row, hold))
    return Objection("operator_only", f"{hold.by or 'an operator'} holds the session until {until}")


def hold_end_ms(row: SessionState, hold: SessionHold) -> int:
    """Return the log time at which a hold is over, and the session ends."""
    return row.entered_at + hold.hold_ms


def instant_text(at_ms: int, timespec: str = "seconds") -> str:
    """Return a time for people, as precise as `datetime.isoformat`'s `timespec` says.

    One beyond the calendar is a number.
    """
    try:
        at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at_ms)
    except OverflowError:
        return f"{at_ms} ms"
    return at.isoformat(timespec=timespec).replace("+00:00", "Z")


def object_to_pause(payload: SessionPaused) -> Objection | None:
    """Return why a session is not paused with the values of an event, or None."""
    if payload.snapshot is None and not payload.as_operator:
        return Objection("missing_snapshot", "a pause carries a snapshot")
    if payload.hold_ms is None:
        return None
    if not payload.as_operator:
        return Objection("operator_only", "hold_ms is an operator's to set")
    if not OPERATOR_HOLD_MS_MIN <= payload.hold_ms <= OPERATOR_HOLD_MS_MAX:
        detail = f"hold_ms is {payload.hold_ms}; use {OPERATOR_HOLD_MS_MIN} to {OPERATOR_HOLD_MS_MAX}"
        return Objection("invalid_value", detail)
    return None


def begun_hold(row: SessionState, envelope: Envelope, payload: SessionPaused) -> SessionHold | None:
    """Return the hold that a pause begins, or None: only an operator's does."""
    if not payload.as_operator:
        return None
    hold_ms = row.limits.hold_ms if payload.hold_ms is None else payload.hold_ms
    return SessionHold(envelope.actor or "", hold_ms)


def resume_reason(payload: SessionResumed) -> str:
    """Return the reason code of a resumption: the answer, if there is one."""
    if payload.approved is None:
        return "resumed"
    return _APPROVED if payload.approved else _DENIED


def asked_question(row: SessionState, envelope: Envelope, payload: SessionPaused) -> Question | None:
    """Return the question that a session waits with after a pause, or None."""
    if row.question is not None or payload.question is None:
        return row.question  # an operator's pause leaves an open one
    answer_ms = row.limits.hold_ms if payload.answer_ms is None else payload.answer_ms
    return Question(envelope.event_id, payload.question, answer_ms)


def given_answer(row: SessionState, envelope: Envelope, payload: SessionResumed) -> Answer | None:
    """Return the answer that an event gives to the session's question; None without one."""
    if row.question is None or payload.approved is None:
        return None
    reason_code = resume_reason(payload)
    return Answer(row.question.question_id, payload.approved, reason_code, envelope.actor or "", payload.message)


def expired_answer(question: Question) -> Answer:
    """Return the answer to a question without an answer in time: it is denied."""
    return Answer(question.question_id, approved=False, reason_code=EXPIRED, by="")


def kept_answers(row: SessionState, answer: Answer | None) -> Sequence[Answer]:
    """Return the answers that a session keeps after one more, or after none."""
    return row.answers if answer is None else (*row.answers, answer)[-ANSWERS_KEPT:]


def is_answer_new(row: SessionState) -> bool:
    """Return whether an answer has made a session Active, and no work was done in it since."""
    return row.last_work_at <= row.entered_at and row.state == "Active" and row.reason_code in ANSWERS
