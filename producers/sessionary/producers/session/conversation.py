"""A session's conversation: its turns are sent one by one, and read from the last.

A text that is too large for a turn is an artifact; the turn has its reference and its beginning:
{"artifact_ref": "artifact:message:…", "summary": "16,385 characters: …"}.
"""

import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from sessionary.producers.context.scope import EventMetadata, current_scope, envelope_fields
from sessionary.producers.delivery.emitter import EnvelopeFields
from sessionary.producers.durable.flow import Do, Flow, Send, Wait
from sessionary.producers.durable.recorder import Recorder
from sessionary.producers.errors import DeliveryFailed, Invalid, Rejected, SessionEnded, SettingsError, Unavailable
from sessionary.producers.ports import Json, SessionView
from sessionary.producers.process.safe_text import any_json_text
from sessionary.producers.run_ports import MessageView
from sessionary.producers.session.core import SessionCore
from sessionary.producers.session.pending_verdict import PendingVerdict
from sessionary.producers.session.verdicts import Verdicts
from sessionary.schemas.events import MessageAppended, SessionPaused
from sessionary.schemas.ids import content_hash, derived_id
from sessionary.schemas.limits import CONVERSATION_TURNS_MAX, MESSAGE_CHARACTERS_MAX, NUMBER_MAX, with_defaults
from sessionary.schemas.types import Answer, Question

if TYPE_CHECKING:
    from sessionary.producers.artifacts.library import ArtifactLibrary

T = TypeVar("T")

LAST_DEFAULT = 20
_MESSAGE_TYPE = "message"  # type of artifacts that are only the text of a turn
_SUMMARY_CHARACTERS = 200  # of the text's beginning


class Turns:
    """The conversation of one session. Thread-safe."""

    __slots__ = ("_core",)

    def __init__(self, core: SessionCore) -> None:
        self._core = core

    def append(
        self, role: str, content: str, name: str | None, metadata: EventMetadata, tokens: int | None = None
    ) -> Flow[str]:
        """Append a turn; return its event's id. A large text is stored first."""
        if not isinstance(content, str):
            raise Invalid("invalid_value", f"content is of type {type(content).__name__}, not a text")
        if tokens is not None and not (type(tokens) is int and 0 <= tokens <= NUMBER_MAX):
            shown = "below 0 or beyond the range" if type(tokens) is int else f"{tokens!r:.80}"
            raise Invalid("invalid_value", f"tokens is {shown}: give a whole number from 0 to {NUMBER_MAX}, or None")
        if len(content) > MESSAGE_CHARACTERS_MAX:
            turn = yield Do(partial(self._store_turn, role, content, name, metadata))
        else:
            turn = MessageAppended(role, content, name=name)
        event_id: str = yield Send(partial(self._core.send_event, turn, envelope_fields(metadata)))
        if (chain := self._core.view.chain) is not None:
            with self._core.lock:
                chain.note_message(role, content, tokens)
        return event_id

    def append_result(self, tool_name: str, result: Json, metadata: EventMetadata) -> Flow[str]:
        """Append a tool's result, as a turn of the role `tool`."""
        text = result if isinstance(result, str) else any_json_text(result, "result")
        return self.append("tool", text, tool_name, metadata)

    def read(self, last: int, load_artifacts: bool) -> Sequence[MessageView]:
        """Return the last turns in order, whichever process sent them."""
        check_last(last)
        session_id = self._core.session_id
        messages: Sequence[MessageView] = self._core.read_judged(
            lambda runs, after, timeout_s: runs.fetch_messages(session_id, last, after, timeout_s), ()
        )
        return load_contents(messages, self._core.services.artifacts) if load_artifacts else messages

    def _store_turn(self, role: str, content: str, name: str | None, metadata: EventMetadata) -> MessageAppended:
        """Store a text that is too large for a turn; return the turn, which is not sent yet."""
        library = self._core.services.artifacts
        if library is None:
            raise Invalid(
                "invalid_value",
                f"content has {len(content):,} characters, and a turn takes {MESSAGE_CHARACTERS_MAX:,}: set "
                "SESSIONARY_ARTIFACTS_URL, or SessionClient(artifacts=...), so that larger ones become artifacts",
            )
        artifact = library.save(self._core, content, _MESSAGE_TYPE, **metadata)
        summary = f"{len(content):,} characters: {content[:_SUMMARY_CHARACTERS]}"
        reference = any_json_text({"artifact_ref": f"{artifact.reference}", "summary": summary}, "content")
        return MessageAppended(role, reference, artifact.artifact_id, name)


