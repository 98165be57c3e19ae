"""A session's conversation: its turns are sent one by one, and read from the last.

A text that is too large for a turn is an artifact; the turn has its reference and its beginning:
{"artifact_ref": "artifact:message:…", "summary": "16,385 characters: …"}.
"""

import json
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sessionary.producers.context.scope import EventMetadata, envelope_fields
from sessionary.producers.delivery.emitter import EnvelopeFields
from sessionary.producers.durable.flow import Do, Flow, Send, Wait
from sessionary.producers.errors import Invalid, NotAllowed, Rejected, SessionEnded, SettingsError, Unavailable
from sessionary.producers.ports import Json, SessionView
from sessionary.producers.process.safe_text import any_json_text
from sessionary.producers.run_ports import MessageView
from sessionary.producers.session.core import SessionCore
from sessionary.producers.session.pending_verdict import PendingVerdict
from sessionary.producers.session.verdicts import Verdicts
from sessionary.schemas.events import MessageAppended, SessionPaused
from sessionary.schemas.limits import CONVERSATION_TURNS_MAX, MESSAGE_CHARACTERS_MAX, NUMBER_MAX, with_defaults
from sessionary.schemas.types import Answer

if TYPE_CHECKING:
    from sessionary.producers.artifacts.library import ArtifactLibrary


LAST_DEFAULT = 20
_MESSAGE_TYPE = "message"  # type of artifacts that are only the text of a turn
_SUMMARY_CHARACTERS = 200  # of the text's beginning


class Turns:
    """The conversation of one session. Thread-safe."""

    __slots__ = ("_core",)

    def __init__(self, core: SessionCore) -> None:
        self._core = core

    def append(self, role: str, content: str, name: str | None, metadata: EventMetadata) -> Flow[str]:
        """Append a turn; return its event's id. A large text is stored first."""
        if not isinstance(content, str):
            raise Invalid("invalid_value", f"content is a {type(content).__name__}, not a text")
        if len(content) > MESSAGE_CHARACTERS_MAX:
            turn = yield Do(partial(self._store_turn, role, content, name, metadata))
        else:
            turn = MessageAppended(role, content, name=name)
        event_id: str = yield Send(partial(self._core.send_event, turn, envelope_fields(metadata)))
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


class _Asked(NamedTuple):
    """A question that was asked: its event, or None if it was open already."""

    question_id: str
    sent: PendingVerdict | None


class Questions:
    """The questions of one session. Thread-safe."""

    __slots__ = ("_core", "_verdicts")

    def __init__(self, core: SessionCore) -> None:
        self._core = core
        self._verdicts = Verdicts(core)

    def ask(self, question: str, deadline: timedelta | float | None, metadata: EventMetadata) -> Flow[Answer]:
        """Ask, and wait for the answer."""
        answer_ms = _deadline_ms(deadline)
        fields = envelope_fields(metadata)
        asked: _Asked = yield Do(partial(self.open, question, answer_ms, metadata, fields))
        core = self._core
        waits, pause_s = core.waits, _PAUSE_S
        limit_ms = with_defaults(core.view.limits).hold_ms if answer_ms is None else answer_ms
        give_up_s = waits.now_s() + limit_ms / 1_000 + core.services.verdict_timeout_s
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

    def open(self, question: str, answer_ms: int | None, metadata: EventMetadata, fields: EnvelopeFields) -> _Asked:
        """Pause with a question, or find it open: then this process takes the session over."""
        core, view = self._core, self._core.view
        core.services.control.check_configured()
        if view.local_state == "Paused" and (found := self._find_open(question)) is not None:
            if not view.is_holder:
                self._verdicts.wait_take_over(self._verdicts.ask_take_over(metadata))
            return _Asked(found, None)
        with core.lock:
            snapshot = view.new_snapshot()
            payload = SessionPaused("review", question, snapshot, question, answer_ms)
            sent = core.send_awaited(payload, fields)
            view.snapshot_id = snapshot.snapshot_id
            core.set_state("Paused")
        return _Asked(sent.event_id, sent)

    def _find_open(self, question: str) -> str | None:
        """Return the id of the question that the session waits with, None if there is none."""
        view = self._core.fetch_judged(self._core.services.control.fetch_session)
        if view.question is None:
            return None
        if view.question.text != question:
            detail = f"the session waits for the answer to another question: {view.question.text!r:.200}"
            raise NotAllowed("question_open", detail, "Paused", _PAUSED)
        return view.question.question_id

    def _look_for_answer(self, asked: _Asked) -> Answer | None:
        """Return the answer, and adopt its epoch; None while the question is open."""
        core = self._core
        place = None if asked.sent is None else asked.sent.wait_position(core.services.verdict_timeout_s)
        view = core.fetch_view(place)
        if view.question is not None and view.question.question_id == asked.question_id:
            return None
        answer, rejection = view.answer, _rejection_of(view)
        is_answered = answer is not None and answer.question_id == asked.question_id
        with core.lock_then_notify():
            core.adopt_view(view)  # raises SessionFenced
        if is_answered:
            return answer
        if rejection is not None and asked.sent is not None:
            core.keep_rejection(asked.question_id, rejection)
            raise Rejected(_PAUSED, rejection)
        if view.state in ("Terminated", "Archived"):
            raise SessionEnded(f"session {core.session_id} ended ({view.reason_code}) before its question was answered")
        raise SessionEnded(f"the question of session {core.session_id} is no longer open: another process asked since")


def _rejection_of(view: SessionView) -> Any:
    return None if view.verdict is None else view.verdict.reason


def _deadline_ms(deadline: timedelta | float | None) -> int | None:
    """Return a deadline in ms. Raises `Invalid` unless it is above 0."""
    if deadline is None:
        return None
    seconds = deadline.total_seconds() if isinstance(deadline, timedelta) else float(deadline)
    if not 0 < seconds <= NUMBER_MAX / 1_000:
        raise Invalid("invalid_value", f"deadline is {deadline!r}: use seconds above 0, or a timedelta")
    return max(1, round(seconds * 1_000))
