"""Types that several schemas share: the envelope, enums and small records (`avro/common/*.avsc`).

Times are integers: `timestamp-micros` fields count µs since the epoch, fields of the state record count ms of log time.
Every enum begins with `UNKNOWN`, which a reader sees in place of a symbol that it does not know.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

# Class of the data that a session handles; the compliance tags follow from it.
DataClass = Literal["UNKNOWN", "none", "personal", "financial", "medical"]

# Whether an error may be retried.
ErrorClass = Literal["UNKNOWN", "retryable", "fatal"]

# The seven states of a session.
SessionStateName = Literal["UNKNOWN", "Idle", "Active", "Paused", "Timeout", "Error", "Terminated", "Archived"]

# Sub-state: an attribute beside the state.
Phase = Literal[
    "UNKNOWN",
    "creating",
    "validating",
    "connecting",
    "processing",
    "updating",
    "persisting",
    "cleaning",
    "released",
    "logging",
    "recovery",
    "cleanup",
    "releasing",
    "clearing",
]

# Why a session is held.
PauseKind = Literal["UNKNOWN", "manual", "migration", "review"]

# Why a session never became Active.
StartFailureReason = Literal["UNKNOWN", "invalid_config", "connection_failed", "init_timeout"]

# Why a session ended.
TerminationReason = Literal[
    "UNKNOWN",
    "closed",
    "completed",
    "cancelled",
    "abnormal_termination",
    "forced",
    "unrecoverable",
    "recovery_failed",
    "timeout_cleanup",
]

# The clocks that can fire on a session.
ClockName = Literal[
    "UNKNOWN", "initialisation", "inactivity", "idle", "max_duration", "grace", "hold", "recovery", "archive"
]

# Whether a run lives and dies with its session.
RunMode = Literal["UNKNOWN", "attached", "detached"]

# How an unknown tool call was settled.
ToolOutcome = Literal["UNKNOWN", "succeeded", "failed"]

# How a snapshot's state is stored.
SnapshotEncoding = Literal["UNKNOWN", "full", "delta"]

# How a snapshot's bytes are packed.
Compression = Literal["UNKNOWN", "none", "gzip", "zstd"]

# What an audit record reports.
AuditKind = Literal["UNKNOWN", "transition", "refusal", "gap", "release", "context_limit", "limits_override"]

# Why an event was refused; the one list of reasons.
RefusalReason = Literal[
    "UNKNOWN",
    "undecodable",
    "unknown_schema",
    "unknown_event_type",
    "invalid_value",
    "bad_key",
    "key_mismatch",
    "foreign_tenant",
    "wrong_partition",
    "unknown_session",
    "session_exists",
    "session_archived",
    "late_filler",
    "too_many_producers",
    "stale_epoch",
    "future_epoch",
    "processor_only",
    "not_owner",
    "illegal_transition",
    "late",
    "phase_order",
    "missing_snapshot",
    "missing_error_class",
    "not_retryable",
    "retries_exhausted",
    "max_duration_exceeded",
    "version_conflict",
    "invalid_limits",
    "invalid_reason",
    "unknown_cleanup",
    "already_released",
    "state_too_large",
    "bad_row",
]


class ErrorInfo(NamedTuple):
    """An error as an agent reports it."""

    error_class: ErrorClass
    code: str
    message: str


class Limits(NamedTuple):
    """Per-session limits in milliseconds, null = default."""

    init_ms: int | None
    model_ms: int | None
    tool_ms: int | None
    network_ms: int | None
    idle_ms: int | None
    attached_run_ms: int | None
    max_duration_ms: int | None
    grace_ms: int | None
    hold_ms: int | None
    recovery_ms: int | None
    archive_delay_ms: int | None
    release_limit_ms: int | None
    context_limit_bytes: int | None
    override: bool  # Values outside the recommended ranges are meant


class Snapshot(NamedTuple):
    """A session's content at one version."""

    snapshot_id: str
    parent_snapshot_id: str | None
    schema_version: int  # Of state_json
    state_json: str
    context: str | None
    content_hash: str  # SHA-256 of state_json, hex
    encoding: SnapshotEncoding
    compression: Compression


class CleanupAction(NamedTuple):
    """One step of a clean-up and how it went."""

    action: str
    done: bool
    at: int  # µs since the epoch
    detail: str | None = None


class Candidate(NamedTuple):
    """An option that a model weighed."""

    name: str
    score: float


class SessionLimits(NamedTuple):
    """A session's limits after defaults, in milliseconds."""

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
    """A closed range of sequence numbers."""

    first: int
    last: int


class ProducerLedger(NamedTuple):
    """What is known of one producer's sequence in one session."""

    producer_id: str
    last_seq: int
    missing: Sequence[SeqRange] = ()  # Jumped over, oldest first


class Refusal(NamedTuple):
    """One of a session's last refusals."""

    offset: int
    reason: RefusalReason
    event_id: str


class Cleanup(NamedTuple):
    """A clean-up that was asked for."""

    cleanup_id: str
    requested_at: int  # Log time, ms
    released: bool


class Envelope(NamedTuple):
    """What every event carries."""

    event_id: str  # UUID; the event's identity and its CloudEvents id
    event_type: str
    schema_version: int
    tenant_id: str
    session_id: str  # RFC 9562 UUID, unique per tenant
    user_id: str | None  # Personal
    agent_id: str
    agent_role: str | None
    service_id: str  # Service that sends the event
    actor: str | None  # Name of the principal that asked, never a token
    epoch: int  # Ownership epoch; raised by the processor only
    producer_id: str  # UUID of the client process
    producer_seq: int  # Per session and producer, from 1; 0 where the type carries none
    run_id: str | None
    run_seq: int | None
    step_id: str | None
    causation_id: str | None
    occurred_at: int  # The agent's clock: reported, never judged by; µs since the epoch
    data_classes: Sequence[DataClass] = ()
    context_bytes: int | None = None
    server_version: str | None = None
    protocol_version: str | None = None
