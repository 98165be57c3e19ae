"""The session machine: `decide(state, event) -> fact`, `evolve(state, fact) -> state`, `deadline(state) -> instant`.

    session_created ─▶ Idle ─▶ Active ◀──▶ Paused
                        │       │ ▲  ◀──▶ Error
                        │       ▼ │         │
                        │     Timeout       │
                        ▼       ▼           ▼
                        └──▶ Terminated ◀───┘  ─▶ Archived

The table (`table.py`) says which pairs of state and event exist; this module holds their guards and effects. All of it
is pure: `now_ms` is the partition's clock, handed in. A refused event yields a `Refused` and leaves the state alone.
Timers are derived from the state, never stored beside it: `deadline` is asked again after every change.

Source of the rules: the table's rows T01 to T14; every limit is the session's own.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from sessionary.schemas.events import (
    SessionErrored,
    SessionPaused,
    SessionResumed,
    SessionTerminated,
    SnapshotCreated,
    StateUpdated,
)
from sessionary.schemas.limits import inactivity_budget_ms
from sessionary.schemas.records import SessionState
from sessionary.schemas.topics import VALUE_BYTES_MAX
from sessionary.schemas.types import ClockName, ErrorClass, Phase, RefusalReason, SessionStateName, Snapshot
from sessionary.stream_processors.core.fast_replace import replacer
from sessionary.stream_processors.core.session.transitions import (
    ACCEPTED,
    BY_ID,
    PHASES,
    TRANSITIONS,
    Transition,
)

RECOVERY_ATTEMPTS_MAX = 5
STATE_BYTES_MAX = VALUE_BYTES_MAX


class Refused(NamedTuple):
    """Why an event does not apply."""

    reason: RefusalReason
    detail: str


class Transitioned(NamedTuple):
    """The state changed; `snapshot` and `error_class` where the event brought one."""

    transition: Transition
    at_ms: int
    reason_code: str
    reason: str
    due_ms: int | None = None
    snapshot: Snapshot | None = None
    error_class: ErrorClass | None = None


class PhaseMoved(NamedTuple):
    """Only the phase changed."""

    phase: Phase
    at_ms: int


class ContentUpdated(NamedTuple):
    """New content, one version on."""

    version: int
    state_json: str
    at_ms: int


class SnapshotTaken(NamedTuple):
    """The chain has a new head."""

    snapshot: Snapshot
    at_ms: int


class Worked(NamedTuple):
    """Work was done: the activity clocks move."""

    at_ms: int


class Beat(NamedTuple):
    """A sign of life: the inactivity clock moves, in Active only."""

    at_ms: int


class Released(NamedTuple):
    """A clean-up was confirmed."""

    cleanup_id: str
    at_ms: int


_worked = replacer(SessionState, "last_event_at", "last_work_at")
Fact = Transitioned | PhaseMoved | ContentUpdated | SnapshotTaken | Worked | Beat | Released
Rule = Callable[[SessionState, Any, int], Fact | Refused]


class Deadline(NamedTuple):
    """When a session's earliest clock fires (ms of log time), which one, and its limit in ms."""

    due_ms: int
    clock: ClockName
    limit_ms: int


def decide(state: SessionState, event_type: str, payload: object, now_ms: int) -> Fact | Refused:
    """Judge an event of the right epoch and owner against the table and its guards."""
    rule = _RULES.get((state.state, event_type))
    if rule is not None:
        return rule(state, payload, now_ms)
    if state.state == "Timeout" and ("Active", event_type) in _RULES:
        return Refused("late", f"{event_type} came after the session timed out; resume it first")
    return Refused("illegal_transition", f"{event_type} is not possible in {state.state}")


def _phase(state: SessionState, payload: Any, now_ms: int) -> Fact | Refused:
    if (state.phase, payload.phase) in PHASES[state.state]:
        return PhaseMoved(payload.phase, now_ms)
    return Refused("phase_order", f"{payload.phase} does not follow {state.phase} in {state.state}")


def _start(state: SessionState, payload: object, now_ms: int) -> Fact | Refused:
    if state.phase != "connecting":
        return Refused("phase_order", f"a session starts from phase connecting, not {state.phase}")
    return Transitioned(BY_ID["T02"], now_ms, "started", "started")


def _fail_start(state: SessionState, payload: Any, now_ms: int) -> Fact | Refused:
    return _ended(BY_ID["T03"], payload.reason, payload.message, now_ms, None)


def _pause(state: SessionState, payload: SessionPaused, now_ms: int) -> Fact | Refused:
    if payload.snapshot is None:
        return Refused("missing_snapshot", "a pause carries a snapshot")
    reason = payload.reason or payload.kind
    return Transitioned(BY_ID["T04"], now_ms, payload.kind, reason, snapshot=payload.snapshot)


