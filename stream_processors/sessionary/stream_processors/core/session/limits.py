"""A session's limits: defaults, recommended ranges, and the check at creation.

Ranges: model 30 to 60 s, tool 10 to 30 s, network 5 to 15 s, context 50 to 200 MB. Outside of them a session needs the
explicit override, and is flagged in the audit trail.
"""

from sessionary.schemas.errors import Invalid
from sessionary.schemas.types import Limits, SessionLimits

DEFAULTS = SessionLimits(
    init_ms=15_000,
    model_ms=30_000,
    tool_ms=20_000,
    network_ms=10_000,
    idle_ms=900_000,
    attached_run_ms=900_000,
    max_duration_ms=28_800_000,
    grace_ms=300_000,
    hold_ms=86_400_000,
    recovery_ms=60_000,
    archive_delay_ms=60_000,
    release_limit_ms=300_000,
    context_limit_bytes=200_000_000,
)
RANGES: dict[str, tuple[int, int]] = {
    "model_ms": (30_000, 60_000),
    "tool_ms": (10_000, 30_000),
    "network_ms": (5_000, 15_000),
    "context_limit_bytes": (50_000_000, 200_000_000),
}
LIMIT_MAX = 10**13  # about 300 years in ms: keeps every sum within 64 bits


def budget_ms(limits: SessionLimits) -> int:
    """Return the inactivity budget: model + tool + network."""
    return limits.model_ms + limits.tool_ms + limits.network_ms


def resolved(limits: Limits) -> SessionLimits:
    """Return `limits` with defaults filled in. Raises `Invalid("invalid_limits")`."""
    values = {
        name: default if (given := getattr(limits, name)) is None else given
        for name, default in zip(DEFAULTS._fields, DEFAULTS, strict=True)
    }
    for name, value in values.items():
        if not 0 < value <= LIMIT_MAX:
            raise Invalid("invalid_limits", f"{name} is {value}; it must be above 0 and at most {LIMIT_MAX}")
    result = SessionLimits(**values)
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


__all__ = ["DEFAULTS", "LIMIT_MAX", "RANGES", "budget_ms", "outside_ranges", "resolved"]
