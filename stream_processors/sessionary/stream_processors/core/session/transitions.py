"""The session machine as data: one value for each transition, and what is accepted without one.

                session_created
                     │
                   Idle ──▶ Terminated (it never started)
                     │
                     ▼
        Paused ◀─▶ Active ◀─▶ Error
           │        │   ▲       │
           │        ▼   │       │
           │       Timeout      │
           ▼        ▼           ▼
           └──▶ Terminated ◀────┘
                    │
                    ▼
                 Archived

A transition says everything about itself: from which state and by which event, who may send the
event, with which reasons, under which guard, to which state and phase, with which effect, which
clocks fire it, and which clean-up it asks for. To add a transition, add a value to `TRANSITIONS`.

A pair of state and event type that is neither in `TRANSITIONS` nor in `ACCEPTED` is rejected,
unless the event is a migration's or a detached run's. The texts of objections and reasons are part
of the audit trail: a log folds to the same bytes only while they stay.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from sessionary.schemas.events import (
    PAYLOADS,
    SessionErrored,
    SessionPaused,
    SessionResumed,
    SessionStartFailed,
    SessionTerminated,
)
from sessionary.schemas.records import SessionState
from sessionary.schemas.types import ErrorClass, Phase, SessionStateName, Snapshot
from sessionary.stream_processors.core.clock import format_seconds
from sessionary.stream_processors.core.judge import Objection
from sessionary.stream_processors.core.model import COMPLETIONS, CONTENT, PROCESSOR_EVENTS, TRANSACTIONS, WORK
from sessionary.stream_processors.core.session import clocks
from sessionary.stream_processors.core.session.clocks import SessionClock
from sessionary.stream_processors.core.session.people import (
    object_to_answer,
    object_to_hold,
    object_to_pause,
    resume_reason,
)

By = Literal["client", "operator", "processor", "either"]
RECOVERY_ATTEMPTS_MAX = 5


class Grounds(NamedTuple):
    """The grounds of a transition: its reason, and the values that the event brought."""

    reason_code: str
    reason: str
    snapshot: Snapshot | None = None
    error_class: ErrorClass | None = None


Guard = Callable[[SessionState, Any, int], Grounds | Objection]  # session, payload, log time in ms
Effect = Callable[[SessionState, int], SessionState]  # session in its new state, log time in ms


class CleanupPlan(NamedTuple):
    """The requests to the owning service after a transition, in order; none by default."""

    actions: tuple[str, ...] = ()
    by_reason: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    once: bool = False  # do not ask if resources were released already

    def actions_for(self, reason_code: str, *, released: bool = False) -> tuple[str, ...]:
        """Return the actions to ask for."""
        return () if self.once and released else self.by_reason.get(reason_code, self.actions)


_MEMORY_FIRST = ("memory_cleanup", "close_connection", "release_context", "mark_closed")
_EXCEPTION_FIRST = ("exception_cleanup", "close_connection", "release_context", "mark_closed")
_PLAIN_END = ("close_connection", "release_resources", "clear_context")


def _keep_session(state: SessionState, now_ms: int) -> SessionState:
    return state


def _unguarded(state: SessionState, payload: object, now_ms: int) -> Objection:
    raise NotImplementedError("creation, and transitions by clocks only, are judged without a guard")


class Transition(NamedTuple):
    """One transition.

    `reasons` are those that a client may give; empty if its event carries none.
    """

    id: str
    source: SessionStateName | None
    event_type: str
    target: SessionStateName
    phase: Phase | None
    by: By
    reasons: tuple[str, ...] = ()
    guard: Guard = _unguarded
    effect: Effect = _keep_session
    clocks: tuple[SessionClock, ...] = ()
    cleanup: CleanupPlan = CleanupPlan()


def _start(state: SessionState, payload: object, now_ms: int) -> Grounds | Objection:
    if state.phase != "connecting":
        return Objection("phase_order", f"a session starts from phase connecting, not {state.phase}")
    if clocks.waits_for_quota(state):
        return Objection("quota_exceeded", "the session waits until its tenant's quota admits it")
    return Grounds("started", "started")


def _fail_start(state: SessionState, payload: SessionStartFailed, now_ms: int) -> Grounds | Objection:
    return Grounds(payload.reason, payload.message or payload.reason)


def _pause(state: SessionState, payload: SessionPaused, now_ms: int) -> Grounds | Objection:
    return object_to_pause(payload) or Grounds(payload.kind, payload.reason or payload.kind, snapshot=payload.snapshot)


def _hold_paused(state: SessionState, payload: SessionPaused, now_ms: int) -> Grounds | Objection:
    if not payload.as_operator:
        return Objection("illegal_transition", "session_paused is not possible in Paused")
    return _pause(state, payload, now_ms)


def _is_not_head(state: SessionState, payload: SessionResumed) -> Objection | None:
    head = state.snapshot.snapshot_id
    if payload.snapshot_id in (None, head):
        return None
    return Objection("version_conflict", f"snapshot {payload.snapshot_id} is not the head of the chain, {head}")


def _is_migrating(state: SessionState) -> Objection | None:
    migration = state.migration
    if migration is None or not migration.is_prepared:
        return None
    return Objection("migration_open", f"migration {migration.migration_id} to {migration.target_service} is prepared")


def _resume(state: SessionState, payload: SessionResumed, now_ms: int) -> Grounds | Objection:
    reason_code = resume_reason(payload)
    return (
        object_to_hold(state, payload)
        or _is_migrating(state)
        or _is_not_head(state, payload)
        or object_to_answer(state, payload)
        or Grounds(reason_code, payload.message or reason_code)
    )


def object_to_duration(state: SessionState, now_ms: int) -> Objection | None:
    """Object if the maximum duration of a session in Timeout is over: it cannot continue."""
    if state.max_due_at is None or now_ms < state.max_due_at:
        return None
    limit = format_seconds(state.limits.max_duration_ms)
    return Objection("max_duration_exceeded", f"the session's maximum duration of {limit} is over")


def _resume_in_grace(state: SessionState, payload: SessionResumed, now_ms: int) -> Grounds | Objection:
    return (
        _is_migrating(state)
        or _is_not_head(state, payload)
        or object_to_answer(state, payload)
        or object_to_duration(state, now_ms)
        or Grounds("resumed", payload.message or "resumed within its grace period")
    )


def _fail(state: SessionState, payload: SessionErrored, now_ms: int) -> Grounds | Objection:
    error = payload.error
    if error.error_class == "UNKNOWN":
        return Objection("missing_error_class", "an error is retryable or fatal")
    return Grounds(error.code, f"{error.code}: {error.message}", error_class=error.error_class)


def _recover(state: SessionState, payload: object, now_ms: int) -> Grounds | Objection:
    if state.phase != "recovery":
        return Objection("phase_order", f"a session recovers from phase recovery, not {state.phase}")
    if state.error_class != "retryable":
        return Objection("not_retryable", f"the error is {state.error_class}")
    if state.recovery_attempts >= RECOVERY_ATTEMPTS_MAX:
        return Objection("retries_exhausted", f"{state.recovery_attempts} recoveries are the most")
    return Grounds("recovered", f"recovered, attempt {state.recovery_attempts + 1}")


def _terminate(state: SessionState, payload: SessionTerminated, now_ms: int) -> Grounds | Objection:
    if payload.reason == "completed" and state.phase in ("updating", "persisting"):
        return Objection("phase_order", f"a session does not complete while {state.phase}")
    return Grounds(payload.reason, payload.message or payload.reason, snapshot=payload.snapshot)


def _begin_duration(state: SessionState, now_ms: int) -> SessionState:
    return state._replace(max_due_at=now_ms + state.limits.max_duration_ms)


def _resume_held(state: SessionState, now_ms: int) -> SessionState:
    return clocks.continue_duration(state, now_ms)._replace(epoch=state.epoch + 1)


def _revive(state: SessionState, now_ms: int) -> SessionState:
    return state._replace(epoch=state.epoch + 1, released_at=None)


def _count_recovery(state: SessionState, now_ms: int) -> SessionState:
    return state._replace(epoch=state.epoch + 1, recovery_attempts=state.recovery_attempts + 1)


TRANSITIONS: tuple[Transition, ...] = (
    Transition("T01", None, "session_created", "Idle", "creating", "client"),
    Transition(
        "T02", "Idle", "session_started", "Active", "processing", "client", guard=_start, effect=_begin_duration
    ),
    Transition(
        "T03",
        "Idle",
        "session_start_failed",
        "Terminated",
        "releasing",
        "either",
        ("invalid_config", "connection_failed"),
        guard=_fail_start,
        clocks=(clocks.INITIALISATION, clocks.QUOTA_WAIT, clocks.QUOTA_SILENCE),
        cleanup=CleanupPlan(_PLAIN_END),
    ),
    Transition("T04", "Active", "session_paused", "Paused", None, "client", guard=_pause, effect=clocks.stop_duration),
    # The state stays: an operator's pause locks a session that its agent, or a migration, paused.
    Transition("T04", "Paused", "session_paused", "Paused", None, "operator", guard=_hold_paused),
    Transition(
        "T05",
        "Paused",
        "session_resumed",
        "Active",
        "processing",
        "either",
        guard=_resume,
        effect=_resume_held,
        clocks=(clocks.ANSWER,),
    ),
    Transition(
        "T06",
        "Active",
        "session_timed_out",
        "Timeout",
        "cleaning",
        "processor",
        clocks=(clocks.INACTIVITY, clocks.IDLE, clocks.MAX_DURATION),
        cleanup=CleanupPlan(_MEMORY_FIRST),
    ),
    Transition(
        "T07", "Timeout", "session_resumed", "Active", "processing", "client", guard=_resume_in_grace, effect=_revive
    ),
    Transition(
        "T08",
        "Timeout",
        "session_terminated",
        "Terminated",
        "releasing",
        "processor",
        clocks=(clocks.GRACE,),
        cleanup=CleanupPlan(_MEMORY_FIRST, once=True),
    ),
    Transition(
        "T09",
        "Paused",
        "session_terminated",
        "Terminated",
        "releasing",
        "either",
        ("cancelled",),
        guard=_terminate,
        clocks=(clocks.HOLD,),
        cleanup=CleanupPlan(_PLAIN_END, {clocks.HOLD.reason_code: _MEMORY_FIRST}),
    ),
    Transition(
        "T10",
        "Active",
        "session_errored",
        "Error",
        "logging",
        "client",
        guard=_fail,
        # The reason is the agent's error code; two of the names ask for clean-up.
        cleanup=CleanupPlan(by_reason={"timeout_cleanup": _MEMORY_FIRST, "abnormal_termination": _EXCEPTION_FIRST}),
    ),
    Transition(
        "T11",
        "Error",
        "session_recovered",
        "Active",
        "processing",
        "client",
        guard=_recover,
        effect=_count_recovery,
    ),
    Transition(
        "T12",
        "Error",
        "session_terminated",
        "Terminated",
        "releasing",
        "either",
        ("forced", "unrecoverable", "recovery_failed"),
        guard=_terminate,
        clocks=(clocks.RECOVERY,),
        cleanup=CleanupPlan(_EXCEPTION_FIRST),
    ),
    Transition(
        "T13",
        "Active",
        "session_terminated",
        "Terminated",
        "releasing",
        "either",
        ("closed", "completed", "cancelled", "abnormal_termination"),
        guard=_terminate,
        clocks=(clocks.USER_IDLE,),
        cleanup=CleanupPlan(
            _PLAIN_END, {"abnormal_termination": _EXCEPTION_FIRST, clocks.USER_IDLE.reason_code: _MEMORY_FIRST}
        ),
    ),
    Transition("T14", "Terminated", "session_archived", "Archived", None, "processor", clocks=(clocks.ARCHIVE,)),
)

# Only the owning service, or an operator, may send these. The five others come from an agent before
# it is the owner's, from one that claims the session, or from the service that it moves to.
OWNER_ONLY = frozenset(name for name in PAYLOADS if name.startswith("session_")) - {
    "session_activity",
    "session_created",
    "session_taken_over",
    "session_migration_offered",
    "session_migration_loaded",
}
# These change the session's content. Only its members may send them: the owning service, and those
# of registered agents.
CONTENT_CHANGES = frozenset({"snapshot_created", "state_updated", "checkpoint_saved", *TRANSACTIONS})
# The owning service, or an operator, decides who is a member.
MEMBERSHIP = frozenset({"agent_registered"})

# Only an operator may send these.
OPERATOR_EVENTS = frozenset({"requests_repeated"})

# Possible until the session ends.
SIGNS_OF_LIFE = frozenset({"heartbeat", "session_taken_over"})

# Accepted without a change of state.
ACCEPTED: dict[SessionStateName, frozenset[str]] = {
    "Idle": SIGNS_OF_LIFE | OPERATOR_EVENTS | {"session_phase_changed"},
    "Active": WORK
    | CONTENT
    | SIGNS_OF_LIFE
    | OPERATOR_EVENTS
    | TRANSACTIONS
    | {"session_phase_changed", "state_updated", "session_rolled_back", "resources_released"},
    "Paused": CONTENT | COMPLETIONS | SIGNS_OF_LIFE | OPERATOR_EVENTS | {"session_phase_changed", "resources_released"},
    "Timeout": CONTENT | COMPLETIONS | SIGNS_OF_LIFE | OPERATOR_EVENTS | {"resources_released"},
    "Error": CONTENT | COMPLETIONS | SIGNS_OF_LIFE | OPERATOR_EVENTS | {"session_phase_changed", "resources_released"},
    "Terminated": OPERATOR_EVENTS | {"session_phase_changed", "resources_released"},
    "Archived": frozenset(),
}

# From which phase to which, by state. In Active a turn begins with `processing`, and ends with
# `waiting`, unless another process is in a turn (`accepted.take_turn`); its process may end it in a
# pause too, which may be others'.
PHASES: dict[SessionStateName, frozenset[tuple[Phase | None, Phase]]] = {
    "Idle": frozenset({("creating", "validating"), ("validating", "connecting")}),
    "Active": frozenset(
        {
            ("processing", "updating"),
            ("updating", "persisting"),
            ("persisting", "processing"),
            ("processing", "processing"),
            ("waiting", "processing"),
            ("processing", "waiting"),
            ("updating", "waiting"),
            ("persisting", "waiting"),
        }
    ),
    "Paused": frozenset({(None, "waiting")}),
    "Error": frozenset({("logging", "recovery"), ("logging", "cleanup"), ("recovery", "cleanup")}),
    "Terminated": frozenset({("releasing", "clearing")}),
}


def processor_only(transitions: Sequence[Transition]) -> frozenset[str]:
    """Return the event types that no client may send, whatever they carry."""
    by_clients = {row.event_type for row in transitions if row.by != "processor"}
    return PROCESSOR_EVENTS | {row.event_type for row in transitions} - by_clients


def clock_reasons(transitions: Sequence[Transition]) -> dict[str, frozenset[str]]:
    """Return, by event type, the reasons that only a clock may give."""
    found: dict[str, frozenset[str]] = {}
    for event_type in {row.event_type for row in transitions if row.clocks} - processor_only(transitions):
        alike = [row for row in transitions if row.event_type == event_type]
        fired = {clock.reason_code for row in alike for clock in row.clocks}
        found[event_type] = frozenset(fired.difference(*(row.reasons for row in alike)))
    return found


__all__ = [
    "ACCEPTED",
    "COMPLETIONS",
    "CONTENT",
    "CONTENT_CHANGES",
    "MEMBERSHIP",
    "OPERATOR_EVENTS",
    "OWNER_ONLY",
    "PHASES",
    "PROCESSOR_EVENTS",
    "RECOVERY_ATTEMPTS_MAX",
    "SIGNS_OF_LIFE",
    "TRANSACTIONS",
    "TRANSITIONS",
    "WORK",
    "By",
    "CleanupPlan",
    "Effect",
    "Grounds",
    "Guard",
    "Objection",
    "Transition",
    "clock_reasons",
    "object_to_duration",
    "processor_only",
]
