"""Records that processors write (`avro/records/*.avsc`).

    control    on the events topic: ticks, activations of rules
    outputs    audit records, refused events, batches, requests for clean-ups and tasks
    session    the changelog's sessions, gravestones and positions
    run        the changelog's runs, steps and tool calls
    children   the changelog's artifacts, turns of conversations and agents
    migration  what processors ask the target of a migration for
    quota      the quotas of tenants: notices, verdicts and rows

Times of outputs are µs since the epoch; in the changelog's records they are ms of log time.
"""

from sessionary.schemas.records.children import AgentState, ArtifactState, MessageContent, MessageState
from sessionary.schemas.records.control import RulesActivation, Tick
from sessionary.schemas.records.migration import MigrationRequest
from sessionary.schemas.records.outputs import (
    AuditRecord,
    BatchAcknowledged,
    BatchRecord,
    CleanupRequest,
    RejectedEvent,
    TaskRequest,
)
from sessionary.schemas.records.quota import QuotaNotice, QuotaVerdict, TenantQuota
from sessionary.schemas.records.run import (
    EndedToolCall,
    FinishedRun,
    RunContent,
    RunGravestone,
    RunState,
    StepContent,
    StepState,
    TimedStep,
    ToolCallContent,
    ToolCallState,
)
from sessionary.schemas.records.session import Gravestone, GravestoneChunk, Position, SessionContent, SessionState

__all__ = [
    "AgentState",
    "ArtifactState",
    "AuditRecord",
    "BatchAcknowledged",
    "BatchRecord",
    "CleanupRequest",
    "EndedToolCall",
    "FinishedRun",
    "Gravestone",
    "GravestoneChunk",
    "MessageContent",
    "MessageState",
    "MigrationRequest",
    "Position",
    "QuotaNotice",
    "QuotaVerdict",
    "RejectedEvent",
    "RulesActivation",
    "RunContent",
    "RunGravestone",
    "RunState",
    "SessionContent",
    "SessionState",
    "StepContent",
    "StepState",
    "TaskRequest",
    "TenantQuota",
    "Tick",
    "TimedStep",
    "ToolCallContent",
    "ToolCallState",
]
