"""The limits of a tenant, as an operator sets them.

The decisions by these limits stand in the log, so the limits may change at any time.
"""

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from sessionary.schemas.types import QuotaName

# A tenant without a limit has this one: all its claims are one row.
HOLDERS_MAX: Final = 5_000
WAITING_MAX: Final = 5_000  # further claims are rejected
CLAIMS_MAX: Final = 15_000  # with the rejected ones of which the session has not heard; further ones are rejected
WINDOW_S_MAX: Final = 86_400  # what waits for the next window is given up after a day
OverPolicy = Literal["queue", "reject"]


class TenantLimits(NamedTuple):
    """The limits of a tenant, and the treatment of a run or a session beyond them.

    Attributes:
        tokens: So many it may use in a window before further ones wait; None: it has no limit.
        token_window_s: Length of a window in seconds; the first one began with the epoch.
    """

    concurrent_runs: int = HOLDERS_MAX
    over: OverPolicy = "queue"
    live_sessions: int = HOLDERS_MAX
    tokens: int | None = None
    token_window_s: int = 3_600

    def slots_of(self, quota: QuotaName) -> int:
        """Return how many claims to a quota may hold a slot."""
        return self.live_sessions if quota == "live_sessions" else self.concurrent_runs

    def window_end_ms(self, now_ms: int) -> int:
        """Return when the window of a moment ends; both in ms since the epoch."""
        window_ms = 1_000 * self.token_window_s
        return now_ms - now_ms % window_ms + window_ms


LimitsOf = Callable[[str], TenantLimits]  # of a tenant
