"""The check of a session's limits at its creation, and of its context's size.

A limit outside its recommended range needs the override, and is flagged in the audit trail.
"""

from sessionary.schemas.errors import Invalid
from sessionary.schemas.limits import LIMIT_MAX, RANGES, with_defaults
from sessionary.schemas.records import SessionState
from sessionary.schemas.types import Envelope, Limits, SessionLimits
from sessionary.stream_processors.core.session.facts import ContextExceeded, ContextMeasured, SessionFact


def resolved(limits: Limits) -> SessionLimits:
    """Return `limits` with defaults filled in. Raises `Invalid("invalid_limits")`."""
    result = with_defaults(limits)
    for place, value in enumerate(result):
        if not 0 < value <= LIMIT_MAX:
            name = result._fields[place]
            raise Invalid("invalid_limits", f"{name} is {value}; it must be above 0 and at most {LIMIT_MAX}")
    outside = outside_ranges(result)
    if outside and not limits.override:
        raise Invalid("invalid_limits", f"{'; '.join(outside)}; set override where this is meant")
    return result


def outside_ranges(limits: SessionLimits) -> list[str]:
    """Return, for people, each limit that lies outside its recommended range."""
    return [
        f"{name} {value} is outside {low} to {high}"
        for name, (low, high) in RANGES.items()
        if not low <= (value := getattr(limits, name)) <= high
    ]


def measured_context(row: SessionState, envelope: Envelope) -> list[SessionFact]:
    """Return the facts of an event's context size. Above the limit it is audited once."""
    size, limit = envelope.context_bytes, row.limits.context_limit_bytes
    if size is None:
        return []
    exceeded = size > limit
    facts: list[SessionFact] = []
    if exceeded and not row.context_exceeded:
        facts.append(ContextExceeded(size, limit))
    if (size, exceeded) != (row.context_bytes, row.context_exceeded):
        facts.append(ContextMeasured(size, exceeded))
    return facts
