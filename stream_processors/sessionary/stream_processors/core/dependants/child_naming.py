"""Which child of a run or a session an event names: the key of a step, or of a reserved call."""

from typing import Final

from sessionary.schemas.codec import Event
from sessionary.schemas.events import (
    StepFailed,
    StepSkipped,
    StepStarted,
    StepSucceeded,
    ToolCallFailed,
    ToolCallResolved,
    ToolCallStarted,
    ToolCallSucceeded,
)
from sessionary.schemas.ids import SessionKey, call_key, run_key, step_key

StepPayload = StepStarted | StepSucceeded | StepFailed | StepSkipped
CallPayload = ToolCallStarted | ToolCallSucceeded | ToolCallFailed | ToolCallResolved
CALL_PAYLOADS: Final = frozenset({ToolCallStarted, ToolCallSucceeded, ToolCallFailed, ToolCallResolved})


def named_child(session: SessionKey, event: Event) -> bytes | None:
    """Return the key of the row that an event names beside its run's; None if it names none.

    A step has a row if it is of a run and its attempts are counted: attempt 0 is work that is only
    reported, such as the call of a model. A call is reserved, and so has a row, if its idempotency
    key is not empty and is not just the call's id.
    """
    payload, run_id = event.payload, event.envelope.run_id
    if isinstance(payload, CallPayload):
        if not payload.idem_key or payload.idem_key == payload.tool_call_id:
            return None
        return call_key(run_key(*session, run_id) if run_id else session.encoded(), payload.idem_key)
    if run_id and isinstance(payload, StepPayload) and (isinstance(payload, StepSkipped) or payload.attempt):
        return step_key(run_key(*session, run_id), payload.name)
    return None


__all__ = ["CALL_PAYLOADS", "CallPayload", "StepPayload", "named_child"]
