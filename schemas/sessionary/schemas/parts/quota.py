"""Types that schemas of quotas share (`avro/common/*.avsc`)."""

from typing import NamedTuple

from sessionary.schemas.enums import QuotaClaimState, QuotaName, QuotaStep


class RunQuota(NamedTuple):
    """A run's claim to a slot of its tenant's quota.

    Attributes:
        offset: Of the event that asked; with session and run it names the claim.
        event_type: Type of that event: what the grant lets happen.
        event_id: Its id.
        granted: Whether the run has the slot; else it waits.
    """

    offset: int
    event_type: str
    event_id: str
    granted: bool


class SessionQuota(NamedTuple):
    """A session's claim to a slot of its tenant's quota.

    Attributes:
        offset: Of the event that created the session, which names the claim with it.
        event_id: Its id.
        granted: Whether the session has the slot; else it waits.
    """

    offset: int
    event_id: str
    granted: bool


class QuotaClaim(NamedTuple):
    """A claim to a tenant's quota that has not ended."""

    session_id: str
    run_id: str  # Empty if the session itself asked
    offset: int  # Of the event that asked, in its session's partition
    state: QuotaClaimState


__all__ = ["QuotaClaim", "QuotaClaimState", "QuotaName", "QuotaStep", "RunQuota", "SessionQuota"]
