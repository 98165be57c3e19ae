"""A session's limits: defaults, recommended ranges and what follows from them.

Clients and processors share these numbers. The check at a session's creation is the processor's.
"""

from typing import Final

from sessionary.schemas.types import Limits, SessionLimits

DEFAULTS: Final = SessionLimits(
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
# Recommended, both ends included; a value outside needs `Limits.override`, and is audited.
RANGES: dict[str, tuple[int, int]] = {
    "model_ms": (30_000, 60_000),
    "tool_ms": (10_000, 30_000),
    "network_ms": (5_000, 15_000),
    "context_limit_bytes": (50_000_000, 200_000_000),
}
LIMIT_MAX: Final = 10**13  # about 300 years in ms: keeps every sum within 64 bits


def with_defaults(limits: Limits) -> SessionLimits:
    """Return `limits` with the default in place of each None. Checks no value."""
    return SessionLimits(
        *(default if given is None else given for default, given in zip(DEFAULTS, limits, strict=False))
    )


def inactivity_budget_ms(limits: SessionLimits) -> int:
    """Return how long an Active session may be silent, in ms: model + tool + network."""
    return limits.model_ms + limits.tool_ms + limits.network_ms


__all__ = ["DEFAULTS", "LIMIT_MAX", "RANGES", "inactivity_budget_ms", "with_defaults"]