def _resume(state: SessionState, payload: SessionResumed, now_ms: int) -> Fact | Refused:
    head = state.snapshot.snapshot_id
    if payload.snapshot_id not in (None, head):
        return Refused("version_conflict", f"snapshot {payload.snapshot_id} is not the head of the chain, {head}")
    if state.state == "Paused":
        return Transitioned(BY_ID["T05"], now_ms, "resumed", "resumed")
    if state.max_due_at is not None and now_ms >= state.max_due_at:
        limit = seconds(state.limits.max_duration_ms)
        return Refused("max_duration_exceeded", f"the session's maximum duration of {limit} is over")
    return Transitioned(BY_ID["T07"], now_ms, "resumed", "resumed within its grace period")


def _err(state: SessionState, payload: SessionErrored, now_ms: int) -> Fact | Refused:
    error = payload.error
    if error.error_class == "UNKNOWN":
        return Refused("missing_error_class", "an error is retryable or fatal")
    reason = f"{error.code}: {error.message}"
    return Transitioned(BY_ID["T10"], now_ms, error.code, reason, error_class=error.error_class)


def _recover(state: SessionState, payload: object, now_ms: int) -> Fact | Refused:
    if state.phase != "recovery":
        return Refused("phase_order", f"a session recovers from phase recovery, not {state.phase}")
    if state.error_class != "retryable":
        return Refused("not_retryable", f"the error is {state.error_class}")
    if state.recovery_attempts >= RECOVERY_ATTEMPTS_MAX:
        return Refused("retries_exhausted", f"{state.recovery_attempts} recoveries are the most")
    return Transitioned(BY_ID["T11"], now_ms, "recovered", f"recovered, attempt {state.recovery_attempts + 1}")


def _terminate(transition: Transition) -> Rule:
    def rule(state: SessionState, payload: SessionTerminated, now_ms: int) -> Fact | Refused:
        if payload.reason == "completed" and state.phase in ("updating", "persisting"):
            return Refused("phase_order", f"a session does not complete while {state.phase}")
        return _ended(transition, payload.reason, payload.message, now_ms, payload.snapshot)

    return rule


def _ended(
    transition: Transition, reason: str, message: str | None, now_ms: int, snapshot: Snapshot | None
) -> Fact | Refused:
    if reason not in transition.reasons:
        return Refused(
            "invalid_reason",
            f"{reason} does not end a session in {transition.source}; {', '.join(transition.reasons)} do",
        )
    return Transitioned(transition, now_ms, reason, message or reason, snapshot=snapshot)


def _update(state: SessionState, payload: StateUpdated, now_ms: int) -> Fact | Refused:
    if payload.base_version != state.version or payload.new_version != state.version + 1:
        return Refused(
            "version_conflict",
            f"{payload.base_version} to {payload.new_version}, but the session is at version {state.version}",
        )
    if len(payload.state_json.encode()) > STATE_BYTES_MAX:
        return Refused("state_too_large", f"a state above {STATE_BYTES_MAX} bytes goes by reference")
    return ContentUpdated(payload.new_version, payload.state_json, now_ms)


def _snapshot(state: SessionState, payload: SnapshotCreated, now_ms: int) -> Fact | Refused:
    return SnapshotTaken(payload.snapshot, now_ms)


def _work(state: SessionState, payload: object, now_ms: int) -> Fact | Refused:
    return Worked(now_ms)


def _beat(state: SessionState, payload: object, now_ms: int) -> Fact | Refused:
    return Beat(now_ms)


def _release(state: SessionState, payload: Any, now_ms: int) -> Fact | Refused:
    for cleanup in state.cleanups:
        if cleanup.cleanup_id == payload.cleanup_id:
            if cleanup.released:
                return Refused("already_released", f"clean-up {payload.cleanup_id} was confirmed before")
            return Released(payload.cleanup_id, now_ms)
    return Refused("unknown_cleanup", f"nobody asked for clean-up {payload.cleanup_id}")


_ACCEPTING: dict[str, Rule] = {
    "session_phase_changed": _phase,
    "state_updated": _update,
    "heartbeat": _beat,
    "resources_released": _release,
    "snapshot_created": _snapshot,
}
_MOVING: dict[str, Rule] = {
    "T02": _start,
    "T03": _fail_start,
    "T04": _pause,
    "T05": _resume,
    "T07": _resume,
    "T10": _err,
    "T11": _recover,
    **{name: _terminate(BY_ID[name]) for name in ("T09", "T12", "T13")},
}
_RULES: dict[tuple[SessionStateName, str], Rule] = {
    **{(state, name): _ACCEPTING.get(name, _work) for state, names in ACCEPTED.items() for name in names},
    **{
        (row.source, row.event_type): _MOVING[row.id]
        for row in TRANSITIONS
        if row.source is not None and row.by != "processor"
    },
}


def evolve(state: SessionState, fact: Fact) -> SessionState:
    """Apply a fact; never refuses."""
    match fact:
        case Worked(at_ms):
            return _worked(state, at_ms, at_ms)
        case Beat(at_ms):
            return state._replace(last_event_at=at_ms) if state.state == "Active" else state
        case Transitioned():
            return _moved(state, fact)
        case PhaseMoved(phase, at_ms):
            return state._replace(phase=phase, last_event_at=at_ms, last_work_at=at_ms)
        case ContentUpdated(version, state_json, at_ms):
            return state._replace(
                version=version, state_json=state_json, phase="processing", last_event_at=at_ms, last_work_at=at_ms
            )
        case SnapshotTaken(snapshot, at_ms):
            return state._replace(snapshot=snapshot, last_event_at=at_ms, last_work_at=at_ms)
        case Released(cleanup_id, at_ms):
            return _released(state, cleanup_id, at_ms)


