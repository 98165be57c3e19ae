"""The claims to one quota of a tenant; pure.

                requested
                    │
        ┌───────────┼────────────┐
        ▼           ▼            ▼
     waiting ──▶ granted      rejected      the verdict is sent until the session has heard it
                    │            │
                    ▼            │
                  taken          │
                    └─ released ─┴─▶ gone

A session asks once, tells once that it took a grant, and releases once, however the run ends. So
repeated and unknown notices change nothing. Claims wait in the order in which they were asked for.
"""

from collections.abc import Sequence
from typing import Final

from sessionary.schemas.parts.quota import QuotaClaim, QuotaClaimState
from sessionary.schemas.records import QuotaNotice, TenantQuota
from sessionary.stream_processors.core.quota.limits import CLAIMS_MAX, HOLDERS_MAX, WAITING_MAX, TenantLimits

HOLDING: Final[frozenset[QuotaClaimState]] = frozenset({"granted", "taken"})
# States of which the session has not heard yet.
UNHEARD: Final[frozenset[QuotaClaimState]] = frozenset({"granted", "rejected"})


def count_holders(claims: Sequence[QuotaClaim]) -> int:
    """Return how many claims hold a slot, whether their sessions know it or not."""
    return sum(claim.state in HOLDING for claim in claims)


def has_waiting(row: TenantQuota) -> bool:
    """Return whether a claim waits for a slot."""
    return any(claim.state == "waiting" for claim in row.claims)


def take_notice(
    row: TenantQuota | None, notice: QuotaNotice, limits: TenantLimits, now_ms: int, clock_repair: int = 0
) -> TenantQuota | None:
    """Return the claims after a notice; the same object if it changes nothing, None without claims.

    Raises `OverflowError` for a claim for which the row has no room.
    """
    before = row or TenantQuota(notice.tenant_id, notice.quota, limits.slots_of(notice.quota), now_ms, (), clock_repair)
    name = notice.session_id, notice.run_id, notice.offset
    place = next((place for place, claim in enumerate(before.claims) if claim[:3] == name), None)
    claims = list(before.claims)
    if notice.step == "requested" and place is None:
        if len(claims) >= CLAIMS_MAX:
            raise OverflowError(f"tenant {notice.tenant_id} has {len(claims)} claims, which is the most")
        claims.append(QuotaClaim(*name, _first_state(before, limits)))
    elif notice.step == "taken" and place is not None and claims[place].state != "taken":
        claims[place] = claims[place]._replace(state="taken")
    elif notice.step == "released" and place is not None:
        del claims[place]
    else:
        return row
    after = before._replace(claims=tuple(claims))
    return admit_waiting(after, limits, now_ms) if claims else None


def _first_state(row: TenantQuota, limits: TenantLimits) -> QuotaClaimState:
    """Return how a new claim stands: none overtakes one that waits."""
    waiting = sum(claim.state == "waiting" for claim in row.claims)
    if not waiting and count_holders(row.claims) < _slots(row, limits):
        return "granted"
    return "rejected" if limits.over == "reject" or waiting >= WAITING_MAX else "waiting"


def admit_waiting(row: TenantQuota, limits: TenantLimits, now_ms: int) -> TenantQuota:
    """Return the claims after those that wait have got the free slots, the oldest first."""
    free = _slots(row, limits) - count_holders(row.claims)
    claims = list(row.claims)
    for place, claim in enumerate(claims):
        if free > 0 and claim.state == "waiting":
            claims[place], free = claim._replace(state="granted"), free - 1
    return row._replace(claims=tuple(claims), limit=limits.slots_of(row.quota), looked_at=now_ms)


def _slots(row: TenantQuota, limits: TenantLimits) -> int:
    return min(limits.slots_of(row.quota), HOLDERS_MAX)


__all__ = ["HOLDING", "UNHEARD", "admit_waiting", "count_holders", "has_waiting", "take_notice"]
