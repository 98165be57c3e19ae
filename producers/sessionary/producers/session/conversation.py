"""The verbs of a session's conversation: its turns are sent one by one, and read from the last.

A text that is too large for a turn is an artifact; the turn has its reference and its beginning:
{"artifact_ref": "artifact:message:…", "summary": "16,385 characters: …"}.
"""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from sessionary.producers.context.marks import Marks, envelope_fields
from sessionary.producers.errors import Invalid, SettingsError
from sessionary.producers.ports import Json
from sessionary.producers.process.json_text import any_json_text
from sessionary.producers.run_ports import MessageView
from sessionary.producers.session.views import SessionViews
from sessionary.schemas.events import MessageAppended
from sessionary.schemas.limits import CONVERSATION_TURNS_MAX, MESSAGE_CHARACTERS_MAX

if TYPE_CHECKING:  # most clients have no library
    from sessionary.producers.artifacts.library import ArtifactLibrary

LAST_DEFAULT = 20
_MESSAGE_TYPE = "message"  # of artifacts that are nothing but the text of a turn
_SUMMARY_CHARACTERS = 200  # of the text's beginning


class SessionConversation(SessionViews):
    """The verbs of the conversation. Thread-safe."""

    def message(self, role: str, content: str, *, name: str | None = None, **marks: Unpack[Marks]) -> str:
        """Append a turn to the conversation. The processor numbers the turns as it accepts them.

            session.message("user", "What was our revenue in May?")

        The last 200 turns can be read (`conversation`). A text of more than 16 Ki characters is
        stored as an artifact first, for which the verb waits.

        Args:
            role: Who speaks, in the agent's own words: `user`, `assistant` …
            content: The text.
            name: Name of the person or agent that speaks, if there are several.
            marks: As in `emit`.

        Returns:
            The event's id.

        Raises:
            Invalid: `content` is no text; or it has more than 16 Ki characters, and the client has
                no library of artifacts.
            Unavailable: The library does not take a large text. Nothing was sent.

        Otherwise raises as `emit` does.
        """
        if not isinstance(content, str):
            raise Invalid("invalid_value", f"content is a {type(content).__name__}, not a text")
        if not needs_library(content):
            return self._send_turn(MessageAppended(role, content, name=name), marks)
        return self._send_turn(self._store_turn(role, content, name, marks), marks)

    def _send_turn(self, turn: MessageAppended, marks: Marks) -> str:
        return self._send_event(turn, envelope_fields(marks))

    def _store_turn(self, role: str, content: str, name: str | None, marks: Marks) -> MessageAppended:
        """Store a text that is too large for a turn; return the turn, which is not sent yet."""
        library = self._services.artifacts
        if library is None:
            raise Invalid(
                "invalid_value",
                f"content has {len(content):,} characters, and a turn takes {MESSAGE_CHARACTERS_MAX:,}: set "
                "SESSIONARY_ARTIFACTS_URL, or SessionClient(artifacts=...), so that larger ones become artifacts",
            )
        artifact = library.save(self, content, _MESSAGE_TYPE, **marks)
        summary = f"{len(content):,} characters: {content[:_SUMMARY_CHARACTERS]}"
        reference = any_json_text({"artifact_ref": f"{artifact.reference}", "summary": summary}, "content")
        return MessageAppended(role, reference, artifact.artifact_id, name)

    def tool_message(self, tool_name: str, result: Json, **marks: Unpack[Marks]) -> str:
        """Append a tool's result to the conversation, as a turn of the role `tool`.

        A text is the turn's content as it is, any other value its JSON. The call itself is recorded
        by `@tool`. Returns and raises as `message` does.
        """
        return self.message("tool", result_text(result), name=tool_name, **marks)

    def conversation(self, last: int = LAST_DEFAULT, *, load_artifacts: bool = True) -> Sequence[MessageView]:
        """Return the last turns of the conversation in order, whichever process sent them.

        Waits as `sync` does until the processor has judged what this client sent; refused turns are
        not among them.

        Args:
            last: How many turns, from 0 to 200.
            load_artifacts: Load large texts from the library. If not, `content` is the JSON of
                reference and summary.

        Raises:
            Invalid: `last` is out of bounds.
            SettingsError: A text is an artifact, and the client has no library.
            ArtifactMissing: The library has no such text any more; or as it raises otherwise.

        Otherwise raises as `sync` does.
        """
        check_last(last)
        messages: Sequence[MessageView] = self._read_judged(
            lambda runs, after, timeout_s: runs.fetch_messages(self.session_id, last, after, timeout_s), ()
        )
        return load_contents(messages, self._services.artifacts) if load_artifacts else messages


def needs_library(content: str) -> bool:
    """Return whether a text is too large for a turn."""
    return len(content) > MESSAGE_CHARACTERS_MAX


def result_text(result: Json) -> str:
    """Return what a turn has of a tool's result. Raises `Invalid` if JSON cannot hold it."""
    return result if isinstance(result, str) else any_json_text(result, "result")


def check_last(last: int) -> None:
    """Raise `Invalid` unless so many turns may be asked for."""
    if not 0 <= last <= CONVERSATION_TURNS_MAX:
        raise Invalid("invalid_value", f"last is {last}: ask for 0 to {CONVERSATION_TURNS_MAX} turns")


def load_contents(messages: Sequence[MessageView], library: "ArtifactLibrary | None") -> list[MessageView]:
    """Return turns with the texts that are artifacts.

    Raises as `SessionConversation.conversation` does.
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


__all__ = [
    "LAST_DEFAULT",
    "SessionConversation",
    "check_last",
    "load_contents",
    "needs_library",
    "result_text",
]
