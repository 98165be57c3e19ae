"""Types that several schemas share: the envelope, enums and small records (`avro/common/*.avsc`).

Times are integers: µs since the epoch, but ms of log time in the state record and its parts. The
enums are those of `sessionary.schemas.enums`.
"""

from collections.abc import Sequence
from typing import NamedTuple

from sessionary.schemas.enums import (
    ArtifactStateName,
    AuditKind,
    CheckpointKind,
    ClockName,
    Compression,
    DataClass,
    ErrorClass,
    PauseKind,
    Phase,
    RefusalReason,
    RunMode,
    RunStateName,
    SessionStateName,
    SnapshotEncoding,
    StartFailureReason,
    StepStateName,
    TerminationReason,
    ToolCallStateName,
    ToolOutcome,
)
from sessionary.schemas.parts.agent import AgentHandover, SessionAgent, SharedResult
from sessionary.schemas.parts.fencing import FencedBeats
from sessionary.schemas.parts.migration import Migration, MigrationStep
from sessionary.schemas.parts.partition import ClockRepair, PartitionDecision
from sessionary.schemas.parts.question import Answer, Question
from sessionary.schemas.parts.quota import QuotaClaim, QuotaClaimState, QuotaName, QuotaStep, RunQuota, SessionQuota
from sessionary.schemas.parts.rules import AnnouncedRules, RuleSet
from sessionary.schemas.parts.run import Checkpoint, OpenRun


class ErrorInfo(NamedTuple):
    """An error as an agent reports it.

    Attributes:
        error_class: `retryable` if the same work may succeed later, else `fatal`.
        code: Short and stable, for programs; for example the exception's name.
        message: What happened, for people.
    """

    error_class: ErrorClass
    code: str
    message: str


class Limits(NamedTuple):
    """Limits that a session asks for; None means the default (`sessionary.schemas.limits`).

    Name only what differs: `Limits(idle_ms=600_000)`. Fields that end in `_ms` are milliseconds,
    `context_limit_bytes` is bytes. A value outside its recommended range needs `override=True`, and
    is reported in the audit trail.

    Attributes:
        init_ms: Longest time in Idle, from creation to start.
        model_ms: The model's part of the inactivity budget; recommended 30,000 to 60,000.
        tool_ms: A tool's part of the inactivity budget; recommended 10,000 to 30,000.
        network_ms: The network's part of the inactivity budget; recommended 5,000 to 15,000.
        idle_ms: Longest time in Active without work; heartbeats are no work.
        attached_run_ms: Longest time of an attached run from its start on; then it fails (rules 2).
        max_duration_ms: Longest life from the start on; Paused stops the clock.
        grace_ms: Time in Timeout until the session is terminated.
        hold_ms: Time in Paused until the session is terminated.
        recovery_ms: Time in Error until the session is terminated.
        archive_delay_ms: Time from a confirmed clean-up to Archived.
        release_limit_ms: Time in Terminated until Archived if no clean-up is confirmed.
        context_limit_bytes: Context size above which the audit trail gets a record; recommended
            50,000,000 to 200,000,000.
        override: Values outside the recommended ranges are intended.
    """

    init_ms: int | None = None
    model_ms: int | None = None
    tool_ms: int | None = None
    network_ms: int | None = None
    idle_ms: int | None = None
    attached_run_ms: int | None = None
    max_duration_ms: int | None = None
    grace_ms: int | None = None
    hold_ms: int | None = None
    recovery_ms: int | None = None
    archive_delay_ms: int | None = None
    release_limit_ms: int | None = None
    context_limit_bytes: int | None = None
    override: bool = False


class Snapshot(NamedTuple):
    """A session's content at one version.

    Snapshots form a chain: each names its parent.

    Attributes:
        snapshot_id: UUID.
        parent_snapshot_id: The snapshot before it; None for the first.
        schema_version: Version of the schema of `state_json`, which the agent chooses.
        state_json: The state as JSON; all of it if `encoding` is `full`.
        context: The model's context, if it is stored with the state.
        content_hash: SHA-256 of `state_json` in UTF-8, as hex.
        encoding: `full` for the whole state, `delta` for the changes since the parent.
        compression: How the stored bytes are compressed.
    """

    snapshot_id: str
    parent_snapshot_id: str | None
    schema_version: int
    state_json: str
    context: str | None
    content_hash: str
    encoding: SnapshotEncoding
    compression: Compression


class CleanupAction(NamedTuple):
    """One step of a clean-up, and whether it was done.

    Attributes:
        action: Name of the step, as the request has it.
        done: False if it failed; `detail` says why.
        at: When it ended; µs since the epoch.
        detail: Details, for people.
    """

    action: str
    done: bool
    at: int
    detail: str | None = None


class Candidate(NamedTuple):
    """An option that a model weighed, with its score."""

    name: str
    score: float


