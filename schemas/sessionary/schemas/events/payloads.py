"""The payload classes of all events, by event type and back."""

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
    ToolCallFailed,
    ToolCallResolved,
    ToolCallStarted,
    ToolCallSucceeded,
    ToolCallUnknown,
)
from sessionary.schemas.events.session import (
    AgentRegistered,
    AgentTaskUpdated,
    ArtifactChunkAppended,
    ArtifactCompleted,
    ArtifactCreated,
    ArtifactPurged,
    ArtifactSoftDeleted,
    CheckpointSaved,
    ContextSynced,
    Heartbeat,
    LlmDecision,
    MessageAppended,
    ProgressReported,
    ResourcesReleased,
    SessionActivity,
    SessionArchived,
    SessionCreated,
    SessionErrored,
    SessionMigrationAborted,
    SessionMigrationAccepted,
    SessionMigrationCompleted,
    SessionMigrationLoaded,
    SessionMigrationOffered,
    SessionPaused,
    SessionPhaseChanged,
    SessionRecovered,
    SessionResumed,
    SessionStarted,
    SessionStartFailed,
    SessionTakenOver,
    SessionTerminated,
    SessionTimedOut,
    SnapshotCreated,
    StateUpdated,
    UsageRecorded,
)

Payload = (
    AgentRegistered
    | AgentTaskUpdated
    | ArtifactChunkAppended
    | ArtifactCompleted
    | ArtifactCreated
    | ArtifactPurged
    | ArtifactSoftDeleted
    | CheckpointSaved
    | ContextSynced
    | Heartbeat
    | LlmDecision
    | MessageAppended
    | PlanRecorded
    | PlanReplaced
    | ProgressReported
    | ResourcesReleased
    | RunCancelled
    | RunCompleted
    | RunFailed
    | RunPaused
    | RunQueued
    | RunRejected
    | RunResumed
    | RunRunning
    | RunStarted
    | SessionActivity
    | SessionArchived
    | SessionCreated
    | SessionErrored
    | SessionMigrationAborted
    | SessionMigrationAccepted
    | SessionMigrationCompleted
    | SessionMigrationLoaded
    | SessionMigrationOffered
    | SessionPaused
    | SessionPhaseChanged
    | SessionRecovered
    | SessionResumed
    | SessionStartFailed
    | SessionStarted
    | SessionTakenOver
    | SessionTerminated
    | SessionTimedOut
    | SnapshotCreated
    | StateUpdated
    | StepFailed
    | StepSkipped
    | StepStarted
    | StepSucceeded
    | ToolCallFailed
    | ToolCallResolved
    | ToolCallStarted
    | ToolCallSucceeded
    | ToolCallUnknown
    | UsageRecorded
)
"""Any payload of an event."""

PAYLOADS: dict[str, type[Payload]] = {
    "session_created": SessionCreated,
    "session_phase_changed": SessionPhaseChanged,
    "session_started": SessionStarted,
    "session_start_failed": SessionStartFailed,
    "session_paused": SessionPaused,
    "session_resumed": SessionResumed,
    "session_timed_out": SessionTimedOut,
    "session_errored": SessionErrored,
    "session_recovered": SessionRecovered,
    "session_terminated": SessionTerminated,
    "session_archived": SessionArchived,
    "session_taken_over": SessionTakenOver,
    "session_activity": SessionActivity,
    "heartbeat": Heartbeat,
    "progress_reported": ProgressReported,
    "state_updated": StateUpdated,
    "session_migration_offered": SessionMigrationOffered,
    "session_migration_loaded": SessionMigrationLoaded,
    "session_migration_accepted": SessionMigrationAccepted,
    "session_migration_completed": SessionMigrationCompleted,
    "session_migration_aborted": SessionMigrationAborted,
    "resources_released": ResourcesReleased,
    "run_queued": RunQueued,
    "run_rejected": RunRejected,
    "run_started": RunStarted,
    "run_running": RunRunning,
    "run_paused": RunPaused,
    "run_resumed": RunResumed,
    "run_completed": RunCompleted,
    "run_failed": RunFailed,
    "run_cancelled": RunCancelled,
    "plan_recorded": PlanRecorded,
    "plan_replaced": PlanReplaced,
    "step_started": StepStarted,
    "step_succeeded": StepSucceeded,
    "step_failed": StepFailed,
    "step_skipped": StepSkipped,
    "tool_call_started": ToolCallStarted,
    "tool_call_succeeded": ToolCallSucceeded,
    "tool_call_failed": ToolCallFailed,
    "tool_call_unknown": ToolCallUnknown,
    "tool_call_resolved": ToolCallResolved,
    "llm_decision": LlmDecision,
    "message_appended": MessageAppended,
    "snapshot_created": SnapshotCreated,
    "checkpoint_saved": CheckpointSaved,
    "agent_registered": AgentRegistered,
    "agent_task_updated": AgentTaskUpdated,
    "context_synced": ContextSynced,
    "artifact_created": ArtifactCreated,
    "artifact_chunk_appended": ArtifactChunkAppended,
    "artifact_completed": ArtifactCompleted,
    "artifact_soft_deleted": ArtifactSoftDeleted,
    "artifact_purged": ArtifactPurged,
    "usage_recorded": UsageRecorded,
}
"""Payload class by event type; the families in the order of the modules."""

EVENT_TYPES: dict[type[Payload], str] = {payload: name for name, payload in PAYLOADS.items()}
"""Event type by payload class."""
