"""The limits of a tenant, as an operator sets them.

What was decided by them stands in the log, so they may change at any time.
"""

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

# A tenant without a limit has this one: all its claims are one row.
HOLDERS_MAX: Final = 5_000
WAITING_MAX: Final = 5_000  # further claims are rejected
CLAIMS_MAX: Final = 15_000  # with the rejected ones of which the session has not heard; further ones are refused
OverPolicy = Literal["queue", "reject"]


class TenantLimits(NamedTuple):
    """What a tenant may have at once, and what becomes of a run beyond that."""

    concurrent_runs: int = HOLDERS_MAX
    over: OverPolicy = "queue"


LimitsOf = Callable[[str], TenantLimits]  # of a tenant


__all__ = ["CLAIMS_MAX", "HOLDERS_MAX", "WAITING_MAX", "LimitsOf", "OverPolicy", "TenantLimits"]
