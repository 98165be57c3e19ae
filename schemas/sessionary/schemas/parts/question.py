"""Types of questions to people that schemas share (`avro/common/*.avsc`)."""

from typing import NamedTuple


class Question(NamedTuple):
    """A question that a session waits with, in state Paused.

    Attributes:
        question_id: Id of the event that asked.
        text: The question, for people.
        answer_ms: For so long it may be answered, from the pause on. Then it is refused.
    """

    question_id: str
    text: str
    answer_ms: int


class Answer(NamedTuple):
    """How a session's last question ended.

    Attributes:
        question_id: The question's.
        approved: False if it was refused, or not answered in time.
        reason_code: `approved`, `refused` or `expired`.
        by: The principal who answered; empty if it expired.
        text: What he said, for people.
    """

    question_id: str
    approved: bool
    reason_code: str
    by: str
    text: str | None = None