def check_last(last: int) -> None:
    """Raise `Invalid` unless so many turns may be asked for."""
    if not 0 <= last <= CONVERSATION_TURNS_MAX:
        raise Invalid("invalid_value", f"last is {last}: ask for 0 to {CONVERSATION_TURNS_MAX} turns")


def load_contents(messages: Sequence[MessageView], library: "ArtifactLibrary | None") -> list[MessageView]:
    """Return turns with the texts that are artifacts.

    Raises as `Session.conversation.read` does.
    """
    return [_load_content(message, library) for message in messages]


def _load_content(message: MessageView, library: "ArtifactLibrary | None") -> MessageView:
    reference = None if message.artifact_id is None else _reference_in(message.content or "")
    if reference is None:
        return message
    if library is None:
        raise SettingsError(
            f"turn {message.turn} is {reference}: set SESSIONARY_ARTIFACTS_URL, or SessionClient(artifacts=...), to "
            "the place where it was saved, or pass load_artifacts=False"
        )
    return message._replace(content=library.load(reference).decode())


def _reference_in(content: str) -> str | None:
    """Return the reference of a turn's text; None for a text of another client's own form."""
    try:
        reference = json.loads(content)["artifact_ref"]
    except (ValueError, TypeError, KeyError):
        return None
    is_text = isinstance(reference, str) and reference.startswith(f"artifact:{_MESSAGE_TYPE}:")
    return reference if is_text else None


# Asks a person in a session, and waits for the answer.


_PAUSED: Final = "session_paused"
_PAUSE_S, _PAUSE_S_MAX = 0.2, 2.0
_KEY_DIGITS: Final = 12
_ENDED: Final = ("Terminated", "Archived")


class _Asking(NamedTuple):
    """A question that is to be asked; `question_id` is the id of its event, `run_id` its run."""

    question_id: str
    text: str
    answer_ms: int | None
    fields: EnvelopeFields
    run_id: str | None = None


class _Found(NamedTuple):
    """What came of a question; without an answer, another question was asked first."""

    answer: Answer | None


