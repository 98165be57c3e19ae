"""The limits of a tenant, as an operator sets them.

What was decided by them stands in the log, so they may change at any time.
"""

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from sessionary.schemas.parts.quota import QuotaName

# A tenant without a limit has this one: all its claims are one row.
HOLDERS_MAX: Final = 5_000
WAITING_MAX: Final = 5_000  # further claims are rejected
CLAIMS_MAX: Final = 15_000  # with the rejected ones of which the session has not heard; further ones are refused
OverPolicy = Literal["queue", "reject"]


class TenantLimits(NamedTuple):
    """What a tenant may have at once, and what becomes of a run or a session beyond that."""

    concurrent_runs: int = HOLDERS_MAX
    over: OverPolicy = "queue"
    live_sessions: int = HOLDERS_MAX

    def slots_of(self, quota: QuotaName) -> int:
        """Return how many claims to a quota may hold a slot."""
        return self.live_sessions if quota == "live_sessions" else self.concurrent_runs


LimitsOf = Callable[[str], TenantLimits]  # of a tenant


__all__ = ["CLAIMS_MAX", "HOLDERS_MAX", "WAITING_MAX", "LimitsOf", "OverPolicy", "TenantLimits"]
