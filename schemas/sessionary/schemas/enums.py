"""The enums that schemas share (`avro/common/*.avsc`).

Every enum begins with `UNKNOWN`: a reader gets it in place of a symbol that it does not know, and
writers do not use it.
"""

from typing import Literal, cast, get_args

DataClass = Literal["UNKNOWN", "none", "personal", "financial", "medical", "legal"]
"""Class of the data that a session handles: personal, financial, medical or legal.

Compliance tags and retention follow from it (`sessionary.schemas.retention`). `none` declares that
the data is of no such class.
"""

ErrorClass = Literal["UNKNOWN", "retryable", "fatal"]
"""The kind of an error: whether the failed work may be tried again."""

SessionStateName = Literal["UNKNOWN", "Idle", "Active", "Paused", "Timeout", "Error", "Terminated", "Archived"]
"""A session's state; ARCHITECTURE.md draws the transitions between the seven."""

Phase = Literal[
    "UNKNOWN",
    "creating",
    "validating",
    "connecting",
    "processing",
    "updating",
    "persisting",
    "waiting",
    "cleaning",
    "released",
    "logging",
    "recovery",
    "cleanup",
    "releasing",
    "clearing",
]
"""The present activity of a session within its state."""

PauseKind = Literal["UNKNOWN", "manual", "migration", "review"]
"""The reason for which a session is held."""

StartFailureReason = Literal["UNKNOWN", "invalid_config", "connection_failed", "init_timeout"]
"""The reason for which a session never became Active."""

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
"""The reason for which a session ended."""

ClockName = Literal[
    "UNKNOWN", "initialisation", "inactivity", "idle", "max_duration", "grace", "hold", "recovery", "archive"
]
"""The clocks that can fire on a session."""

RunMode = Literal["UNKNOWN", "attached", "detached"]
"""The tie of a run to its session: attached runs end with the session, detached ones do not."""

RunStateName = Literal["UNKNOWN", "queued", "started", "running", "paused", "completed", "failed", "cancelled"]
"""A run's state; docs/transitions.md has the transitions."""

CheckpointKind = Literal["UNKNOWN", "plan_made", "sources_fetched", "tool_calls_done", "draft_made", "published"]
"""The point that a run has reached at a checkpoint."""

ArtifactStateName = Literal["UNKNOWN", "open", "complete", "soft_deleted", "purged"]
"""An artifact's state; docs/transitions.md has the transitions."""

StepStateName = Literal["UNKNOWN", "running", "succeeded", "failed", "skipped"]
"""A step's state; docs/transitions.md has the transitions."""

ToolCallStateName = Literal["UNKNOWN", "running", "succeeded", "failed", "unknown"]
"""A tool call's state; docs/transitions.md has the transitions."""

QuotaName = Literal["UNKNOWN", "concurrent_runs", "live_sessions"]
"""The kind of a tenant's quota: its runs or its sessions."""

QuotaStep = Literal["UNKNOWN", "requested", "taken", "released", "used"]
"""A change of a claim to a tenant's quota, as its session reports it; or a use of tokens."""

QuotaClaimState = Literal["UNKNOWN", "waiting", "granted", "taken", "rejected", "over_tokens"]
"""The state of a claim to a tenant's quota.

`over_tokens`: it was rejected because of the tenant's tokens.
"""

ToolOutcome = Literal["UNKNOWN", "succeeded", "failed"]
"""The resolved outcome of an unknown tool call."""

MigrationStep = Literal["UNKNOWN", "offered", "prepared", "completed", "aborted"]
"""The last step that a session's migration to another service has reached."""

AgentRole = Literal["UNKNOWN", "researcher", "analyzer", "writer", "other"]
"""The role of an agent, if it is one of the known ones, which decide its view."""

SnapshotEncoding = Literal["UNKNOWN", "full", "delta"]
"""The form in which a snapshot's state is stored."""

Compression = Literal["UNKNOWN", "none", "gzip", "zstd"]
"""The compression of a snapshot's bytes."""

AuditKind = Literal[
    "UNKNOWN",
    "transition",
    "rejection",
    "gap",
    "release",
    "context_limit",
    "limits_override",
    "decision",
    "gap_filled",
    "take_over",
    "run",
    "tool_call",
    "step",
    "access",
    "migration",
    "quota",
    "repeat",
    "state_hash",
    "transaction",
    "rollback",
]
"""The kind of fact that an audit record reports."""

RejectionReason = Literal[
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
    "not_member",
    "broken_chain",
    "hash_mismatch",
    "skipped",
    "internal_error",
    "producer_conflict",
    "owner_alive",
    "too_old",
    "unknown_run",
    "too_many_runs",
    "resume_expired",
    "unknown_call",
    "call_in_progress",
    "call_succeeded",
    "call_unresolved",
    "unknown_artifact",
    "too_many_children",
    "quota_exceeded",
    "unknown_migration",
    "migration_open",
    "migration_moved",
    "operator_only",
    "question_open",
    "no_question",
    "too_many_agents",
    "unknown_agent",
    "task_done",
    "bad_signature",
    "task_taken_over",
    "too_many_transactions",
    "unknown_transaction",
    "unknown_snapshot",
    "snapshot_exists",
]
"""The reason of a rejection; the only list of reasons."""


def known_role(role: str) -> AgentRole:
    """Return an agent's role as one of the known ones, or `other`."""
    return cast(AgentRole, role) if role in get_args(AgentRole)[1:] else "other"
