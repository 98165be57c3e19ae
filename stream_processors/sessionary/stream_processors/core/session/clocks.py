"""The clocks of a session: when each is due, derived from the session's state.

No clock is stored: its deadline is derived again after every change. Times are ms of log time.
"""

from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple

from sessionary.schemas.limits import SESSION_WAIT_MS, inactivity_budget_ms
from sessionary.schemas.records import SessionState
from sessionary.schemas.types import ClockName, ClockRepair, Migration, Phase
from sessionary.stream_processors.core.clock import NEVER_MS
from sessionary.stream_processors.core.run.changes import awaits_process
from sessionary.stream_processors.core.session.people import EXPIRED, is_answer_new

WAITING: Final[Phase] = "waiting"
"""The phase of a session between two turns: it waits for its user, and no process need be there.

A pause keeps the phase: the session still waits for its user afterwards.
"""


class SessionClock(NamedTuple):
    """A clock, and the text of its audit record (`{limit}` is the limit).

    A clock of activity is due one limit after the last activity.
    """

    # No event says that one of the literals fired.
    name: ClockName | Literal["answer", "quota_wait", "quota_silence", "user_idle"]
    due_ms: Callable[[SessionState], int | None]  # None: the clock does not run
    limit_ms: Callable[[SessionState], int]  # the limit that it measures
    reason_code: str
    reason: str
    of_activity: bool = False


def earliest_due(clocks: Sequence[SessionClock], state: SessionState, outage_end_ms: int) -> tuple[int, int]:
    """Return when the first of some clocks is due, and its place; of equal ones the first wins.

    At least one of them must run. No event could be heard before `outage_end_ms`, so the clocks of
    activity start then at the earliest; 0 means that there was no such time.
    """
    earliest_ms, first = 0, -1
    for place, clock in enumerate(clocks):
        due_ms = clock.due_ms(state)
        if due_ms is None:
            continue
        if outage_end_ms and clock.of_activity:
            due_ms = max(due_ms, outage_end_ms + clock.limit_ms(state))
        if first < 0 or due_ms < earliest_ms:
            earliest_ms, first = due_ms, place
    assert first >= 0
    return earliest_ms, first


def waits_for_quota(state: SessionState) -> bool:
    """Return whether a session waits until its tenant's quota admits it."""
    return state.quota is not None and not state.quota.granted


def _initialisation_due(state: SessionState) -> int | None:
    # The time that it waited for its tenant's quota does not count.
    return None if waits_for_quota(state) else state.entered_at + state.limits.init_ms


def _quota_wait_due(state: SessionState) -> int | None:
    return state.created_at + SESSION_WAIT_MS if waits_for_quota(state) else None


def _quota_silence_due(state: SessionState) -> int | None:
    return state.owner_heard_at + inactivity_budget_ms(state.limits) if waits_for_quota(state) else None


def _inactivity_limit(state: SessionState) -> int:
    budget_ms = inactivity_budget_ms(state.limits)
    return max(budget_ms, state.limits.hold_ms) if awaits_process(state) else budget_ms


def _inactivity_due(state: SessionState) -> int | None:
    return None if state.phase == WAITING else state.last_event_at + _inactivity_limit(state)


def _idle_limit(state: SessionState) -> int:
    idle_ms = state.limits.idle_ms
    return idle_ms + state.limits.hold_ms if is_answer_new(state) else idle_ms


def _idle_due(state: SessionState) -> int | None:
    return None if state.phase == WAITING else state.last_work_at + _idle_limit(state)


def _max_duration_due(state: SessionState) -> int | None:
    return None if state.phase == WAITING else state.max_due_at


def _user_idle_due(state: SessionState) -> int | None:
    return state.last_work_at + state.limits.user_idle_ms if state.phase == WAITING else None


def _grace_due(state: SessionState) -> int:
    return state.entered_at + state.limits.grace_ms


def _hold_due(state: SessionState) -> int | None:
    if state.hold is not None:
        return state.entered_at + state.hold.hold_ms
    if state.migration is not None and state.migration.holds_session:
        return NEVER_MS  # the agent did not pause: the migration's deadline resumes the session
    return None if state.question is not None else state.entered_at + state.limits.hold_ms


def _hold_limit(state: SessionState) -> int:
    return state.limits.hold_ms if state.hold is None else state.hold.hold_ms


def _answer_due(state: SessionState) -> int | None:
    if state.question is None or state.hold is not None:
        return None
    return state.entered_at + state.question.answer_ms


def _answer_limit(state: SessionState) -> int:
    return state.limits.hold_ms if state.question is None else state.question.answer_ms


def _recovery_due(state: SessionState) -> int:
    return state.entered_at + state.limits.recovery_ms


