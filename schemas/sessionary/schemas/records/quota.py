"""Records of the quotas of tenants; times are ms of log time.

A claim is named by its session, its run if one asks, and the offset of the event that asked.
"""

from collections.abc import Sequence
from typing import NamedTuple

from sessionary.schemas.parts.quota import QuotaClaim, QuotaName, QuotaStep


class QuotaNotice(NamedTuple):
    """Says on the quotas topic what became of a claim to a tenant's quota, or of tokens.

    Those that were used are told to each quota for which the session's events ask.
    """

    quota: QuotaName
    step: QuotaStep
    tenant_id: str
    session_id: str
    run_id: str  # Empty if the session itself asks, or used tokens
    offset: int  # Of the event that asked, or used tokens, in its session's partition
    tokens: int = 0  # So many were used; 0 for a claim


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
    token_limit: int | None = None  # The tenant's, if the claim was rejected because of it


class TenantQuota(NamedTuple):
    """The claims to one quota of a tenant, and its tokens, as the changelog of quotas has them."""

    tenant_id: str
    quota: QuotaName
    limit: int  # The tenant's limit at the last decision
    looked_at: int  # When the limit was last looked at. Log time, ms
    claims: Sequence[QuotaClaim]  # In the order in which they were asked for
    clock_repair: int = 0  # The last repair of the partition's clock that all times here include
    tokens: int = 0  # So many the tenant has used in its present window
    tokens_until: int = 0  # When that window ends; 0 if no token was used in it. Log time, ms
    token_limit: int | None = None  # At the last decision; None if the tenant had none
