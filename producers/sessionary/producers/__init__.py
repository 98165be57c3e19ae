"""The public names of the client: clients, their sessions, settings and errors.

Event classes for `Session.emit` are in `sessionary.schemas.events`; an in-memory client for your
own tests is in `sessionary.producers.testing`. The modules, in the order in which an event passes:

    client          `SessionClient`: makes sessions, answers clean-up requests
    async_client    `AsyncSessionClient`: the same for asyncio
    async_client_parts  the hand-written part of `async_client`
    client_core/    the common core of both clients: opening, end, forks, tenants, tasks
    agents/         the agents that share one session
    session/        one session: its verbs, its heartbeats, waiting for verdicts
    verdicts/       the processor's decisions: checks before, and notifications afterwards
    delivery/       from a payload to an acknowledged record in Kafka
    control/        the control API, and requests for clean-ups, tasks and migrations
    tasks/          workers of long tasks, and the context of their functions
    ports           the protocols of transport, control API and requests
    run_ports       the same for reading and following sessions and runs
    kafka_ports     the implementation of these protocols with Kafka and HTTP
    durable/        runs, steps and tool calls that are recorded, so that a crash repeats nothing
    replay/         an agent's code over the record of a session, in which nothing is executed
    context/        the current session, metadata, decorators, several tenants
    artifacts/      content that is too large for events, in a folder or an object store
    testing/        the same protocols in memory, for users' tests
    process/        protection of the user's process: exit, fork, SIGTERM
    metrics         a client's metrics: names and values, without a library
    prometheus_metrics    the same for `prometheus_client`, if it is installed
    otel_metrics    the same for OpenTelemetry, if it is installed
    settings        `SESSIONARY_*` variables
    errors          the errors that the client raises
    follower      sessions that a client follows: their states as they are committed
    async_follower  the same for asyncio
    migrations    sessions that move to another service: the target's part
"""

from importlib import import_module
from typing import TYPE_CHECKING

from sessionary.producers.agents.agent import Agent, AgentView
from sessionary.producers.agents.work import TaskDone, VersionConflict
from sessionary.producers.client import SessionClient
from sessionary.producers.context.model_call import ModelCall
from sessionary.producers.context.scope import BlockMetadata, EventMetadata
from sessionary.producers.context.traced_calls import traced
from sessionary.producers.control.cleanup_responder import CleanupHandler
from sessionary.producers.durable.errors import (
    QuotaExceeded,
    ResultTooLarge,
    RunNotFound,
    RunOver,
    TaskStopped,
    ToolCallError,
    ToolCallFailed,
    ToolCallInProgress,
    ToolCallOverdue,
    ToolCallUnresolved,
)
from sessionary.producers.durable.reserved_call import Retry, TookEffect
from sessionary.producers.durable.resume_plan import ResumePlan
from sessionary.producers.durable.run_block import Run
from sessionary.producers.durable.tool import current_tool_key, tool
from sessionary.producers.errors import (
    AuthenticationFailed,
    BoundReached,
    ClientClosed,
    DeliveryFailed,
    EncodeError,
    EventRejected,
    HostLost,
    Invalid,
    ModelSlow,
    ModelTimeout,
    NotAllowed,
    ProducerConflict,
    ProducerError,
    QueueFull,
    Rejected,
    RunGone,
    SessionaryError,
    SessionEnded,
    SessionExists,
    SessionFenced,
    SessionHeld,
    SessionLost,
    SessionTimeout,
    SettingsError,
    SpoolDamaged,
    SpoolRemoved,
    SpoolUnusable,
    StateMismatch,
    Unavailable,
    UnreadableRequest,
    VerdictPending,
)
from sessionary.producers.follower import SessionFollower
from sessionary.producers.migrations import OnMigrated
from sessionary.producers.ports import (
    AgentMember,
    Backlog,
    Counters,
    Json,
    MigrationView,
    OnError,
    PolicyInForce,
    Ports,
    SessionView,
    TaskView,
    Verdict,
)
from sessionary.producers.run_ports import (
    AgentRecord,
    ArtifactView,
    ExecutionView,
    HandoverView,
    HeldBy,
    MessageView,
)
from sessionary.producers.session.decisions import Decision
from sessionary.producers.session.heartbeat import BeatsWith
from sessionary.producers.session.lifecycle import Step
from sessionary.producers.session.migration import MigrationAborted, MigrationResult
from sessionary.producers.session.session import (
    Session,
    SessionAgents,
    SessionConversation,
    SessionLifecycle,
    SessionMigration,
    SessionRecords,
)
from sessionary.producers.session.transaction import Transaction
from sessionary.producers.session.turn import Turn
from sessionary.producers.verdicts.notifications import (
    OnFenced,
    OnPaused,
    OnRejected,
    OnResumed,
    OnTimedOut,
    SessionGoesOn,
)
from sessionary.schemas.events import Payload
from sessionary.schemas.ids import SessionId
from sessionary.schemas.records import CleanupRequest, MigrationRequest, TaskRequest
from sessionary.schemas.types import (
    AccessedResource,
    Answer,
    CleanupAction,
    DataClass,
    ErrorInfo,
    Limits,
    PauseKind,
    Phase,
    Question,
    Rejection,
    RejectionReason,
    RunMode,
    Snapshot,
    SnapshotMessage,
    StartFailureReason,
    ToolExecution,
)

