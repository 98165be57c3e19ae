"""The table of transitions as JSON, for programs in other languages, so that it exists once.

Guards and effects are named after the functions of the table; each program has its own. The bounds
of an event's values are in the same file. A program judges sessions, their turns and their reserved
calls; the event types of everything else are in `left_out`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from sessionary.schemas.codec.catalogue import EVENTS_NAMESPACE, Json, current_schemas
from sessionary.schemas.codec.value_bounds import ENVELOPE_NUMBERS, OWN_CHECKS
from sessionary.schemas.events import EVENT_TYPES
from sessionary.schemas.limits import ITEMS_MAX, NUMBER_MAX, UNBOUNDED_NUMBERS, characters_max
from sessionary.stream_processors.core.children.agent import AGENTS
from sessionary.stream_processors.core.children.artifact import ARTIFACTS
from sessionary.stream_processors.core.children.checkpoint import CHECKPOINTS
from sessionary.stream_processors.core.children.step import STEPS
from sessionary.stream_processors.core.run.transitions import RUN_EVENTS
from sessionary.stream_processors.core.session.clocks import SessionClock
from sessionary.stream_processors.core.session.migration import MIGRATION_EVENTS
from sessionary.stream_processors.core.session.transitions import (
    ACCEPTED,
    CONTENT_CHANGES,
    MEMBERSHIP,
    OPERATOR_EVENTS,
    OWNER_ONLY,
    PHASES,
    RECOVERY_ATTEMPTS_MAX,
    TRANSACTIONS,
    TRANSITIONS,
    CleanupPlan,
    Transition,
    clock_reasons,
    processor_only,
)

# Without an operator's own: none acts in the workload.
JUDGED = tuple(row for row in TRANSITIONS if row.by != "operator")
LEFT_OUT = (
    RUN_EVENTS
    | MIGRATION_EVENTS
    | {"session_taken_over", "tool_call_resolved", "llm_decision"}
    | OPERATOR_EVENTS
    | TRANSACTIONS
    | {EVENT_TYPES[payload] for family in (STEPS, ARTIFACTS, AGENTS, CHECKPOINTS) for payload in family.payloads}
)


def transition_table() -> Mapping[str, Any]:
    """Return the table, and what is accepted without a transition, as JSON values."""
    return {
        "transitions": [_transition(row) for row in JUDGED],
        "accepted": {state: sorted(names) for state, names in ACCEPTED.items()},
        "phases": {state: sorted(pairs) for state, pairs in PHASES.items()},
        "owner_only": sorted(OWNER_ONLY),
        "content_changes": sorted(CONTENT_CHANGES),
        "membership": sorted(MEMBERSHIP),
        "left_out": sorted(LEFT_OUT),
        "processor_only": sorted(processor_only(TRANSITIONS)),
        "clock_reasons": {name: sorted(reasons) for name, reasons in clock_reasons(TRANSITIONS).items()},
        "recovery_attempts_max": RECOVERY_ATTEMPTS_MAX,
        "bounds": _value_bounds(),
    }


def _value_bounds() -> Mapping[str, Any]:
    """Return the bounds of an event's values; those of texts by `Record.field`."""
    characters: dict[str, int] = {}
    for name, schema in current_schemas().items():
        if name.startswith(f"{EVENTS_NAMESPACE}."):
            _collect_texts(schema, "", "", characters)
    return {
        "characters": characters,
        "items": ITEMS_MAX,
        "number": NUMBER_MAX,
        "unbounded_numbers": sorted(UNBOUNDED_NUMBERS),
        "envelope_numbers": list(ENVELOPE_NUMBERS),
        "checked_elsewhere": sorted(OWN_CHECKS),
    }


def _collect_texts(schema: Json, owner: str, field: str, found: dict[str, int]) -> None:
    match schema:
        case "string":
            if (most := characters_max(owner, field)) is not None:
                found[f"{owner}.{field}"] = most
        case ["null", branch] | {"type": "array", "items": branch}:
            _collect_texts(branch, owner, field, found)
        case {"type": "map", "values": values}:
            _collect_texts("string", owner, field, found)
            _collect_texts(values, owner, field, found)
        case {"type": "record", "name": name, "fields": fields}:
            for each in fields:
                _collect_texts(each["type"], name.rpartition(".")[2], each["name"], found)


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


def _clock(clock: SessionClock) -> Mapping[str, Any]:
    return {
        "name": clock.name,
        "reason_code": clock.reason_code,
        "reason": clock.reason,
        "of_activity": clock.of_activity,
    }


def _cleanup(plan: CleanupPlan) -> Mapping[str, Any]:
    by_reason = {reason: list(actions) for reason, actions in plan.by_reason.items()}
    return {"actions": list(plan.actions), "by_reason": by_reason, "once": plan.once}


def _name_of(function: Callable[..., Any]) -> str:
    return function.__name__.removeprefix("_")