def _moved(state: SessionState, fact: Transitioned) -> SessionState:
    row, now_ms = fact.transition, fact.at_ms
    moved = state._replace(
        state=row.target,
        phase=row.phase,
        entered_at=now_ms,
        last_event_at=now_ms,
        last_work_at=now_ms,
        reason_code=fact.reason_code,
        snapshot=fact.snapshot or state.snapshot,
        error_class=fact.error_class or state.error_class,
    )
    match row.id:
        case "T02":
            return moved._replace(max_due_at=now_ms + state.limits.max_duration_ms)
        case "T04":
            return moved._replace(max_due_at=max(0, (state.max_due_at or now_ms) - now_ms))
        case "T05":
            return moved._replace(max_due_at=now_ms + (state.max_due_at or 0), epoch=state.epoch + 1)
        case "T07":
            return moved._replace(epoch=state.epoch + 1, released_at=None)
        case "T11":
            return moved._replace(epoch=state.epoch + 1, recovery_attempts=state.recovery_attempts + 1)
    return moved


def _released(state: SessionState, cleanup_id: str, now_ms: int) -> SessionState:
    cleanups = tuple(
        cleanup._replace(released=True) if cleanup.cleanup_id == cleanup_id else cleanup for cleanup in state.cleanups
    )
    after = state._replace(cleanups=cleanups, last_event_at=now_ms, last_work_at=now_ms)
    if state.state == "Timeout":
        return after._replace(phase="released", released_at=state.released_at or now_ms)
    if state.state == "Terminated":
        return after._replace(released_at=state.released_at or now_ms)
    return after


def deadline(state: SessionState) -> Deadline:
    """Return the earliest deadline of a session; every state has one. Ties: inactivity, idle, maximum duration."""
    limits = state.limits
    match state.state:
        case "Active":
            budget = inactivity_budget_ms(limits)
            due, clock, limit = state.last_event_at + budget, "inactivity", budget
            if (idle := state.last_work_at + limits.idle_ms) < due:
                due, clock, limit = idle, "idle", limits.idle_ms
            if state.max_due_at is not None and state.max_due_at < due:
                due, clock, limit = state.max_due_at, "max_duration", limits.max_duration_ms
            return Deadline(due, clock, limit)  # type: ignore[arg-type]
        case "Idle":
            return Deadline(state.created_at + limits.init_ms, "initialisation", limits.init_ms)
        case "Paused":
            return Deadline(state.entered_at + limits.hold_ms, "hold", limits.hold_ms)
        case "Timeout":
            return Deadline(state.entered_at + limits.grace_ms, "grace", limits.grace_ms)
        case "Error":
            return Deadline(state.entered_at + limits.recovery_ms, "recovery", limits.recovery_ms)
        case "Terminated" if state.released_at is not None:
            # What was released in Timeout already is archived a while after its end, not before it.
            since = max(state.released_at, state.entered_at)
            return Deadline(since + limits.archive_delay_ms, "archive", limits.archive_delay_ms)
    return Deadline(state.entered_at + limits.release_limit_ms, "archive", limits.release_limit_ms)


_FIRED: dict[ClockName, tuple[str, str, str]] = {
    "initialisation": ("T03", "init_timeout", "Session not started after {limit}"),
    "inactivity": ("T06", "inactive", "Agent timeout after {limit}: nothing was heard"),
    "idle": ("T06", "idle", "Agent timeout after {limit} without work"),
    "max_duration": ("T06", "max_duration", "Agent timeout after {limit}: the maximum duration is over"),
    "grace": ("T08", "timeout_cleanup", "Not resumed within {limit} after its timeout"),
    "hold": ("T09", "timeout_cleanup", "Not resumed within {limit} of hold"),
    "recovery": ("T12", "recovery_failed", "Not recovered within {limit}"),
    "archive": ("T14", "archived", "Archived {limit} after its end"),
}


def fire(due: Deadline, now_ms: int) -> Transitioned:
    """Return the transition that a passed deadline makes; the reason names the limit."""
    transition_id, code, text = _FIRED[due.clock]
    reason = text.format(limit=seconds(due.limit_ms))
    return Transitioned(BY_ID[transition_id], now_ms, code, reason, due_ms=due.due_ms)


def seconds(limit_ms: int) -> str:
    """Return a limit as people read it: 60000 → `60s`."""
    return f"{limit_ms / 1000:g}s"


__all__ = [
    "RECOVERY_ATTEMPTS_MAX",
    "STATE_BYTES_MAX",
    "TRANSITIONS",
    "Beat",
    "ContentUpdated",
    "Deadline",
    "Fact",
    "PhaseMoved",
    "Refused",
    "Released",
    "SnapshotTaken",
    "Transitioned",
    "Worked",
    "deadline",
    "decide",
    "evolve",
    "fire",
    "seconds",
]
