"""The events: one frozen payload class per schema, named as the schema is, without the envelope.

    session          lifecycle, activity, state and clean-up of a session
    migration        a session that moves to another service
    run              runs, their plans and steps
    tool             tool calls
    content          conversation, snapshots and checkpoints, artifacts
    collaboration    agents of one session
    usage            tokens and cost
    payloads         all payload classes, by event type and back

Import the classes from here: `from sessionary.schemas.events import SessionCreated`.
"""

from sessionary.schemas.events.collaboration import (
    AgentRegistered,
    AgentTaskUpdated,
    ContextSynced,
)
from sessionary.schemas.events.content import (
    ArtifactChunkAppended,
    ArtifactCompleted,
    ArtifactCreated,
    ArtifactPurged,
    ArtifactSoftDeleted,
    CheckpointSaved,
    LlmDecision,
    MessageAppended,
    SnapshotCreated,
)
from sessionary.schemas.events.migration import (
    SessionMigrationAborted,
    SessionMigrationAccepted,
    SessionMigrationCompleted,
    SessionMigrationLoaded,
    SessionMigrationOffered,
)
from sessionary.schemas.events.payloads import EVENT_TYPES, PAYLOADS, Payload
from sessionary.schemas.events.run import (
    PlanRecorded,
    PlanReplaced,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunPaused,
    RunQueued,
    RunRejected,
    RunResumed,
    RunRunning,
    RunStarted,
    StepFailed,
    StepSkipped,
    StepStarted,
    StepSucceeded,
)
from sessionary.schemas.events.session import (
    Heartbeat,
    ProgressReported,
    ResourcesReleased,
    SessionActivity,
    SessionArchived,
    SessionCreated,
    SessionErrored,
    SessionPaused,
    SessionPhaseChanged,
    SessionRecovered,
    SessionResumed,
    SessionStarted,
    SessionStartFailed,
    SessionTakenOver,
    SessionTerminated,
    SessionTimedOut,
    StateUpdated,
)
from sessionary.schemas.events.tool import (
    ToolCallFailed,
    ToolCallResolved,
    ToolCallStarted,
    ToolCallSucceeded,
    ToolCallUnknown,
)
from sessionary.schemas.events.usage import (
    UsageRecorded,
)

__all__ = [
    "EVENT_TYPES",
    "PAYLOADS",
    "AgentRegistered",
    "AgentTaskUpdated",
    "ArtifactChunkAppended",
    "ArtifactCompleted",
    "ArtifactCreated",
    "ArtifactPurged",
    "ArtifactSoftDeleted",
    "CheckpointSaved",
    "ContextSynced",
    "Heartbeat",
    "LlmDecision",
    "MessageAppended",
    "Payload",
    "PlanRecorded",
    "PlanReplaced",
    "ProgressReported",
    "ResourcesReleased",
    "RunCancelled",
    "RunCompleted",
    "RunFailed",
    "RunPaused",
    "RunQueued",
    "RunRejected",
    "RunResumed",
    "RunRunning",
    "RunStarted",
    "SessionActivity",
    "SessionArchived",
    "SessionCreated",
    "SessionErrored",
    "SessionMigrationAborted",
    "SessionMigrationAccepted",
    "SessionMigrationCompleted",
    "SessionMigrationLoaded",
    "SessionMigrationOffered",
    "SessionPaused",
    "SessionPhaseChanged",
    "SessionRecovered",
    "SessionResumed",
    "SessionStartFailed",
    "SessionStarted",
    "SessionTakenOver",
    "SessionTerminated",
    "SessionTimedOut",
    "SnapshotCreated",
    "StateUpdated",
    "StepFailed",
    "StepSkipped",
    "StepStarted",
    "StepSucceeded",
    "ToolCallFailed",
    "ToolCallResolved",
    "ToolCallStarted",
    "ToolCallSucceeded",
    "ToolCallUnknown",
    "UsageRecorded",
]
