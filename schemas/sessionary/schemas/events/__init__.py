"""The events: one frozen payload class per schema, named as the schema is, without the envelope.

    session          events of a session: its life, moves, content, agents
    run              events of runs, steps, tasks and tool calls

Import the classes from here: `from sessionary.schemas.events import SessionCreated`. Its event type
follows from the name of a class, so a new one is its class, and its name in `Payload` and exports.
"""

import re
from typing import get_args

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
    RequestsRepeated,
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
    SessionRolledBack,
    SessionStarted,
    SessionStartFailed,
    SessionTakenOver,
    SessionTerminated,
    SessionTimedOut,
    SnapshotCreated,
    StateUpdated,
    TxnBegun,
    TxnCommitted,
    TxnRolledBack,
    UsageRecorded,
)

Payload = (
    SessionCreated
    | SessionPhaseChanged
    | SessionStarted
    | SessionStartFailed
    | SessionPaused
    | SessionResumed
    | SessionTimedOut
    | SessionErrored
    | SessionRecovered
    | SessionTerminated
    | SessionArchived
    | SessionTakenOver
    | RequestsRepeated
    | SessionActivity
    | Heartbeat
    | ProgressReported
    | StateUpdated
    | SessionMigrationOffered
    | SessionMigrationLoaded
    | SessionMigrationAccepted
    | SessionMigrationCompleted
    | SessionMigrationAborted
    | ResourcesReleased
    | RunQueued
    | RunRejected
    | RunStarted
    | RunRunning
    | RunPaused
    | RunResumed
    | RunCompleted
    | RunFailed
    | RunCancelled
    | PlanRecorded
    | PlanReplaced
    | StepStarted
    | StepSucceeded
    | StepFailed
    | StepSkipped
    | ToolCallStarted
    | ToolCallSucceeded
    | ToolCallFailed
    | ToolCallUnknown
    | ToolCallResolved
    | LlmDecision
    | MessageAppended
    | SnapshotCreated
    | CheckpointSaved
    | AgentRegistered
    | AgentTaskUpdated
    | ContextSynced
    | ArtifactCreated
    | ArtifactChunkAppended
    | ArtifactCompleted
    | ArtifactSoftDeleted
    | ArtifactPurged
    | UsageRecorded
    | SessionRolledBack
    | TxnBegun
    | TxnCommitted
    | TxnRolledBack
)
"""Any payload of an event; the families in the order of the modules."""


def _event_type(payload: type[Payload]) -> str:
    """Return the event type: the class's name in snake case."""
    return re.sub("(?<!^)(?=[A-Z])", "_", payload.__name__).lower()


EVENT_TYPES: dict[type[Payload], str] = {payload: _event_type(payload) for payload in get_args(Payload)}
"""Event type by payload class."""

PAYLOADS: dict[str, type[Payload]] = {name: payload for payload, name in EVENT_TYPES.items()}
"""Payload class by event type."""

OPERATORS: frozenset[type[Payload]] = frozenset(cls for cls in EVENT_TYPES if "as_operator" in cls._fields)
"""The payload classes that may say that an operator acts (`as_operator`)."""

__all__ = [
    "EVENT_TYPES",
    "OPERATORS",
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
    "RequestsRepeated",
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
    "SessionRolledBack",
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
    "TxnBegun",
    "TxnCommitted",
    "TxnRolledBack",
    "UsageRecorded",
]
