"""The claims to one quota of a tenant: a table of notices, and what they come to."""

import pytest

from sessionary.schemas.records import QuotaNotice, TenantQuota
from sessionary.schemas.types import QuotaClaim, QuotaClaimState, QuotaStep
from sessionary.stream_processors.core.quota.claims import admit_waiting, count_holders, take_notice
from sessionary.stream_processors.core.quota.limits import CLAIMS_MAX, HOLDERS_MAX, WAITING_MAX, TenantLimits

QUEUED, REJECTED = TenantLimits(2, "queue"), TenantLimits(2, "reject")


def notice(step: QuotaStep, run_id: str, offset: int = 1) -> QuotaNotice:
    return QuotaNotice("concurrent_runs", step, "acme", "s1", run_id, offset)


def states(row: TenantQuota | None) -> dict[str, QuotaClaimState]:
    return {} if row is None else {claim.run_id: claim.state for claim in row.claims}


def take(limits: TenantLimits, *reported: tuple[QuotaStep, str]) -> TenantQuota | None:
    """Return the claims after notices."""
    row: TenantQuota | None = None
    for step, run_id in reported:
        row = take_notice(row, notice(step, run_id), limits, 7)
    return row


@pytest.mark.parametrize(
    ("limits", "reported", "expected"),
    [
        (QUEUED, "r:a r:b r:c", "a=granted b=granted c=waiting"),
        (REJECTED, "r:a r:b r:c", "a=granted b=granted c=rejected"),
        (QUEUED, "r:a r:a", "a=granted"),
        (QUEUED, "r:a t:a t:a", "a=taken"),
        (QUEUED, "r:a r:b r:c r:d x:a", "b=granted c=granted d=waiting"),
        (QUEUED, "r:a r:b r:c r:d x:c x:b", "a=granted d=granted"),
        (REJECTED, "r:a r:b r:c x:a r:d", "b=granted c=rejected d=granted"),
        (REJECTED, "r:a r:b r:c x:c x:c", "a=granted b=granted"),
        (QUEUED, "r:a x:a", ""),
        (QUEUED, "x:a t:b", ""),
        (
            QUEUED,
            "r:a r:b r:c t:c x:a",
            "b=granted c=taken",
        ),  # a forged grant: it holds a slot all the same
        (TenantLimits(0, "queue"), "r:a", "a=waiting"),
        (TenantLimits(0, "reject"), "r:a", "a=rejected"),
    ],
)
def test_notifications(limits: TenantLimits, reported: str, expected: str) -> None:
    steps: dict[str, QuotaStep] = {"r": "requested", "t": "taken", "x": "released"}
    found = take(limits, *((steps[one[0]], one[2:]) for one in reported.split()))
    assert " ".join(f"{run}={state}" for run, state in states(found).items()) == expected


def test_a_notice_that_changes_nothing_leaves_the_same_row() -> None:
    row = take(QUEUED, ("requested", "a"), ("taken", "a"))
    for step, run_id in (("requested", "a"), ("taken", "a"), ("released", "b"), ("taken", "b")):
        assert take_notice(row, notice(step, run_id), QUEUED, 9) is row  # type: ignore[arg-type]
    assert take_notice(None, notice("released", "a"), QUEUED, 9) is None


def test_two_claims_of_one_run_are_distinguished_by_the_event_that_asked() -> None:
    row = take_notice(None, notice("requested", "a", 1), QUEUED, 7)
    row = take_notice(row, notice("requested", "a", 5), QUEUED, 7)
    assert row is not None
    assert count_holders(row.claims) == 2
    row = take_notice(row, notice("released", "a", 1), QUEUED, 7)
    assert row is not None
    assert row.claims == (QuotaClaim("s1", "a", 5, "granted"),)


def test_a_limit_that_rises_admits_the_oldest_and_one_that_falls_ends_none() -> None:
    row = take(QUEUED, *(("requested", run_id) for run_id in "abcde"))
    assert row is not None
    more = admit_waiting(row, TenantLimits(4), 9)
    assert states(more) == dict.fromkeys("abcd", "granted") | {"e": "waiting"}
    assert (more.limit, more.looked_at) == (4, 9)
    fewer = take_notice(more, notice("released", "a"), TenantLimits(1), 10)
    assert states(fewer) == dict.fromkeys("bcd", "granted") | {"e": "waiting"}


def test_a_new_claim_overtakes_none_that_waits() -> None:
    row = take(QUEUED, *(("requested", run_id) for run_id in "abc"))
    row = take_notice(row, notice("requested", "d"), TenantLimits(3), 9)
    assert states(row) == {"a": "granted", "b": "granted", "c": "granted", "d": "waiting"}


def full_row(**states: int) -> TenantQuota:
    """Return a row with so many claims in each state."""
    claims = [QuotaClaim("s2", f"{state}-{n}", n, state) for state, number in states.items() for n in range(number)]  # type: ignore[arg-type]
    return TenantQuota("acme", "concurrent_runs", 2, 7, tuple(claims))


def test_so_many_claims_wait_and_no_more() -> None:
    row = take_notice(full_row(taken=2, waiting=WAITING_MAX - 1), notice("requested", "a"), QUEUED, 9)
    row = take_notice(row, notice("requested", "b"), QUEUED, 9)
    assert (states(row)["a"], states(row)["b"]) == ("waiting", "rejected")


def test_a_tenant_without_a_limit_has_a_bound() -> None:
    row = take_notice(full_row(taken=HOLDERS_MAX - 1), notice("requested", "a"), TenantLimits(10**9), 9)
    row = take_notice(row, notice("requested", "b"), TenantLimits(10**9), 9)
    assert (states(row)["a"], states(row)["b"]) == ("granted", "waiting")


def test_the_row_has_a_bound() -> None:
    row = take_notice(full_row(rejected=CLAIMS_MAX - 1), notice("requested", "a"), QUEUED, 9)
    assert row is not None
    assert len(row.claims) == CLAIMS_MAX
    with pytest.raises(OverflowError, match="tenant acme has 15000 claims"):
        take_notice(row, notice("requested", "b"), QUEUED, 9)


def test_live_sessions_have_a_limit_of_their_own() -> None:
    limits = TenantLimits(concurrent_runs=0, over="queue", live_sessions=1)
    row: TenantQuota | None = None
    for session in ("s1", "s2"):
        row = take_notice(row, QuotaNotice("live_sessions", "requested", "acme", session, "", 1), limits, 7)
    assert row is not None
    assert [(claim.session_id, claim.state) for claim in row.claims] == [("s1", "granted"), ("s2", "waiting")]
    assert (row.quota, row.limit) == ("live_sessions", 1)
    more = admit_waiting(row, limits._replace(live_sessions=2), 8)
    assert [claim.state for claim in more.claims] == ["granted", "granted"]
    assert more.limit == 2
