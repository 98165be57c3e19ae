"""Messages: a row holds a turn of a session's conversation, until a later turn takes it.

A turn has no clock, and vanishes with its session.
"""

from typing import Final, final

from sessionary.schemas.codec import Event, encode_record, record_headers
from sessionary.schemas.events import MessageAppended
from sessionary.schemas.fast_replace import make_replacer
from sessionary.schemas.ids import message_key
from sessionary.schemas.limits import MESSAGE_CHARACTERS_MAX
from sessionary.schemas.records import MessageContent, MessageState, SessionState
from sessionary.stream_processors.core.family import (
    ChildFamily,
    Judged,
    SessionArrival,
    UnclockedRows,
    content_parts,
    object_to_row_size,
)
from sessionary.stream_processors.core.judge import Objection
from sessionary.stream_processors.core.rows import RowKind

_replace_turns: Final = make_replacer(SessionState, "turns")


@final
class TurnTaken:
    """A message is this turn of the conversation."""

    __slots__ = ("turn",)

    def __init__(self, turn: int) -> None:
        self.turn = turn

    def apply(self, row: SessionState) -> SessionState:
        """Return the session with this number of turns."""
        return _replace_turns(row, self.turn)


def judge_message(session: SessionState, event: Event, arrival: SessionArrival) -> Judged | Objection:
    """Judge a message, which is the next turn of its session: length ─▶ size."""
    envelope, payload = event.envelope, event.payload
    assert isinstance(payload, MessageAppended)
    length = len(payload.content or "")
    if length > MESSAGE_CHARACTERS_MAX:
        detail = f"content has {length} characters, more than {MESSAGE_CHARACTERS_MAX}: send it as an artifact"
        return Objection("invalid_value", detail)
    after = MessageState(
        tenant_id=session.tenant_id,
        session_id=session.session_id,
        turn=session.turns + 1,
        run_id=envelope.run_id or None,
        agent_id=envelope.agent_id,
        service_id=envelope.service_id,
        role=payload.role,
        name=payload.name,
        at=arrival.now_ms,
        content=payload.content,
        artifact_id=payload.artifact_id,
    )
    too_large = object_to_row_size("message", arrival.child_key or b"", after, arrival)
    return too_large or Judged(after, (TurnTaken(after.turn),))


def _key_of(event: Event, session: bytes, run: bytes, row: object) -> bytes | None:
    """Return the key of the turn after the session's last one; a message names none itself."""
    return message_key(session, row.turns + 1) if isinstance(row, SessionState) else None


_KIND: Final = RowKind(
    MessageState,
    live=False,
    prefixes=record_headers(MessageState),
    encode=encode_record,
    parts=content_parts(MessageContent),
    is_child=True,
)
MESSAGES: Final = ChildFamily(
    UnclockedRows("message", (_KIND,)), (MessageAppended,), _key_of, judge_message, is_ring=True
)
