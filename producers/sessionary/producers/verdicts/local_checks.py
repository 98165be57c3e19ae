"""Finds events that are certain to be rejected, by the judge's own rules; pure.

The judge's modules are imported when they are first needed, with the first session.

A session's state changes only forward as long as its epoch stays: every return to Active raises the
epoch, and events with a lower epoch are rejected anyway. So an event is certain to be rejected if
neither the known state accepts it, nor any state that may follow in this epoch.
"""

import math
from collections.abc import Mapping, Set
from functools import cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple, get_args, get_type_hints

from sessionary.producers.errors import Invalid, NotAllowed
from sessionary.schemas.events import EVENT_TYPES, PAYLOADS, Payload
from sessionary.schemas.types import Limits, RejectionReason

_URI_CHARACTERS_MAX: Final = 1_000  # of what ClickHouse keeps of a text whole
# Every return to Active raises the epoch.
RAISE_EPOCH: Final = frozenset({"session_resumed", "session_recovered"})
_REMEDIES: Final[Mapping[str, str]] = {
    "Paused": ": resume() the session first",
    "Timeout": ": resume() the session first",
    "Error": ": recover() or close() the session first",
}


class Bar(NamedTuple):
    """Why the judge rejects the events of a class, and with which values it may accept them."""

    reason: RejectionReason
    field: str | None = None  # whose value decides; None: the event is rejected, whatever it carries
    allowed: frozenset[str] = frozenset()


Bars = Mapping[type[Payload], Bar]
NO_BARS: Final[Bars] = MappingProxyType({})


def check_limits(limits: Limits | None) -> Limits:
    """Return the limits that a session asks for. Raises `Invalid` if the judge rejects them."""
    from sessionary.stream_processors.core.session.values import resolved

    if limits is None:
        return Limits()
    if not isinstance(limits, Limits):
        kind = type(limits).__name__
        raise Invalid("invalid_limits", f"limits is of type {kind}: use sessionary.producers.Limits")
    for name, value in zip(limits._fields, limits, strict=True):
        if name == "override":
            if type(value) is not bool:
                raise Invalid("invalid_limits", f"{name} is {_describe_value(value)}: use True or False")
        elif value is not None and type(value) is not int:
            raise Invalid("invalid_limits", f"{name} is {_describe_value(value)}: use a whole number")
    resolved(limits)
    return limits


def check_user(user_id: str) -> str:
    """Return `user_id`. Raises `Invalid` if it is no text, or empty."""
    if not isinstance(user_id, str) or not user_id:
        raise Invalid("invalid_value", f"user_id is {user_id!r}: name the user that the session serves")
    return user_id


@cache
def later_states(state: str) -> Set[str]:
    """Return a state, and all that a session may reach from it without a higher epoch."""
    from sessionary.stream_processors.core.session.transitions import TRANSITIONS

    found = {state}
    while True:
        steps = (each for each in TRANSITIONS if each.event_type not in RAISE_EPOCH and each.source in found)
        reached = found.union(each.target for each in steps)
        if reached == found:
            return frozenset(found)
        found = reached


@cache
def barred_events(state: str, *, is_owner: bool, is_member: bool = False) -> Bars:
    """Return which events the judge is certain to reject from a client.

    Args:
        state: The session's state, which is known for certain.
        is_owner: Whether the client's service owns the session.
        is_member: Whether an agent of the client's service is registered with the session.
    """
    from sessionary.stream_processors.core.sequencing import EPOCH_EXEMPT
    from sessionary.stream_processors.core.session.migration import MIGRATION_EVENTS, OFFER_STATES
    from sessionary.stream_processors.core.session.transitions import CONTENT_CHANGES, OWNER_ONLY

    bars: dict[type[Payload], Bar] = {}
    states = later_states(state)
    for event_type, cls in PAYLOADS.items():
        if event_type in EPOCH_EXEMPT:
            continue  # judged whatever the epoch is, so that the state may be any other one
        if event_type in MIGRATION_EVENTS and event_type != "session_migration_completed":
            if event_type == "session_migration_offered" and not states & OFFER_STATES:
                bars[cls] = Bar("illegal_transition")
            continue  # the migration decides, which another service continues
        if not is_owner and event_type in OWNER_ONLY:
            bars[cls] = Bar("not_owner")
        elif not is_owner and not is_member and event_type in CONTENT_CHANGES:
            bars[cls] = Bar("not_member")
        elif (bar := _bar_of(event_type, states)) is not None:
            bars[cls] = bar
    return MappingProxyType(bars)