class SessionLimits(NamedTuple):
    """A session's limits with defaults filled in; the fields are those of `Limits`."""

    init_ms: int
    model_ms: int
    tool_ms: int
    network_ms: int
    idle_ms: int
    attached_run_ms: int
    max_duration_ms: int
    grace_ms: int
    hold_ms: int
    recovery_ms: int
    archive_delay_ms: int
    release_limit_ms: int
    context_limit_bytes: int


class SeqRange(NamedTuple):
    """A range of sequence numbers, both ends included."""

    first: int
    last: int


class ProducerLedger(NamedTuple):
    """What is known of one producer's sequence numbers in one session."""

    producer_id: str
    last_seq: int
    missing: Sequence[SeqRange] = ()  # Jumped over, oldest first
    epoch: int = 0  # The session's at its last event
    last_at: int = 0  # Log time of its last event, ms
    inexact_to: int = 0  # Numbers up to it may have been applied although `missing` has them
    # Hashes of the ids of its last events, two bytes for each number, the last one last; zero if
    # the number has no event.
    recent_ids: bytes | None = None
    offsets: Sequence[int] = ()  # Of its last 8 events: the newest, then how far each older one is before


class ForgottenProducer(NamedTuple):
    """What is left of a producer that the ledger had no room for."""

    id_hash: int  # The first 8 bytes of SHA-256 of its id, big-endian and signed
    last_seq: int
    epoch: int  # The session's at its last event


class Refusal(NamedTuple):
    """One of a session's last refusals."""

    offset: int
    reason: RefusalReason
    event_id: str


class Cleanup(NamedTuple):
    """A clean-up that was requested."""

    cleanup_id: str
    requested_at: int  # Log time, ms
    released: bool


class Envelope(NamedTuple):
    """What every event carries.

    Attributes:
        event_id: UUID, the event's identity; also its CloudEvents id.
        event_type: Name of the payload's type (`EVENT_TYPES`).
        schema_version: Version of the payload's schema, from 1.
        tenant_id: The tenant; part of the record key.
        session_id: UUID of RFC 9562 in lower case, unique per tenant; part of the record key.
        user_id: The user; personal data.
        agent_id: The agent that works in the session.
        agent_role: Its role, if there are several.
        service_id: The service that sends the event.
        actor: Name of the principal who asked for it; never a token.
        epoch: The session's epoch as the client knows it; only processors raise it.
        producer_id: UUID of the client process.
        producer_seq: Number per session and producer, from 1; 0 for types without one.
        run_id: The run that it belongs to, if any.
        run_seq: Number within the run, as the client counts; kept, not believed.
        step_id: The step that it belongs to, if any.
        causation_id: Id of the event that caused it, if any.
        occurred_at: The agent's clock in µs since the epoch: reported, never judged by.
        data_classes: Classes of the data that the session handles from now on.
        context_bytes: Size of the model's context, in bytes.
        server_version: Version of the agent's server.
        protocol_version: Version of the protocol that it speaks.
    """

    event_id: str
    event_type: str
    schema_version: int
    tenant_id: str
    session_id: str
    user_id: str | None
    agent_id: str
    agent_role: str | None
    service_id: str
    actor: str | None
    epoch: int
    producer_id: str
    producer_seq: int
    run_id: str | None
    run_seq: int | None
    step_id: str | None
    causation_id: str | None
    occurred_at: int
    data_classes: Sequence[DataClass] = ()
    context_bytes: int | None = None
    server_version: str | None = None
    protocol_version: str | None = None


__all__ = [
    "AgentHandover",
    "AnnouncedRules",
    "Answer",
    "ArtifactStateName",
    "AuditKind",
    "Candidate",
    "Checkpoint",
    "CheckpointKind",
    "Cleanup",
    "CleanupAction",
    "ClockName",
    "ClockRepair",
    "Compression",
    "DataClass",
    "Envelope",
    "ErrorClass",
    "ErrorInfo",
    "FencedBeats",
    "ForgottenProducer",
    "Limits",
    "Migration",
    "MigrationStep",
    "OpenRun",
    "PartitionDecision",
    "PauseKind",
    "Phase",
    "ProducerLedger",
    "Question",
    "QuotaClaim",
    "QuotaClaimState",
    "QuotaName",
    "QuotaStep",
    "Refusal",
    "RefusalReason",
    "RuleSet",
    "RunMode",
    "RunQuota",
    "RunStateName",
    "SeqRange",
    "SessionAgent",
    "SessionLimits",
    "SessionQuota",
    "SessionStateName",
    "SharedResult",
    "Snapshot",
    "SnapshotEncoding",
    "StartFailureReason",
    "StepStateName",
    "TerminationReason",
    "ToolCallStateName",
    "ToolOutcome",
]
