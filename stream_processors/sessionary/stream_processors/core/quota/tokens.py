"""The tokens that a tenant has used in its present window; pure.

Each quota for which a tenant's events ask has an account of its own, because its claims wait by it.
A window begins and ends by the clock of the log of quotas. Its tokens are forgotten when it ends.
"""

from typing import Final

from sessionary.schemas.records import TenantQuota
from sessionary.stream_processors.core.quota.limits import TenantLimits

_TOKENS_MAX: Final = (1 << 63) - 1


def move_window(row: TenantQuota, limits: TenantLimits, now_ms: int) -> TenantQuota:
    """Return the account as it is at `now_ms`; the same object if its window goes on.

    A window that was made shorter ends with the shorter one; a longer one begins after its end.
    """
    if not row.tokens_until:
        return row
    if now_ms >= row.tokens_until:
        return row._replace(tokens=0, tokens_until=0)
    end_ms = limits.window_end_ms(now_ms)
    return row._replace(tokens_until=end_ms) if end_ms < row.tokens_until else row


def add_tokens(row: TenantQuota, tokens: int, limits: TenantLimits, now_ms: int) -> TenantQuota:
    """Return the account after more were used. `tokens`: above 0."""
    row = move_window(row, limits, now_ms)
    used = min(row.tokens + tokens, _TOKENS_MAX)
    return row._replace(tokens=used, tokens_until=row.tokens_until or limits.window_end_ms(now_ms))


def is_used_up(row: TenantQuota, limits: TenantLimits) -> bool:
    """Return whether nothing more may begin in this window."""
    return limits.tokens is not None and row.tokens >= limits.tokens
