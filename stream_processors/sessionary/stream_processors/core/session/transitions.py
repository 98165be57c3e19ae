"""The session machine as data: what may happen in which state. Pictures and rules are drawn from here.

Seven states; phases are attributes beside them. A pair (state, event type) that stands neither in `TRANSITIONS` nor in
`ACCEPTED` is refused. Transitions marked `processor` are fired by a clock; a client that sends their event is refused.
"""

from typing import Literal, NamedTuple

from sessionary.schemas.events import PAYLOADS
from sessionary.schemas.types import Phase, SessionStateName

By = Literal["client", "processor", "either"]


class Transition(NamedTuple):
    """A row of the table. `reasons` are those that a client may give; empty where the event carries none."""

    id: str
    source: SessionStateName | None
    event_type: str
    target: SessionStateName
    phase: Phase | None
    by: By
    reasons: tuple[str, ...] = ()


TRANSITIONS: tuple[Transition, ...] = (
    Transition("T01", None, "session_created", "Idle", "creating", "client"),
    Transition("T02", "Idle", "session_started", "Active", "processing", "client"),
    Transition(
        "T03",
        "Idle",
        "session_start_failed",
        "Terminated",
        "releasing",
        "either",
        ("invalid_config", "connection_failed"),
    ),
    Transition("T04", "Active", "session_paused", "Paused", None, "client"),
    Transition("T05", "Paused", "session_resumed", "Active", "processing", "client"),
    Transition("T06", "Active", "session_timed_out", "Timeout", "cleaning", "processor"),
    Transition("T07", "Timeout", "session_resumed", "Active", "processing", "client"),
    Transition("T08", "Timeout", "session_terminated", "Terminated", "releasing", "processor"),
    Transition("T09", "Paused", "session_terminated", "Terminated", "releasing", "either", ("cancelled",)),
    Transition("T10", "Active", "session_errored", "Error", "logging", "client"),
    Transition("T11", "Error", "session_recovered", "Active", "processing", "client"),
    Transition(
        "T12",
        "Error",
        "session_terminated",
        "Terminated",
        "releasing",
        "either",
        ("forced", "unrecoverable", "recovery_failed"),
    ),
    Transition(
        "T13",
        "Active",
        "session_terminated",
        "Terminated",
        "releasing",
        "client",
        ("closed", "completed", "cancelled", "abnormal_termination"),
    ),
    Transition("T14", "Terminated", "session_archived", "Archived", None, "processor"),
)
BY_ID: dict[str, Transition] = {transition.id: transition for transition in TRANSITIONS}

# Sent by a processor only, whatever they carry.
PROCESSOR_ONLY = frozenset({"session_timed_out", "session_archived", "tool_call_unknown"})
# A client may send the event, but not with these reasons: they are a clock's.
PROCESSOR_REASONS = {"session_start_failed": "init_timeout", "session_terminated": "timeout_cleanup"}
# What only the owning service may send.
OWNER_ONLY = frozenset(
    name for name in PAYLOADS if name.startswith("session_") and name not in ("session_activity", "session_created")
)
CONTENT = frozenset({"snapshot_created", "checkpoint_saved"})
# What ends something that was begun: accepted although the session is held.
COMPLETIONS = frozenset({"tool_call_succeeded", "tool_call_failed", "tool_call_resolved", "usage_recorded"})
WORK = (
    frozenset(name for name in PAYLOADS if not name.startswith("session_"))
    - {"heartbeat", "state_updated", "resources_released"}
    - CONTENT
    - PROCESSOR_ONLY
) | {"session_activity"}

# Accepted without a change of state.
ACCEPTED: dict[SessionStateName, frozenset[str]] = {
    "Idle": frozenset({"session_phase_changed", "heartbeat"}),
    "Active": WORK | CONTENT | {"session_phase_changed", "state_updated", "heartbeat", "resources_released"},
    "Paused": CONTENT | COMPLETIONS | {"heartbeat", "resources_released"},
    "Timeout": CONTENT | COMPLETIONS | {"heartbeat", "resources_released"},
    "Error": CONTENT | COMPLETIONS | {"session_phase_changed", "heartbeat", "resources_released"},
    "Terminated": frozenset({"session_phase_changed", "resources_released"}),
    "Archived": frozenset(),
}

# From which phase to which, by state.
PHASES: dict[SessionStateName, frozenset[tuple[Phase, Phase]]] = {
    "Idle": frozenset({("creating", "validating"), ("validating", "connecting")}),
    "Active": frozenset({("processing", "updating"), ("updating", "persisting"), ("persisting", "processing")}),
    "Error": frozenset({("logging", "recovery"), ("logging", "cleanup"), ("recovery", "cleanup")}),
    "Terminated": frozenset({("releasing", "clearing")}),
}

_MEMORY_FIRST = ("memory_cleanup", "close_connection", "release_context", "mark_closed")
_EXCEPTION_FIRST = ("exception_cleanup", "close_connection", "release_context", "mark_closed")
_PLAIN_END = ("close_connection", "release_resources", "clear_context")


def cleanup_actions(transition_id: str, reason_code: str) -> tuple[str, ...]:
    """Return what the owning service is asked to do on a transition, in order; nothing where the session goes on."""
    if transition_id == "T06" or reason_code == "timeout_cleanup":
        return _MEMORY_FIRST
    if transition_id == "T12" or reason_code == "abnormal_termination":
        return _EXCEPTION_FIRST
    return _PLAIN_END if transition_id in ("T03", "T09", "T13") else ()


__all__ = [
    "ACCEPTED",
    "BY_ID",
    "COMPLETIONS",
    "CONTENT",
    "OWNER_ONLY",
    "PHASES",
    "PROCESSOR_ONLY",
    "PROCESSOR_REASONS",
    "TRANSITIONS",
    "WORK",
    "By",
    "Transition",
    "cleanup_actions",
]
