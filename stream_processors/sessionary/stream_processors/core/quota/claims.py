"""The claims to one quota of a tenant; pure.

                requested
                    │
        ┌───────────┼────────────┐
        ▼           ▼            ▼
     waiting ──▶ granted      rejected      the verdict is sent until the session has heard it
                                            (over_tokens: rejected because of the tokens)
                    │            │
                    ▼            │
                  taken          │
                    └─ released ─┴─▶ gone

A session asks once, confirms a grant once, and releases once, however the run ends. So
repeated and unknown notices change nothing. Claims wait in the order in which they were asked for.
While the tenant's tokens are used up, none is granted; those that hold a slot keep it. A notice of
tokens is counted whenever it comes, as it is written in the transaction of the event that used
them.
"""

from collections.abc import Sequence
from typing import Final

from sessionary.schemas.records import QuotaNotice, QuotaVerdict, TenantQuota
from sessionary.schemas.types import QuotaClaim, QuotaClaimState
from sessionary.stream_processors.core.quota.limits import CLAIMS_MAX, HOLDERS_MAX, WAITING_MAX, TenantLimits

HOLDING: Final[frozenset[QuotaClaimState]] = frozenset({"granted", "taken"})
# States of which the session has not heard yet.
UNHEARD: Final[frozenset[QuotaClaimState]] = frozenset({"granted", "rejected", "over_tokens"})


def count_holders(claims: Sequence[QuotaClaim]) -> int:
    """Return how many claims hold a slot, whether their sessions know it or not."""
    return sum(claim.state in HOLDING for claim in claims)


def has_waiting(row: TenantQuota) -> bool:
    """Return whether a claim waits for a slot."""
    return any(claim.state == "waiting" for claim in row.claims)


def take_notice(
    row: TenantQuota | None, notice: QuotaNotice, limits: TenantLimits, now_ms: int, clock_repair: int = 0
) -> TenantQuota | None:
    """Return the claims after a notice; the same object if it changes nothing.

    None if there are neither claims nor tokens. Raises `OverflowError` for a claim for which the
    row has no room.
    """
    before = row or TenantQuota(notice.tenant_id, notice.quota, limits.slots_of(notice.quota), now_ms, (), clock_repair)
    if notice.step == "used":
        if notice.tokens <= 0:
            return row
        return admit_waiting(add_tokens(before, notice.tokens, limits, now_ms), limits, now_ms)
    before = move_window(before, limits, now_ms)
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
    return look_again(after, limits, now_ms)


def look_again(row: TenantQuota, limits: TenantLimits, now_ms: int) -> TenantQuota | None:
    """Return the claims by the limits and the tokens as they are; None if there are neither."""
    after = admit_waiting(move_window(row, limits, now_ms), limits, now_ms)
    return after if after.claims or after.tokens else None


def _first_state(row: TenantQuota, limits: TenantLimits) -> QuotaClaimState:
    """Return the state of a new claim: none overtakes a waiting claim."""
    waiting, used_up = sum(claim.state == "waiting" for claim in row.claims), is_used_up(row, limits)
    if not waiting and not used_up and count_holders(row.claims) < _slots(row, limits):
        return "granted"
    if limits.over == "queue" and waiting < WAITING_MAX:
        return "waiting"
    return "over_tokens" if used_up else "rejected"


def admit_waiting(row: TenantQuota, limits: TenantLimits, now_ms: int) -> TenantQuota:
    """Return the claims after the waiting ones have taken the free slots, the oldest first."""
    free = 0 if is_used_up(row, limits) else _slots(row, limits) - count_holders(row.claims)
    claims = list(row.claims)
    for place, claim in enumerate(claims):
        if free > 0 and claim.state == "waiting":
            claims[place], free = claim._replace(state="granted"), free - 1
    limit, token_limit = limits.slots_of(row.quota), limits.tokens
    return row._replace(claims=tuple(claims), limit=limit, looked_at=now_ms, token_limit=token_limit)


def verdict_on(row: TenantQuota, claim: QuotaClaim, instance: str) -> QuotaVerdict:
    """Return the verdict for a claim's session; `instance` sends it. It is not acknowledged yet."""
    token_limit = row.token_limit if claim.state == "over_tokens" else None
    granted = claim.state in HOLDING
    return QuotaVerdict(row.quota, claim.run_id, claim.offset, granted, row.limit, instance, token_limit)


def _slots(row: TenantQuota, limits: TenantLimits) -> int:
    return min(limits.slots_of(row.quota), HOLDERS_MAX)


_TOKENS_MAX: Final = (1 << 63) - 1


def move_window(row: TenantQuota, limits: TenantLimits, now_ms: int) -> TenantQuota:
    """Return the account as it is at `now_ms`; the same object if its window continues.

    A window that was made shorter ends with the shorter one; a longer one begins after its end.
    """
    if not row.tokens_until:
        return row
    if now_ms >= row.tokens_until:
        return row._replace(tokens=0, tokens_until=0)
    end_ms = limits.window_end_ms(now_ms)
    return row._replace(tokens_until=end_ms) if end_ms < row.tokens_until else row


def add_tokens(row: TenantQuota, tokens: int, limits: TenantLimits, now_ms: int) -> TenantQuota:
    """Return the account after more tokens were used. `tokens`: above 0."""
    row = move_window(row, limits, now_ms)
    used = min(row.tokens + tokens, _TOKENS_MAX)
    return row._replace(tokens=used, tokens_until=row.tokens_until or limits.window_end_ms(now_ms))


def is_used_up(row: TenantQuota, limits: TenantLimits) -> bool:
    """Return whether the tokens of this window are used up, so that nothing more may begin."""
    return limits.tokens is not None and row.tokens >= limits.tokens
