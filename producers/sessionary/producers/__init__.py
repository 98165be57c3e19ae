"""What an agent imports: clients, their sessions, settings and errors.

Event classes for `Session.emit` are in `sessionary.schemas.events`; an in-memory client for your
own tests is in `sessionary.producers.testing`. The modules, in the order in which an event passes:

    client          `SessionClient`: makes sessions, answers clean-up requests
    async_client    `AsyncSessionClient`: the same for asyncio
    session/        one session: its verbs, its heartbeats, waiting for verdicts
    delivery/       from a payload to an acknowledged record in Kafka
    control/        the control API, and clean-up requests
    ports           the protocols of what the client needs of the outside
    kafka_ports     these by Kafka and HTTP
    testing         these in memory, for users' tests
    process_exit    what happens to clients at exit, fork and SIGTERM
    metrics         what a client measures: names and values, without a library
    prometheus_metrics    the same for `prometheus_client`, if it is installed
    otel_metrics    the same for OpenTelemetry, if it is installed
    settings        `SESSIONARY_*` variables
    errors          what the client raises
"""

from sessionary.producers.async_client import AsyncSessionClient
from sessionary.producers.client import SessionClient
from sessionary.producers.control.cleanup_responder import CleanupHandler
from sessionary.producers.errors import (
    AuthenticationFailed,
    ClientClosed,
    DeliveryFailed,
    EncodeError,
    Invalid,
    ProducerConflict,
    ProducerError,
    QueueFull,
    Refused,
    RulesTooOld,
    SessionaryError,
    SessionEnded,
    SessionFenced,
    SessionLost,
    SettingsError,
    Unavailable,
    UnreadableRequest,
    VerdictPending,
)
from sessionary.producers.ports import Backlog, Counters, Json, OnError, Ports, SessionView, Verdict
from sessionary.producers.session.async_session import AsyncSession, AsyncStep
from sessionary.producers.session.heartbeat import BeatsWith
from sessionary.producers.session.life import Session, Step
from sessionary.producers.settings import DeliveryPolicy, ProducerSettings
from sessionary.schemas.events import Payload
from sessionary.schemas.records import CleanupRequest
from sessionary.schemas.types import (
    CleanupAction,
    DataClass,
    ErrorInfo,
    Limits,
    PauseKind,
    Phase,
    RefusalReason,
    Snapshot,
    StartFailureReason,
)

__all__ = [
    "AsyncSession",
    "AsyncSessionClient",
    "AsyncStep",
    "AuthenticationFailed",
    "Backlog",
    "BeatsWith",
    "CleanupAction",
    "CleanupHandler",
    "CleanupRequest",
    "ClientClosed",
    "Counters",
    "DataClass",
    "DeliveryFailed",
    "DeliveryPolicy",
    "EncodeError",
    "ErrorInfo",
    "Invalid",
    "Json",
    "Limits",
    "OnError",
    "PauseKind",
    "Payload",
    "Phase",
    "Ports",
    "ProducerConflict",
    "ProducerError",
    "ProducerSettings",
    "QueueFull",
    "RefusalReason",
    "Refused",
    "RulesTooOld",
    "Session",
    "SessionClient",
    "SessionEnded",
    "SessionFenced",
    "SessionLost",
    "SessionView",
    "SessionaryError",
    "SettingsError",
    "Snapshot",
    "StartFailureReason",
    "Step",
    "Unavailable",
    "UnreadableRequest",
    "Verdict",
    "VerdictPending",
]
