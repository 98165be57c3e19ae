"""The check of a session's limits at its creation.

A limit outside its recommended range needs the override, and is flagged in the audit trail.
"""

from sessionary.schemas.errors import Invalid
from sessionary.schemas.limits import LIMIT_MAX, RANGES, with_defaults
from sessionary.schemas.types import Limits, SessionLimits


def resolved(limits: Limits) -> SessionLimits:
    """Return `limits` with defaults filled in. Raises `Invalid("invalid_limits")`."""
    result = with_defaults(limits)
    for name, value in zip(result._fields, result, strict=True):
        if not 0 < value <= LIMIT_MAX:
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


__all__ = ["outside_ranges", "resolved"]
