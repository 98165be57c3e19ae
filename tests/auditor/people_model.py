"""What people do to sessions, for the oracle: operators' pauses, questions and answers."""

from typing import Any

from tests.auditor.decoding import Rejection, Row
from tests.auditor.snapshot_model import digest, follow_head


def by_operator(fields: Row) -> bool:
    """Return True if the control API sent the event for an operator."""
    return bool(fields.get("as_operator"))


def is_unheard(row: Row) -> bool:
    """Return whether nothing was heard of an Active session since an answer has made it so."""
    return bool(row["state"] == "Active" and row["answered"] and row["last_event_at"] <= row["entered_at"])


def head_for_operator(row: Row) -> None:
    """Let the head be a snapshot of the committed state: it stays if it is one."""
    whole = row["whole"]
    if (whole["state_json"], whole["schema_version"]) == (row["state_json"], row["state_schema"]):
        return
    number, used = int(row["head"][5:], 16), {row["head"], *row["snapshot_ids"]}
    while f"snap_{number:012x}" in used:
        number = (number - 1) % 2**48
    made = {
        **whole,
        "snapshot_id": f"snap_{number:012x}",
        "parent_snapshot_id": row["head"],
        "schema_version": row["state_schema"],
        "state_json": row["state_json"],
        "tool": None,
        "resources": [],
        "content_bytes": 0,
    }
    follow_head(row, {**made, "content_hash": digest(made)})


def ask_question(row: Row, envelope: Row, fields: Row) -> None:
    """Let a session wait for an answer, if its pause asks a question."""
    if (text := fields.get("question")) is not None:
        given = fields["answer_ms"]
        row["question"] = (envelope["event_id"], row["limits"]["hold_ms"] if given is None else given, text)


def check_hold(row: Row, fields: Row) -> None:
    """Raise `Rejection` if an operator holds the session, and another one wants it Active."""
    if row["hold"] is not None and not by_operator(fields):
        raise Rejection("operator_only")


def check_hold_time(fields: Row) -> None:
    """Raise `Rejection` if a pause names a time that it may not name."""
    hold_ms = fields.get("hold_ms")
    if hold_ms is None:
        return
    if not by_operator(fields):
        raise Rejection("operator_only")
    if not 1_000 <= hold_ms <= 2_592_000_000:
        raise Rejection("invalid_value")


def begin_hold(row: Row, envelope: Row, fields: Row) -> None:
    """Let an operator hold a session, or note that its agent paused it itself."""
    row["hold"] = None
    if by_operator(fields):
        given = fields.get("hold_ms")
        row["hold"] = (envelope["actor"] or "", row["limits"]["hold_ms"] if given is None else given)


def check_answer(row: Row, fields: Row) -> None:
    """Raise `Rejection` unless an event answers the open question, or neither is there."""
    approved, named = fields.get("approved"), fields.get("question_id")
    if row["question"] is None and (approved, named) != (None, None):
        raise Rejection("no_question")
    if row["question"] is None:
        return
    if approved is None:
        raise Rejection("question_open")
    if not by_operator(fields):
        raise Rejection("operator_only")
    if named is not None and named != row["question"][0]:
        raise Rejection("no_question")


def take_answer(row: Row, code: str, by: str = "", text: str | None = None) -> None:
    """End the question that a session waits with."""
    answer = (row["question"][0], code == "approved", code, by, text)
    row["answers"], row["question"] = [*row["answers"], answer][-16:], None


def drop_question(row: Row) -> None:
    """End a question with its session."""
    row["question"] = None


def people_of(question: Any, answers: Any, hold: Any) -> Row:
    """Return the question, answers and hold of a row of the product in the oracle's form."""
    asked = None if question is None else (question.question_id, question.answer_ms, question.text)
    return {"question": asked, "answers": [tuple(each) for each in answers], "hold": hold and tuple(hold)}
