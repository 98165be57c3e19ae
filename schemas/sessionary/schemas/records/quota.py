"""Records of the quotas of tenants; times are ms of log time.

A claim is named by its session, its run if one asks, and the offset of the event that asked.
"""

from collections.abc import Sequence
from typing import NamedTuple

from sessionary.schemas.parts.quota import QuotaClaim, QuotaName, QuotaStep


class QuotaNotice(NamedTuple):
    """Says on the quotas topic what became of a claim to a tenant's quota."""

    quota: QuotaName
    step: QuotaStep
    tenant_id: str
    session_id: str
    run_id: str  # Empty if the session itself asks
    offset: int  # Of the event that asked, in its session's partition


class QuotaVerdict(NamedTuple):
    """Says on the events topic what was decided about a claim to a tenant's quota.

    It counts only for a claim that stands open in the row of its run, or of its session.
    """

    quota: QuotaName
    run_id: str  # Empty if the session itself asks
    offset: int  # Of the event that asked
    granted: bool
    limit: int  # The tenant's limit at the decision
    instance: str  # The processor that sent it


class TenantQuota(NamedTuple):
    """The claims to one quota of a tenant, as the changelog of quotas has it."""

    tenant_id: str
    quota: QuotaName
    limit: int  # The tenant's limit at the last decision
    looked_at: int  # When the limit was last looked at. Log time, ms
    claims: Sequence[QuotaClaim]  # In the order in which they were asked for
    clock_repair: int = 0  # The last repair of the partition's clock that all times here include


__all__ = ["QuotaNotice", "QuotaVerdict", "TenantQuota"]