class Questions:
    """The questions of one session. Thread-safe.

    The id of a question follows from the place where it is asked: the run and step, or the turn,
    and how many questions of this text were asked there before. So a process that comes to the same
    place again finds the question, or its answer, instead of asking twice. In a run the answer is
    also kept, as the output of a step.
    """

    __slots__ = ("_core", "_verdicts")

    def __init__(self, core: SessionCore) -> None:
        self._core = core
        self._verdicts = Verdicts(core)

    def ask(self, question: str, deadline: timedelta | float | None, metadata: EventMetadata) -> Flow[Answer]:
        """Ask, and wait for the answer; return a recorded one without asking."""
        if not isinstance(question, str) or not question:
            raise Invalid("invalid_value", f"question is {question!r:.80}: use a text of at least 1 character")
        answer_ms, fields = _deadline_ms(deadline), envelope_fields(metadata)
        core = self._core
        core.services.control.check_configured()
        name = f"ask [{content_hash(question)[:_KEY_DIGITS]}]"  # names are kept longer than a person's data
        place = current_scope().place
        if place is not None and isinstance(place.recorder, Recorder) and place.recorder.key == core.emitter.key:
            run_id = place.run_id

            def ask_in_step(step_name: str) -> Flow[dict[str, Json]]:
                asking = _Asking(self._id_of(run_id, step_name), question, answer_ms, fields, run_id)
                answer = yield from self._ask_in_turn(asking, core.view.answers)
                return answer._asdict()

            kept = yield from place.record(name, {"args": [question]}, ask_in_step)
            return Answer(**kept)
        calls = core.recorder().calls()
        with calls.hold_number(name) as number:
            if calls.turn:
                known, question_id = core.view.answers, self._id_of("", f"turn {calls.turn}/{name} #{number}")
            else:
                # Nothing says how far the work has come: only an answer after which none was done
                # is the one to this question.
                known = () if core.view.new_answer is None else (core.view.new_answer,)
                question_id = self._others_id(question) or self._unused_id(f"{name} #{number}", known)
            return (yield from self._ask_in_turn(_Asking(question_id, question, answer_ms, fields), known))

    def until_answered(self) -> Flow[bool]:
        """Wait until no person is asked; return whether one was. Raises as `Session.ask` does."""
        question = self._core.view.question
        if question is None:
            return False
        yield from self._poll(self._look_for_end, question.answer_ms)
        return True

    def _others_id(self, text: str) -> str | None:
        """Return the id of the open question, if it is this one and was asked by another object."""
        view, known = self._core.view, self._core.view.question
        is_it = known is not None and known.text == text and known.question_id not in view.asked
        return known.question_id if known is not None and is_it else None

    def _unused_id(self, name: str, known: Sequence[Answer]) -> str:
        """Return the id of a question outside of runs and turns: the first without a used answer.

        A used one must not be the answer to an equal question that is asked later.
        """
        used = {answer.question_id for answer in self._core.view.answers if answer not in known}
        ids = (self._id_of("", name if number == 1 else f"{name} again {number}") for number in count(1))
        return next(question_id for question_id in ids if question_id not in used)

    def _id_of(self, run_id: str, name: str) -> str:
        return derived_id(*self._core.emitter.key, "question", run_id, name)

    def _ask_in_turn(self, asking: _Asking, known: Sequence[Answer]) -> Flow[Answer]:
        """Return the answer among those that are `known`, or ask once no other question is open."""
        view = self._core.view
        answer: Answer | None = _find_answer(known, asking.question_id)
        while answer is None:
            yield Do(self._know_pause)
            is_open = view.question is not None and view.question.question_id == asking.question_id
            sent: PendingVerdict | None = None
            if is_open:
                yield Do(partial(self._hold, asking))
            elif view.question is None:
                sent = yield Do(partial(self._send, asking))
            if is_open or sent is not None:
                limit_ms = self._limit_ms(asking)
                answer = (yield from self._poll(partial(self._look_for_answer, asking, sent), limit_ms)).answer
            if answer is None:
                yield from self.until_answered()
        return answer

    def _know_pause(self) -> None:
        """Find out about a pause that others have made: perhaps it asks something."""
        core, view = self._core, self._core.view
        with core.lock:  # another thread may be about to adopt a record
            is_known = view.local_state != "Paused" or view.question is not None
        if not is_known:
            core.sync(view.departures)

    def _hold(self, asking: _Asking) -> None:
        """Take the session over, unless this process holds it, or asks in a task."""
        view = self._core.view
        if not view.is_holder and asking.run_id not in view.detached_runs:
            self._verdicts.wait_take_over(self._verdicts.ask_take_over({}))

    def _send(self, asking: _Asking) -> PendingVerdict | None:
        """Pause with a question; None if another one is open by now."""
        core, view = self._core, self._core.view
        with core.lock:
            if view.question is not None:
                return None
            snapshot = core.next_snapshot()
            payload = SessionPaused("review", asking.text, snapshot, asking.text, asking.answer_ms)
            sent = core.send_awaited(payload, asking.fields, asking.question_id)
            # First, so that an interruption here leaves the question open.
            view.question = Question(asking.question_id, asking.text, self._limit_ms(asking))
            view.asked.add(asking.question_id)
            view.snapshot_id = snapshot.snapshot_id
            core.set_state("Paused")
            return sent

    def _limit_ms(self, asking: _Asking) -> int:
        return with_defaults(self._core.view.limits).hold_ms if asking.answer_ms is None else asking.answer_ms

    def _poll(self, look: Callable[[], T | None], limit_ms: int) -> Flow[T]:
        """Look until there is something; raise `Unavailable` if it is silent after the limit."""
        waits, pause_s = self._core.waits, _PAUSE_S
        give_up_s = waits.now_s() + limit_ms / 1_000 + self._core.services.verdict_timeout_s
        while True:
            try:
                found: T | None = yield Do(look)
            except Unavailable:
                if waits.now_s() >= give_up_s:
                    raise
                found = None
            if found is not None:
                return found
            yield Wait(pause_s)
            pause_s = min(1.5 * pause_s, _PAUSE_S_MAX)

    def _look_for_answer(self, asking: _Asking, sent: PendingVerdict | None) -> _Found | None:
        """Return the answer, and adopt its epoch; None while the question is open.

        No answer is found if another question was asked first.
        """
        core = self._core
        core.view.require_held()
        try:
            place = None if sent is None else sent.wait_position(core.services.verdict_timeout_s)
        except DeliveryFailed:
            self._take_back(asking, sent)
            raise
        view = core.fetch_view(place)
        is_open = view.question is not None and view.question.question_id == asking.question_id
        if not is_open or view.epoch != core.emitter.epoch:
            self._adopt(view, asking.question_id, None if sent is None else sent.producer_id)
        if is_open:
            return None
        if (answer := _find_answer(view.answers, asking.question_id)) is not None:
            if core.view.local_state == "Terminated":
                raise SessionEnded(f"session {core.session_id} was ended here before its question was answered")
            return _Found(answer)
        rejection = None if sent is None or view.verdict is None else view.verdict.reason
        if rejection is not None:
            core.keep_rejection(asking.question_id, rejection)
        if view.question is not None:
            return _Found(None)
        if rejection is not None:
            raise Rejected(_PAUSED, rejection)
        raise SessionEnded(
            f"session {core.session_id} ended ({view.reason_code}) before its question was answered"
            if view.state in _ENDED
            else f"the question of session {core.session_id} is no longer open: another process asked since"
        )

    def _take_back(self, asking: _Asking, sent: PendingVerdict | None) -> None:
        """Return to the state before a question that is lost: no person is asked."""
        core = self._core
        with core.lock:
            known = core.view.question
            if sent is not None and known is not None and known.question_id == asking.question_id:
                core.set_state(sent.local_state)

    def _look_for_end(self) -> bool | None:
        """Return True once no question is open, and adopt the epoch; None while one is."""
        core = self._core
        known = core.view.question
        view = core.fetch_judged(core.services.control.fetch_session)
        if known is not None and (view.question != known or view.epoch != core.emitter.epoch):
            self._adopt(view, known.question_id)
        if view.state in _ENDED:
            raise SessionEnded(f"session {core.session_id} ended ({view.reason_code}) before a person answered")
        return True if view.question is None else None

    def _adopt(self, view: SessionView, question_id: str, sender: str | None = None) -> None:
        """Adopt a record, unless another thread has done so since. Raises as `adopt_view`."""
        core = self._core
        with core.lock_then_notify():
            known = core.view.question
            if known is not None and known.question_id == question_id:
                core.adopt_view(view, sender)


def _find_answer(answers: Sequence[Answer], question_id: str) -> Answer | None:
    return next((answer for answer in answers if answer.question_id == question_id), None)


def _deadline_ms(deadline: timedelta | float | None) -> int | None:
    """Return a deadline in ms. Raises `Invalid` unless it is above 0."""
    if deadline is None:
        return None
    seconds = deadline.total_seconds() if isinstance(deadline, timedelta) else float(deadline)
    if not 0 < seconds <= NUMBER_MAX / 1_000:
        raise Invalid("invalid_value", f"deadline is {deadline!r}: use seconds above 0, or a timedelta")
    return max(1, round(seconds * 1_000))
