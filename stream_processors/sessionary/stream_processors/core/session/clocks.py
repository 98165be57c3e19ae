"""The clocks of a session: when each of them is due, derived from the session's state.

Nothing about a clock is stored. A clock is asked again after every change; all times are ms of log time.
"""

from collections.abc import Callable
from typing import NamedTuple

from sessionary.schemas.records import SessionState
from sessionary.schemas.types import ClockName
from sessionary.stream_processors.core.session.limits import budget_ms


class Due(NamedTuple):
    """When a clock fires, and the limit that it measures; both in ms."""

    due_ms: int
    limit_ms: int


class SessionClock(NamedTuple):
    """A clock, and what the audit trail says once it has fired; `{limit}` in `reason` is the limit."""

    name: ClockName
    due: Callable[[SessionState], Due | None]
    reason_code: str
    reason: str


def _initialisation_due(state: SessionState) -> Due:
    return Due(state.created_at + state.limits.init_ms, state.limits.init_ms)


def _inactivity_due(state: SessionState) -> Due:
    limit_ms = budget_ms(state.limits)
    return Due(state.last_event_at + limit_ms, limit_ms)


def _idle_due(state: SessionState) -> Due:
    return Due(state.last_work_at + state.limits.idle_ms, state.limits.idle_ms)


def _max_duration_due(state: SessionState) -> Due | None:
    return None if state.max_due_at is None else Due(state.max_due_at, state.limits.max_duration_ms)


def _grace_due(state: SessionState) -> Due:
    return Due(state.entered_at + state.limits.grace_ms, state.limits.grace_ms)


def _hold_due(state: SessionState) -> Due:
    return Due(state.entered_at + state.limits.hold_ms, state.limits.hold_ms)


def _recovery_due(state: SessionState) -> Due:
    return Due(state.entered_at + state.limits.recovery_ms, state.limits.recovery_ms)


def _archive_due(state: SessionState) -> Due:
    limits = state.limits
    if state.released_at is None:
        return Due(state.entered_at + limits.release_limit_ms, limits.release_limit_ms)
    # If resources were released in Timeout already, the delay counts from the session's end.
    since = max(state.released_at, state.entered_at)
    return Due(since + limits.archive_delay_ms, limits.archive_delay_ms)


INITIALISATION = SessionClock(
    "initialisation", _initialisation_due, "init_timeout", "Session not started after {limit}"
)
INACTIVITY = SessionClock("inactivity", _inactivity_due, "inactive", "Agent timeout after {limit}: nothing was heard")
IDLE = SessionClock("idle", _idle_due, "idle", "Agent timeout after {limit} without work")
MAX_DURATION = SessionClock(
    "max_duration", _max_duration_due, "max_duration", "Agent timeout after {limit}: the maximum duration is over"
)
GRACE = SessionClock("grace", _grace_due, "timeout_cleanup", "Not resumed within {limit} after its timeout")
HOLD = SessionClock("hold", _hold_due, "timeout_cleanup", "Not resumed within {limit} of hold")
RECOVERY = SessionClock("recovery", _recovery_due, "recovery_failed", "Not recovered within {limit}")
ARCHIVE = SessionClock("archive", _archive_due, "archived", "Archived {limit} after its end")


def format_seconds(limit_ms: int) -> str:
    """Return a limit as people read it: 60000 becomes `60s`."""
    return f"{limit_ms / 1000:g}s"


__all__ = [
    "ARCHIVE",
    "GRACE",
    "HOLD",
    "IDLE",
    "INACTIVITY",
    "INITIALISATION",
    "MAX_DURATION",
    "RECOVERY",
    "Due",
    "SessionClock",
    "format_seconds",
]