if TYPE_CHECKING:
    from sessionary.producers.agents.async_agent import AsyncAgent
    from sessionary.producers.artifacts.library import ArtifactLibrary
    from sessionary.producers.async_client import AsyncSessionClient
    from sessionary.producers.async_client_parts import AsyncOnMigrated, current_session
    from sessionary.producers.async_follower import AsyncSessionFollower
    from sessionary.producers.replay.answers import MissedCall, ReplayCounts, ReplayMode, ReplayStub
    from sessionary.producers.replay.async_replay import AsyncReplay
    from sessionary.producers.replay.calls import RecordedCall
    from sessionary.producers.replay.errors import (
        NotReplayable,
        PointNotFound,
        RecordedFailure,
        ReplayBlocked,
        ReplayError,
        ReplayMiss,
    )
    from sessionary.producers.replay.record import RecordedEvent, SessionRecord
    from sessionary.producers.replay.replay import Replay
    from sessionary.producers.session.async_opening import AsyncStep
    from sessionary.producers.session.async_session import (
        AsyncSession,
        AsyncSessionAgents,
        AsyncSessionConversation,
        AsyncSessionLifecycle,
        AsyncSessionMigration,
        AsyncSessionRecords,
    )
    from sessionary.producers.settings import DeliveryPolicy, ProducerSettings

# Most clients need none of them, or they need asyncio or pydantic, which take long to load.
_LOADED_AT_USE = {
    "ArtifactLibrary": "artifacts.library",
    "AsyncAgent": "agents.async_agent",
    "AsyncOnMigrated": "async_client_parts",
    "AsyncReplay": "replay.async_replay",
    "AsyncSession": "session.async_session",
    "AsyncSessionAgents": "session.async_session",
    "AsyncSessionClient": "async_client",
    "AsyncSessionConversation": "session.async_session",
    "AsyncSessionFollower": "async_follower",
    "AsyncSessionLifecycle": "session.async_session",
    "AsyncSessionMigration": "session.async_session",
    "AsyncSessionRecords": "session.async_session",
    "AsyncStep": "session.async_opening",
    "current_session": "async_client_parts",
    "DeliveryPolicy": "settings",
    "MissedCall": "replay.answers",
    "NotReplayable": "replay.errors",
    "PointNotFound": "replay.errors",
    "ProducerSettings": "settings",
    "RecordedCall": "replay.calls",
    "RecordedEvent": "replay.record",
    "RecordedFailure": "replay.errors",
    "Replay": "replay.replay",
    "ReplayBlocked": "replay.errors",
    "ReplayCounts": "replay.answers",
    "ReplayError": "replay.errors",
    "ReplayMiss": "replay.errors",
    "ReplayMode": "replay.answers",
    "ReplayStub": "replay.answers",
    "SessionRecord": "replay.record",
}


