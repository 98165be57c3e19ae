"""Session family: lifecycle, activity, state and clean-up (`avro/events/session_*.avsc` and kin)."""

from collections.abc import Sequence
from typing import NamedTuple

from sessionary.schemas.types import (
    CleanupAction,
    ClockName,
    ErrorInfo,
    Limits,
    PauseKind,
    Phase,
    Snapshot,
    StartFailureReason,
    TerminationReason,
)


class SessionCreated(NamedTuple):
    """T01: registers a session; row, epoch 1, initial snapshot."""

    limits: Limits
    snapshot: Snapshot  # The initial state
    parent_session_id: str | None = None
    restored_from_snapshot_id: str | None = None


class SessionPhaseChanged(NamedTuple):
    """S01: moves the phase only; the order is checked."""

    phase: Phase


class SessionStarted(NamedTuple):
    """T02: the connection is made."""


class SessionStartFailed(NamedTuple):
    """T03: the session never became Active."""

    reason: StartFailureReason
    message: str | None = None


class SessionPaused(NamedTuple):
    """T04: held; needs a snapshot."""

    kind: PauseKind
    reason: str | None = None
    snapshot: Snapshot | None = None


class SessionResumed(NamedTuple):
    """T05, T07: asks to be Active again; raises the epoch."""

    snapshot_id: str | None = None  # Must be the head of the chain where given
    resume_plan: str | None = None


class SessionTimedOut(NamedTuple):
    """T06, made by a processor."""

    clock: ClockName
    limit_ms: int
    due_at: int  # µs since the epoch


class SessionErrored(NamedTuple):
    """T10: an exception is under treatment."""

    error: ErrorInfo


class SessionRecovered(NamedTuple):
    """T11: back to Active."""

    resume_plan: str | None = None


class SessionTerminated(NamedTuple):
    """T08, T09, T12, T13: the end."""

    reason: TerminationReason
    message: str | None = None
    snapshot: Snapshot | None = None


class SessionArchived(NamedTuple):
    """T14, made by a processor."""

    retain_until: int  # µs since the epoch


class SessionActivity(NamedTuple):
    """Work was done; moves the activity clocks."""

    kind: str
    text: str | None = None


class Heartbeat(NamedTuple):
    """Sign of life: no sequence number, never spooled."""

    last_seq: int  # The last sequence number sent


class ProgressReported(NamedTuple):
    """Progress of the work at hand."""

    progress: float
    total: float | None = None
    message: str | None = None


class StateUpdated(NamedTuple):
    """S03: new content at version base + 1."""

    base_version: int
    new_version: int
    state_json: str


class SessionRolledBack(NamedTuple):
    """S05: new version with the content of an older snapshot."""

    to_snapshot_id: str
    base_version: int
    new_version: int


class SessionMigrationAccepted(NamedTuple):
    """S06: the target service accepts."""

    target_service: str


class SessionMigrationCompleted(NamedTuple):
    """S06: the owner changes."""

    from_service: str
    to_service: str


class SessionMigrationAborted(NamedTuple):
    """S06: the owner stays."""

    reason: str | None = None


class ResourcesReleased(NamedTuple):
    """S07: confirms a clean-up; exempt from the epoch."""

    cleanup_id: str
    actions: Sequence[CleanupAction]
    bytes_released: int | None
    host_lost: bool  # The host vanished; counted apart