@cache
def events_within_runs() -> Set[type[Payload]]:
    """Return the classes of events that a run which has begun may have."""
    from sessionary.stream_processors.core.run.transitions import EVENTS_OF_RUNS

    return frozenset(PAYLOADS[name] for name in EVENTS_OF_RUNS - {"run_queued", "run_started"})


def _bar_of(event_type: str, states: Set[str]) -> Bar | None:
    """Return the bar of an event type, if none of `states` accepts all of its events."""
    from sessionary.stream_processors.core.session.transitions import ACCEPTED, PHASES, TRANSITIONS

    accepting = {state for state, names in ACCEPTED.items() if event_type in names and state in states}
    if event_type == "session_phase_changed":
        # Where the type is accepted, the order of phases decides.
        targets = {target for state, moves in PHASES.items() if state in accepting for _, target in moves}
        return Bar("phase_order", "phase", frozenset(targets))
    if accepting:
        return None
    ways = [each for each in TRANSITIONS if each.source in states and each.event_type == event_type]
    ways = [each for each in ways if each.by in ("client", "either")]
    if not ways:
        return Bar("illegal_transition")
    if not all(each.reasons for each in ways):
        return None
    return Bar("invalid_reason", "reason", frozenset().union(*(each.reasons for each in ways)))


def is_clock_reason(reason_code: str) -> bool:
    """Return whether a session is in its state because one of its clocks has fired.

    A session whose user did not come back has not timed out: it waited, as it should.
    """
    return reason_code in _clock_reasons()


@cache
def _clock_reasons() -> Set[str]:
    from sessionary.stream_processors.core.session.clocks import USER_IDLE
    from sessionary.stream_processors.core.session.transitions import TRANSITIONS

    fired = {clock.reason_code for each in TRANSITIONS if each.target != "Archived" for clock in each.clocks}
    return fired - {USER_IDLE.reason_code}


def find_objection(payload: Payload, bar: Bar, state: str, service_id: str) -> NotAllowed | None:
    """Return the error for an event that the bar of its class may concern; None if it passes."""
    event_type = EVENT_TYPES[type(payload)]
    if bar.reason == "not_member":
        detail = f"{event_type} is for the owning service and those of registered agents, of which {service_id} is none"
        return NotAllowed(bar.reason, f"{detail} as far as this object knows; sync() updates it", state, event_type)
    if bar.reason == "not_owner":
        return NotAllowed(
            bar.reason, f"{event_type} is for the owning service only, which {service_id} is not", state, event_type
        )
    cls: Any = type(payload)
    given = getattr(payload, bar.field) if bar.field is not None else None
    if given in bar.allowed or (bar.field is not None and given not in _known_values(cls, bar.field)):
        return None  # the encoder reports missing values
    detail = event_type
    if bar.allowed:
        detail += f" with {bar.field} {given!r}"
    detail += f" is not possible in {state}"
    if bar.reason == "invalid_reason":
        return NotAllowed(bar.reason, f"{detail}; allowed: {', '.join(sorted(bar.allowed))}", state, event_type)
    return NotAllowed(bar.reason, detail + _REMEDIES.get(state, ""), state, event_type)


@cache
def _known_values(cls: type[Any], field: str) -> tuple[str, ...]:
    return get_args(get_type_hints(cls)[field])


def _describe_value(value: object) -> str:
    name = type(value).__name__
    return f"{value!r:.80}, {'an' if name[0] in 'aeiou' else 'a'} {name}"


def check_access(uri: object, operation: object) -> None:
    """Raise `Invalid` for a resource that ClickHouse could not find again, or no operation."""
    if not (isinstance(uri, str) and 0 < len(uri) <= _URI_CHARACTERS_MAX):
        raise Invalid(
            "invalid_value",
            f"uri is {uri!r:.80}: use a text of 1 to {_URI_CHARACTERS_MAX} characters, such as 'file:///data/a.csv'; "
            "of a longer one, its hash",
        )
    if not (isinstance(operation, str) and operation):
        raise Invalid("invalid_value", f"operation is {operation!r:.80}: use a word such as 'read' or 'write'")


def check_progress(progress: float, total: float | None) -> None:
    """Raise `Invalid` unless 0 ≤ progress ≤ total; a total that is None is not known."""
    numbers = (progress,) if total is None else (progress, total)
    is_number = all(isinstance(each, int | float) and math.isfinite(each) for each in numbers)
    if not is_number or progress < 0 or (total is not None and (progress > total or total <= 0)):
        raise Invalid(
            "invalid_value",
            f"progress is {progress!r} of {total!r}: it must be a number from 0 to the total, and the total is above 0",
        )
