"""The quotas of a memory's tenants, by the processor's own rules. Imported lazily, as `judge`."""

from collections import deque
from typing import NamedTuple

from sessionary.schemas.codec import encode_record
from sessionary.schemas.ids import SessionKey, quota_key
from sessionary.schemas.records import QuotaNotice, TenantQuota
from sessionary.stream_processors.core.quota.claims import UNHEARD, look_again, take_notice, verdict_on
from sessionary.stream_processors.core.quota.limits import TenantLimits


class ToldVerdict(NamedTuple):
    """A verdict as a record of the events topic."""

    key: bytes
    value: bytes


class Quotas:
    """The claims of all tenants, which have the same limits. Not thread-safe.

    `notices`: what sessions told, until it is taken. `limits`: None if runs ask for no quota.
    """

    def __init__(self, limits: TenantLimits | None) -> None:
        self.limits = limits
        self.notices: deque[QuotaNotice] = deque()
        self.rows: dict[bytes, TenantQuota] = {}

    @property
    def has_tokens(self) -> bool:
        """Whether tokens are counted."""
        return self.limits is not None and self.limits.tokens is not None

    @property
    def next_window_ms(self) -> int | None:
        """When the first window of tokens ends, ms since the epoch; None if none is counted."""
        return min((row.tokens_until for row in self.rows.values() if row.tokens_until), default=None)

    def next_verdict(self, now_ms: int) -> ToldVerdict | None:
        """Take all notices; return a verdict that its session has not heard, if there is one.

        Windows of tokens that are over by `now_ms` (ms since the epoch) are forgotten.
        """
        limits = self.limits
        if limits is None:
            return None
        while self.notices:
            notice = self.notices.popleft()
            key = quota_key(notice.tenant_id, notice.quota)
            row = take_notice(self.rows.pop(key, None), notice, limits, now_ms)
            if row is not None:
                self.rows[key] = row
        for key in [key for key, row in self.rows.items() if 0 < row.tokens_until <= now_ms]:
            row = look_again(self.rows.pop(key), limits, now_ms)
            if row is not None:
                self.rows[key] = row
        for row in self.rows.values():
            for claim in row.claims:
                if claim.state in UNHEARD:
                    verdict = verdict_on(row, claim, "memory")
                    return ToldVerdict(SessionKey(row.tenant_id, claim.session_id).encoded(), encode_record(verdict))
        return None
