"""The table of transitions as JSON, for programs in other languages, so that it exists once.

Guards and effects are named after the functions of the table; each program has its own.
"""

from collections.abc import Callable, Mapping
from typing import Any

from sessionary.stream_processors.core.session.clocks import SessionClock
from sessionary.stream_processors.core.session.transitions import (
    ACCEPTED,
    OWNER_ONLY,
    PHASES,
    RECOVERY_ATTEMPTS_MAX,
    TRANSITIONS,
    CleanupPlan,
    Transition,
    clock_reasons,
    processor_only,
)


def transition_table() -> Mapping[str, Any]:
    """Return the table, and what is accepted without a transition, as JSON values."""
    return {
        "transitions": [_transition(row) for row in TRANSITIONS],
        "accepted": {state: sorted(names) for state, names in ACCEPTED.items()},
        "phases": {state: sorted(pairs) for state, pairs in PHASES.items()},
        "owner_only": sorted(OWNER_ONLY),
        "processor_only": sorted(processor_only(TRANSITIONS)),
        "clock_reasons": {name: sorted(reasons) for name, reasons in clock_reasons(TRANSITIONS).items()},
        "recovery_attempts_max": RECOVERY_ATTEMPTS_MAX,
    }


def _transition(row: Transition) -> Mapping[str, Any]:
    return {
        "id": row.id,
        "source": row.source,
        "event_type": row.event_type,
        "target": row.target,
        "phase": row.phase,
        "by": row.by,
        "reasons": list(row.reasons),
        "guard": _name_of(row.guard),
        "effect": _name_of(row.effect),
        "clocks": [_clock(clock) for clock in row.clocks],
        "cleanup": _cleanup(row.cleanup),
    }


def _clock(clock: SessionClock) -> Mapping[str, str]:
    return {"name": clock.name, "reason_code": clock.reason_code, "reason": clock.reason}


def _cleanup(plan: CleanupPlan) -> Mapping[str, Any]:
    by_reason = {reason: list(actions) for reason, actions in plan.by_reason.items()}
    return {"actions": list(plan.actions), "by_reason": by_reason, "once": plan.once}


def _name_of(function: Callable[..., Any]) -> str:
    return function.__name__.removeprefix("_")
