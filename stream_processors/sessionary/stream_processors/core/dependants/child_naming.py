"""Which child of a run or a session an event names: the key of its row."""

from typing import Final

from sessionary.schemas.codec import Event
from sessionary.schemas.events import (
    AgentRegistered,
    AgentTaskUpdated,
    ArtifactChunkAppended,
    ArtifactCompleted,
    ArtifactCreated,
    ArtifactPurged,
    ArtifactSoftDeleted,
    ContextSynced,
    MessageAppended,
    StepFailed,
    StepSkipped,
    StepStarted,
    StepSucceeded,
    ToolCallFailed,
    ToolCallResolved,
    ToolCallStarted,
    ToolCallSucceeded,
)
from sessionary.schemas.ids import agent_key, artifact_key, call_key, step_key

# Each union also as a tuple: `isinstance` takes a third of the time.
StepPayload = StepStarted | StepSucceeded | StepFailed | StepSkipped
STEP_PAYLOADS: Final = (StepStarted, StepSucceeded, StepFailed, StepSkipped)
CallPayload = ToolCallStarted | ToolCallSucceeded | ToolCallFailed | ToolCallResolved
CALL_PAYLOADS: Final = (ToolCallStarted, ToolCallSucceeded, ToolCallFailed, ToolCallResolved)
ArtifactPayload = ArtifactCreated | ArtifactChunkAppended | ArtifactCompleted | ArtifactSoftDeleted | ArtifactPurged
ARTIFACT_PAYLOADS: Final = (
    ArtifactCreated,
    ArtifactChunkAppended,
    ArtifactCompleted,
    ArtifactSoftDeleted,
    ArtifactPurged,
)
AgentPayload = AgentRegistered | AgentTaskUpdated | ContextSynced
AGENT_PAYLOADS: Final = (AgentRegistered, AgentTaskUpdated, ContextSynced)
# Those of events that may have a row although they name no run.
PAYLOADS_OF_SESSIONS: Final = frozenset({*CALL_PAYLOADS, *ARTIFACT_PAYLOADS, *AGENT_PAYLOADS, MessageAppended})


def named_child(session: bytes, run: bytes, event: Event) -> bytes | None:
    """Return the key of the row that an event names beside its run's; None if it names none.

    `session` and `run` are the keys of both; that of the run is empty if the event names none.

    A step has a row if it is of a run and its attempts are counted: attempt 0 is work that is only
    reported, such as the call of a model. A call is reserved, and so has a row, if its idempotency
    key is not empty and is not just the call's id. Of a hand-over the taker's row is named. A
    message names no row: it takes the next turn.
    """
    payload = event.payload
    if isinstance(payload, CALL_PAYLOADS):
        if not payload.idem_key or payload.idem_key == payload.tool_call_id:
            return None
        return call_key(run or session, payload.idem_key)
    if isinstance(payload, ARTIFACT_PAYLOADS):
        return artifact_key(run or session, payload.artifact_id)
    if isinstance(payload, AGENT_PAYLOADS):
        return agent_key(session, named_agent(event))
    if run and isinstance(payload, STEP_PAYLOADS) and (isinstance(payload, StepSkipped) or payload.attempt):
        return step_key(run, payload.name)
    return None


def named_agent(event: Event) -> str:
    """Return the id of the agent that an event is of; of a hand-over, the taker's."""
    payload = event.payload
    if isinstance(payload, ContextSynced):
        return payload.to_agent_id
    assert isinstance(payload, AGENT_PAYLOADS)
    return event.envelope.agent_id if payload.agent_id is None else payload.agent_id
