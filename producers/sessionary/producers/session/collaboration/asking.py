"""The verb with which a session asks a person, and waits for the answer."""

from datetime import timedelta
from functools import partial
from typing import Any, Final, NamedTuple, Unpack

from sessionary.producers.context.marks import Marks, envelope_fields
from sessionary.producers.delivery.emitter import EnvelopeFields
from sessionary.producers.durable.flow import Do, Flow, Wait, run_flow
from sessionary.producers.errors import Invalid, NotAllowed, Refused, SessionEnded, Unavailable
from sessionary.producers.ports import SessionView
from sessionary.producers.session.conversation import SessionConversation
from sessionary.producers.session.pending_verdict import PendingVerdict
from sessionary.schemas.events import SessionPaused
from sessionary.schemas.limits import NUMBER_MAX, with_defaults
from sessionary.schemas.types import Answer

_PAUSED: Final = "session_paused"
_PAUSE_S, _PAUSE_S_MAX = 0.2, 2.0


class _Asked(NamedTuple):
    """A question that was asked: its event, or None if it was open already."""

    question_id: str
    sent: PendingVerdict | None


class SessionAsking(SessionConversation):
    """The verb `ask`. Thread-safe."""

    def ask(self, question: str, deadline: timedelta | float | None = None, **marks: Unpack[Marks]) -> Answer:
        """Pause the session with a question to a person, and wait for the answer. Blocks.

            answer = session.ask("Send the invoice?", deadline=timedelta(hours=4))
            if answer.approved:
                send_invoice()

        An operator answers by `sessionary approve` or `refuse`, or by the control API. If none
        does in time, the question expires, which is a refusal. The session is Active again
        whichever it is, in the next epoch; it sends no heartbeats meanwhile. If a process ends
        while it waits, another one may `attach` to the session and ask the same question: it takes
        the session over, and waits for the answer to the open one.

        Args:
            question: What is asked, for people.
            deadline: For so long it may be answered, in seconds or as a `timedelta`. It takes the
                place of the limit `hold_ms`, which is the default.
            marks: As in `emit`.

        Returns:
            The answer: `approved`, `reason_code` (`approved`, `refused` or `expired`), `by` whom,
            and the `text` that he gave.

        Raises:
            Refused: The processor refused the pause, for example because others hold the session.
            NotAllowed: The session waits for the answer to another question.
            SessionEnded: The session ended, for example because an operator called it off.
            SessionFenced: Another process took the session over meanwhile.
            Unavailable: The control API has not answered since the deadline. Ask again.

        Otherwise raises as `emit` and `sync` do.
        """
        flow = self._ask_person(question, deadline, marks)
        return run_flow(flow, self._waits.pause)

    # For `Session` and `AsyncSession`

    def _ask_take_over(self, marks: Marks) -> PendingVerdict:
        raise NotImplementedError

    def _await_take_over(self, pending: PendingVerdict) -> None:
        raise NotImplementedError

    def _ask_person(self, question: str, deadline: timedelta | float | None, marks: Marks) -> Flow[Answer]:
        """Ask, and wait for the answer."""
        answer_ms = _deadline_ms(deadline)
        fields = envelope_fields(marks)
        asked: _Asked = yield Do(partial(self._open_question, question, answer_ms, marks, fields))
        waits, pause_s = self._waits, _PAUSE_S
        limit_ms = with_defaults(self._limits).hold_ms if answer_ms is None else answer_ms
        give_up_s = waits.now_s() + limit_ms / 1_000 + self._services.verdict_timeout_s
        while True:
            try:
                answer: Answer | None = yield Do(partial(self._look_for_answer, asked))
            except Unavailable:
                if waits.now_s() >= give_up_s:
                    raise
                answer = None
            if answer is not None:
                return answer
            yield Wait(pause_s)
            pause_s = min(1.5 * pause_s, _PAUSE_S_MAX)

    def _open_question(self, question: str, answer_ms: int | None, marks: Marks, fields: EnvelopeFields) -> _Asked:
        """Pause with a question, or find it open: then this process takes the session over."""
        self._services.control.check_configured()
        if self._local_state == "Paused" and (found := self._find_open(question)) is not None:
            if not self._is_holder:
                self._await_take_over(self._ask_take_over(marks))
            return _Asked(found, None)
        with self._lock:
            snapshot = self._new_snapshot()
            payload = SessionPaused("review", question, snapshot, question, answer_ms)
            sent = self._send_awaited(payload, fields)
            self._snapshot_id = snapshot.snapshot_id
            self._set_state("Paused")
        return _Asked(sent.event_id, sent)

    def _find_open(self, question: str) -> str | None:
        """Return the id of the question that the session waits with, None if there is none."""
        view = self._fetch_judged(self._services.control.fetch_session)
        if view.question is None:
            return None
        if view.question.text != question:
            detail = f"the session waits for the answer to another question: {view.question.text!r:.200}"
            raise NotAllowed("question_open", detail, "Paused", _PAUSED)
        return view.question.question_id

    def _look_for_answer(self, asked: _Asked) -> Answer | None:
        """Return the answer, and adopt the epoch that it gave; None while the question is open."""
        timeout_s = self._services.verdict_timeout_s
        place = None if asked.sent is None else asked.sent.wait_position(timeout_s)
        view = self._services.control.fetch_session(self.session_id, place, timeout_s)
        if view.question is not None and view.question.question_id == asked.question_id:
            return None
        answer, refusal = view.answer, _refusal_of(view)
        is_answered = answer is not None and answer.question_id == asked.question_id
        with self._lock_then_tell():
            self._adopt_view(view)  # raises SessionFenced
        if is_answered:
            return answer
        if refusal is not None and asked.sent is not None:
            self._keep_refusal(asked.question_id, refusal)
            raise Refused(_PAUSED, refusal)
        if view.state in ("Terminated", "Archived"):
            raise SessionEnded(f"session {self.session_id} ended ({view.reason_code}) before its question was answered")
        raise SessionEnded(f"the question of session {self.session_id} is no longer open: another process asked since")


def _refusal_of(view: SessionView) -> Any:
    return None if view.verdict is None else view.verdict.reason


def _deadline_ms(deadline: timedelta | float | None) -> int | None:
    """Return a deadline in ms. Raises `Invalid` unless it is above 0."""
    if deadline is None:
        return None
    seconds = deadline.total_seconds() if isinstance(deadline, timedelta) else float(deadline)
    if not 0 < seconds <= NUMBER_MAX / 1_000:
        raise Invalid("invalid_value", f"deadline is {deadline!r}: use seconds above 0, or a timedelta")
    return max(1, round(seconds * 1_000))


__all__ = ["SessionAsking"]