def __getattr__(name: str) -> object:
    if name not in _LOADED_AT_USE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_LOADED_AT_USE[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "AccessedResource",
    "Agent",
    "AgentMember",
    "AgentRecord",
    "AgentView",
    "Answer",
    "ArtifactLibrary",
    "ArtifactView",
    "AsyncAgent",
    "AsyncOnMigrated",
    "AsyncReplay",
    "AsyncSession",
    "AsyncSessionAgents",
    "AsyncSessionClient",
    "AsyncSessionConversation",
    "AsyncSessionFollower",
    "AsyncSessionLifecycle",
    "AsyncSessionMigration",
    "AsyncSessionRecords",
    "AsyncStep",
    "AuthenticationFailed",
    "Backlog",
    "BeatsWith",
    "BlockMetadata",
    "BoundReached",
    "CleanupAction",
    "CleanupHandler",
    "CleanupRequest",
    "ClientClosed",
    "Counters",
    "DataClass",
    "Decision",
    "DeliveryFailed",
    "DeliveryPolicy",
    "EncodeError",
    "ErrorInfo",
    "EventMetadata",
    "EventRejected",
    "ExecutionView",
    "HandoverView",
    "HeldBy",
    "HostLost",
    "Invalid",
    "Json",
    "Limits",
    "MessageView",
    "MigrationAborted",
    "MigrationRequest",
    "MigrationResult",
    "MigrationView",
    "MissedCall",
    "ModelCall",
    "ModelSlow",
    "ModelTimeout",
    "NotAllowed",
    "NotReplayable",
    "OnError",
    "OnFenced",
    "OnMigrated",
    "OnPaused",
    "OnRejected",
    "OnResumed",
    "OnTimedOut",
    "PauseKind",
    "Payload",
    "Phase",
    "PointNotFound",
    "PolicyInForce",
    "Ports",
    "ProducerConflict",
    "ProducerError",
    "ProducerSettings",
    "Question",
    "QueueFull",
    "QuotaExceeded",
    "RecordedCall",
    "RecordedEvent",
    "RecordedFailure",
    "Rejected",
    "Rejection",
    "RejectionReason",
    "Replay",
    "ReplayBlocked",
    "ReplayCounts",
    "ReplayError",
    "ReplayMiss",
    "ReplayMode",
    "ReplayStub",
    "ResultTooLarge",
    "ResumePlan",
    "Retry",
    "Run",
    "RunGone",
    "RunMode",
    "RunNotFound",
    "RunOver",
    "Session",
    "SessionAgents",
    "SessionClient",
    "SessionConversation",
    "SessionEnded",
    "SessionExists",
    "SessionFenced",
    "SessionFollower",
    "SessionGoesOn",
    "SessionHeld",
    "SessionId",
    "SessionLifecycle",
    "SessionLost",
    "SessionMigration",
    "SessionRecord",
    "SessionRecords",
    "SessionTimeout",
    "SessionView",
    "SessionaryError",
    "SettingsError",
    "Snapshot",
    "SnapshotMessage",
    "SpoolDamaged",
    "SpoolRemoved",
    "SpoolUnusable",
    "StartFailureReason",
    "StateMismatch",
    "Step",
    "TaskDone",
    "TaskRequest",
    "TaskStopped",
    "TaskView",
    "TookEffect",
    "ToolCallError",
    "ToolCallFailed",
    "ToolCallInProgress",
    "ToolCallOverdue",
    "ToolCallUnresolved",
    "ToolExecution",
    "Transaction",
    "Turn",
    "Unavailable",
    "UnreadableRequest",
    "Verdict",
    "VerdictPending",
    "VersionConflict",
    "current_session",
    "current_tool_key",
    "tool",
    "traced",
]
