"""A session's conversation: its turns are sent one by one, and read from the last.

A text that is too large for a turn is an artifact; the turn has its reference and its beginning:
{"artifact_ref": "artifact:message:…", "summary": "16,385 characters: …"}.
"""

import json
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from sessionary.producers.context.marks import Marks, envelope_fields
from sessionary.producers.durable.flow import Do, Flow, Send
from sessionary.producers.errors import Invalid, SettingsError
from sessionary.producers.ports import Json
from sessionary.producers.process.json_text import any_json_text
from sessionary.producers.run_ports import MessageView
from sessionary.producers.session.core import SessionCore
from sessionary.schemas.events import MessageAppended
from sessionary.schemas.limits import CONVERSATION_TURNS_MAX, MESSAGE_CHARACTERS_MAX

if TYPE_CHECKING:  # most clients have no library
    from sessionary.producers.artifacts.library import ArtifactLibrary

LAST_DEFAULT = 20
_MESSAGE_TYPE = "message"  # of artifacts that are nothing but the text of a turn
_SUMMARY_CHARACTERS = 200  # of the text's beginning


class Turns:
    """The conversation of one session. Thread-safe."""

    __slots__ = ("_core",)

    def __init__(self, core: SessionCore) -> None:
        self._core = core

    def append(self, role: str, content: str, name: str | None, marks: Marks) -> Flow[str]:
        """Append a turn; return its event's id. A large text is stored first."""
        if not isinstance(content, str):
            raise Invalid("invalid_value", f"content is a {type(content).__name__}, not a text")
        if len(content) > MESSAGE_CHARACTERS_MAX:
            turn = yield Do(partial(self._store_turn, role, content, name, marks))
        else:
            turn = MessageAppended(role, content, name=name)
        event_id: str = yield Send(partial(self._core.send_event, turn, envelope_fields(marks)))
        return event_id

    def append_result(self, tool_name: str, result: Json, marks: Marks) -> Flow[str]:
        """Append a tool's result, as a turn of the role `tool`."""
        text = result if isinstance(result, str) else any_json_text(result, "result")
        return self.append("tool", text, tool_name, marks)

    def read(self, last: int, load_artifacts: bool) -> Sequence[MessageView]:
        """Return the last turns in order, whichever process sent them."""
        check_last(last)
        session_id = self._core.session_id
        messages: Sequence[MessageView] = self._core.read_judged(
            lambda runs, after, timeout_s: runs.fetch_messages(session_id, last, after, timeout_s), ()
        )
        return load_contents(messages, self._core.services.artifacts) if load_artifacts else messages

    def _store_turn(self, role: str, content: str, name: str | None, marks: Marks) -> MessageAppended:
        """Store a text that is too large for a turn; return the turn, which is not sent yet."""
        library = self._core.services.artifacts
        if library is None:
            raise Invalid(
                "invalid_value",
                f"content has {len(content):,} characters, and a turn takes {MESSAGE_CHARACTERS_MAX:,}: set "
                "SESSIONARY_ARTIFACTS_URL, or SessionClient(artifacts=...), so that larger ones become artifacts",
            )
        artifact = library.save(self._core, content, _MESSAGE_TYPE, **marks)
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
