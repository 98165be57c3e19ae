"""Records that processors write (`avro/records/*.avsc`).

    outputs    records of all other topics: audit, rejected, requests, quotas, batches
    rows       rows of the changelog: sessions, and their runs and other children

Times of outputs are µs since the epoch; in the changelog's records they are ms of log time.
"""

from sessionary.schemas.records.outputs import (
    AuditRecord,
    BatchAcknowledged,
    BatchRecord,
    CleanupRequest,
    MigrationRequest,
    QuotaNotice,
    QuotaVerdict,
    RejectedEvent,
    RulesActivation,
    TaskRequest,
    TenantQuota,
    Tick,
)
from sessionary.schemas.records.rows import (
    AgentState,
    ArtifactState,
    CheckpointState,
    EndedToolCall,
    FinishedRun,
    MessageContent,
    MessageState,
    Position,
    RunContent,
    RunState,
    RunTombstone,
    SessionContent,
    SessionState,
    StepContent,
    StepState,
    TimedStep,
    Tombstone,
    TombstoneChunk,
    ToolCallContent,
    ToolCallState,
)

__all__ = [
    "AgentState",
    "ArtifactState",
    "AuditRecord",
    "BatchAcknowledged",
    "BatchRecord",
    "CheckpointState",
    "CleanupRequest",
    "EndedToolCall",
    "FinishedRun",
    "MessageContent",
    "MessageState",
    "MigrationRequest",
    "Position",
    "QuotaNotice",
    "QuotaVerdict",
    "RejectedEvent",
    "RulesActivation",
    "RunContent",
    "RunState",
    "RunTombstone",
    "SessionContent",
    "SessionState",
    "StepContent",
    "StepState",
    "TaskRequest",
    "TenantQuota",
    "Tick",
    "TimedStep",
    "Tombstone",
    "TombstoneChunk",
    "ToolCallContent",
    "ToolCallState",
]
