"""How a message is judged; its session and run are for it: length ─▶ size."""

from sessionary.schemas.codec import Event
from sessionary.schemas.events import MessageAppended
from sessionary.schemas.limits import MESSAGE_CHARACTERS_MAX
from sessionary.schemas.records import MessageState, SessionState
from sessionary.stream_processors.core.dependants.row_size import object_to_row_size
from sessionary.stream_processors.core.machine import Arrival, Objection


def judge_message(session: SessionState, event: Event, arrival: Arrival) -> MessageState | Objection:
    """Judge a message; return the row of its turn, which is put under `arrival.child_key`."""
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
    return object_to_row_size(arrival.child_key or b"", after, arrival) or after
