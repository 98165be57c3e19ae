"""Events of a session: lifecycle, activity, state and clean-up."""

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
    """Registers a session: state Idle, epoch 1 (transition T01).

    Attributes:
        limits: Limits that differ from the defaults.
        snapshot: The initial state.
        parent_session_id: The parent session, if any.
        restored_from_snapshot_id: The snapshot that this session was restored from, if any.
    """

    limits: Limits
    snapshot: Snapshot
    parent_session_id: str | None = None
    restored_from_snapshot_id: str | None = None


class SessionPhaseChanged(NamedTuple):
    """Moves the phase within the state; phases have an order, which is checked."""

    phase: Phase


class SessionStarted(NamedTuple):
    """The connection is made: Idle to Active (transition T02)."""


class SessionStartFailed(NamedTuple):
    """The session never became Active: Idle to Terminated (transition T03)."""

    reason: StartFailureReason
    message: str | None = None


class SessionPaused(NamedTuple):
    """The session is held: Active to Paused (transition T04).

    Attributes:
        kind: Why it is held.
        reason: The same for people.
        snapshot: The state at this point; required, but of an operator's pause.
        question: What a person is asked, if the session waits for an answer.
        answer_ms: For so long it may be answered, in ms of log time; None: for as long as the limit
            `hold_ms`.
        as_operator: An operator asked for it, by the control API.
    """

    kind: PauseKind
    reason: str | None = None
    snapshot: Snapshot | None = None
    question: str | None = None
    answer_ms: int | None = None
    as_operator: bool = False


class SessionResumed(NamedTuple):
    """Asks to be Active again, from Paused (transition T05) or Timeout (T07).

    If it is applied, the processor raises the epoch.

    Attributes:
        snapshot_id: The snapshot that work continues from; if given, it must be the session's last.
        resume_plan: What the agent does next, for people.
        approved: The answer to the question that the session waits with; None: none is given.
        question_id: The question that is answered; if given, it must be the open one.
        message: What the operator says, for people.
        as_operator: An operator asked for it, by the control API.
    """

    snapshot_id: str | None = None
    resume_plan: str | None = None
    approved: bool | None = None
    question_id: str | None = None
    message: str | None = None
    as_operator: bool = False


class SessionTimedOut(NamedTuple):
    """A limit has passed: Active to Timeout (transition T06); only a processor makes it.

    Attributes:
        clock: The clock that fired.
        limit_ms: Its limit in ms.
        due_at: When it was due; µs since the epoch.
    """

    clock: ClockName
    limit_ms: int
    due_at: int


class SessionErrored(NamedTuple):
    """An error is being handled: Active to Error (transition T10)."""

    error: ErrorInfo


class SessionRecovered(NamedTuple):
    """The error is handled: Error to Active (transition T11).

    If it is applied, the processor raises the epoch.
    """

    resume_plan: str | None = None


class SessionTerminated(NamedTuple):
    """The session ends, from Timeout (transition T08), Paused (T09), Error (T12) or Active (T13).

    Attributes:
        reason: Why; which reasons are allowed depends on the state.
        message: The same for people.
        snapshot: The last state, if it is not sent yet.
        as_operator: An operator asked for it, by the control API.
    """

    reason: TerminationReason
    message: str | None = None
    snapshot: Snapshot | None = None
    as_operator: bool = False


class SessionArchived(NamedTuple):
    """The session is over: Terminated to Archived (transition T14); only a processor makes it.

    Attributes:
        retain_until: When its records may be deleted; µs since the epoch.
    """

    retain_until: int


class SessionTakenOver(NamedTuple):
    """The sender takes the session over from the process that holds it; the state stays.

    If it is applied, the processor raises the epoch, and the sender's service owns the session.

    Attributes:
        reason: Why, for people.
        as_operator: The control API sends it for an operator, whom the envelope's `actor` names.
    """

    reason: str | None = None
    as_operator: bool = False


class SessionActivity(NamedTuple):
    """Work was done; restarts the inactivity and idle clocks.

    Attributes:
        kind: What kind of work, in the agent's words.
        text: Details, for people.
    """

    kind: str
    text: str | None = None


class Heartbeat(NamedTuple):
    """Sign of life; restarts the inactivity clock. It has no sequence number and is never spooled.

    Attributes:
        last_seq: The last sequence number that the client used in this session.
        elapsed_s: How long the run that the envelope names has been at work, in seconds.
    """

    last_seq: int
    elapsed_s: float | None = None


class ProgressReported(NamedTuple):
    """Progress of the current work.

    Attributes:
        progress: How much is done, in the agent's unit.
        total: How much there is, in the same unit.
        message: The same for people.
    """

    progress: float
    total: float | None = None
    message: str | None = None


class StateUpdated(NamedTuple):
    """New content of the session, as version `base_version` + 1.

    Attributes:
        base_version: The version that the agent changed; refused if it is not the current one.
        new_version: `base_version` + 1.
        state_json: The whole state as JSON.
        updating_at: When the agent began to update the state; µs since the epoch. With it the event
            stands for its two changes of phase too.
        persisting_at: When the agent began to send the new state; µs since the epoch.
    """

    base_version: int
    new_version: int
    state_json: str
    updating_at: int | None = None
    persisting_at: int | None = None


class ResourcesReleased(NamedTuple):
    """Confirms a clean-up; the epoch is not checked.

    Attributes:
        cleanup_id: The id of the request.
        actions: Every requested step, and whether it was done.
        bytes_released: Memory that was freed, in bytes, if known.
        host_lost: The host is gone, and its resources with it; such clean-ups are counted apart.
    """

    cleanup_id: str
    actions: Sequence[CleanupAction]
    bytes_released: int | None
    host_lost: bool