def _archive_due(state: SessionState) -> int:
    if state.open_runs:
        return NEVER_MS
    if state.released_at is None:
        return state.entered_at + state.limits.release_limit_ms
    # If resources were released in Timeout already, the delay counts from the session's end.
    return max(state.released_at, state.entered_at) + state.limits.archive_delay_ms


def _archive_limit(state: SessionState) -> int:
    return state.limits.release_limit_ms if state.released_at is None else state.limits.archive_delay_ms


INITIALISATION = SessionClock(
    "initialisation",
    _initialisation_due,
    lambda state: state.limits.init_ms,
    "init_timeout",
    "Session not started after {limit}",
)
QUOTA_WAIT = SessionClock(
    "quota_wait",
    _quota_wait_due,
    lambda state: SESSION_WAIT_MS,
    "quota_timeout",
    "Not admitted by its tenant's quota within {limit}",
)
QUOTA_SILENCE = SessionClock(
    "quota_silence",
    _quota_silence_due,
    lambda state: inactivity_budget_ms(state.limits),
    "inactive",
    "Nothing was heard for {limit} while it waited for its tenant's quota",
    of_activity=True,
)
INACTIVITY = SessionClock(
    "inactivity",
    _inactivity_due,
    _inactivity_limit,
    "inactive",
    "Agent timeout after {limit}: nothing was heard",
    of_activity=True,
)
IDLE = SessionClock(
    "idle",
    _idle_due,
    _idle_limit,
    "idle",
    "Agent timeout after {limit} without work",
    of_activity=True,
)
MAX_DURATION = SessionClock(
    "max_duration",
    _max_duration_due,
    lambda state: state.limits.max_duration_ms,
    "max_duration",
    "Agent timeout after {limit}: the maximum duration is over",
)
USER_IDLE = SessionClock(
    "user_idle",
    _user_idle_due,
    lambda state: state.limits.user_idle_ms,
    "user_idle",
    "Its user began no turn within {limit}",
)
GRACE = SessionClock(
    "grace",
    _grace_due,
    lambda state: state.limits.grace_ms,
    "timeout_cleanup",
    "Not resumed within {limit} after its timeout",
)
HOLD = SessionClock("hold", _hold_due, _hold_limit, "timeout_cleanup", "Not resumed within {limit} of hold")
ANSWER = SessionClock("answer", _answer_due, _answer_limit, EXPIRED, "Not answered within {limit}: denied")
RECOVERY = SessionClock(
    "recovery", _recovery_due, lambda state: state.limits.recovery_ms, "recovery_failed", "Not recovered within {limit}"
)
ARCHIVE = SessionClock("archive", _archive_due, _archive_limit, "archived", "Archived {limit} after its end")


def repair_times(state: SessionState, repairs: Sequence[ClockRepair]) -> SessionState:
    """Return a session with its times as they are after repairs of the partition's clock.

    Returns the same object if it includes them all. No clock is due too early. The remaining time
    never exceeds the maximum duration.
    """
    for number, _, clock_ms, shift_ms, _ in repairs:
        if number <= state.clock_repair:
            continue
        max_due_at = state.max_due_at
        if max_due_at is not None and state.state != "Paused" and state.phase != WAITING:
            max_due_at = min(max_due_at + shift_ms, clock_ms + state.limits.max_duration_ms)
        state = state._replace(
            created_at=min(state.created_at + shift_ms, clock_ms) if state.state == "Idle" else state.created_at,
            entered_at=min(state.entered_at + shift_ms, clock_ms),
            last_event_at=min(state.last_event_at + shift_ms, clock_ms),
            last_work_at=min(state.last_work_at + shift_ms, clock_ms),
            max_due_at=max_due_at,
            owner_heard_at=min(state.owner_heard_at + shift_ms, clock_ms) if state.owner_heard_at else 0,
            migration=state.migration and _repaired_migration(state.migration, clock_ms, shift_ms),
            released_at=None if state.released_at is None else min(state.released_at + shift_ms, clock_ms),
            clock_repair=number,
        )
    return state


def _repaired_migration(migration: Migration, clock_ms: int, shift_ms: int) -> Migration:
    return migration._replace(offered_at=min(migration.offered_at + shift_ms, clock_ms))


def stop_duration(state: SessionState, now_ms: int) -> SessionState:
    """Stop the maximum duration at `now_ms`, and keep the remaining time.

    While the session waits for its user, it stands already.
    """
    if state.phase == WAITING:
        return state
    return state._replace(max_due_at=max(0, (state.max_due_at or now_ms) - now_ms))


def continue_duration(state: SessionState, now_ms: int) -> SessionState:
    """Resume the maximum duration at `now_ms` with the remaining time.

    While the session waits for its user, it stands.
    """
    if state.phase == WAITING:
        return state
    return state._replace(max_due_at=now_ms + (state.max_due_at or 0))
