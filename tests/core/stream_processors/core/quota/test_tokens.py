"""The tokens that a tenant uses in a window: what they do to its claims, and when they go."""

import pytest

from sessionary.schemas.codec import encode_record
from sessionary.schemas.ids import quota_key
from sessionary.schemas.records import QuotaNotice, TenantQuota
from sessionary.schemas.types import QuotaClaimState, QuotaStep
from sessionary.stream_processors.core.model import BatchResult, ClockSetting
from sessionary.stream_processors.core.quota.claims import take_notice
from sessionary.stream_processors.core.quota.judge import LOOK_MS
from sessionary.stream_processors.core.quota.limits import TenantLimits
from sessionary.stream_processors.quotas.verdict_sender import pending_verdicts
from tests.core.oracle_rig import SETTINGS
from tests.core.stream_processors.core.quota.test_machine import START_MS, ClaimsRig
from tests.support.event_factory import TICK

KEY = quota_key("acme", "concurrent_runs")
LIMITS = TenantLimits(2, "queue", tokens=100, token_window_s=10)
END_MS = START_MS + 10_000  # of the first window: it began at START_MS


class TokensRig(ClaimsRig):
    def use(self, tokens: int) -> BatchResult:
        return self.append(KEY, encode_record(used(tokens, self.offset)))

    def tick_at(self, at_ms: int) -> None:
        """Let time pass, in steps that leave no outage."""
        while self.at < at_ms:
            self.at = min(at_ms, self.at + 1_000)
            self.append(None, TICK)

    def row(self) -> TenantQuota | None:
        row = self.state.rows.get(KEY)
        assert row is None or isinstance(row, TenantQuota)
        return row


def used(tokens: int, offset: int = 1) -> QuotaNotice:
    return QuotaNotice("concurrent_runs", "used", "acme", "s1", "", offset, tokens)


def test_the_windows_of_the_tests_begin_with_them() -> None:
    assert LIMITS.window_end_ms(START_MS) == LIMITS.window_end_ms(END_MS - 1) == END_MS


def test_claims_wait_from_the_use_of_the_last_token_to_the_end_of_the_window() -> None:
    rig = TokensRig(LIMITS)
    rig.tell("requested", "a")
    rig.use(99)
    rig.tell("requested", "b")
    assert rig.claims() == {"a": "granted", "b": "granted"}
    rig.use(1)
    rig.tell("released", "a")
    rig.tell("requested", "c")
    assert rig.claims() == {"b": "granted", "c": "waiting"}
    rig.tick_at(END_MS - 1)
    assert rig.claims() == {"b": "granted", "c": "waiting"}
    rig.tick_at(END_MS)
    assert rig.claims() == {"b": "granted", "c": "granted"}
    row = rig.row()
    assert row is not None
    assert (row.tokens, row.tokens_until, row.token_limit) == (0, 0, 100)


def test_a_notice_in_the_next_window_admits_what_waited() -> None:
    rig = TokensRig(LIMITS)
    rig.use(100)
    rig.tell("requested", "a")
    rig.at = END_MS
    rig.use(7)
    assert rig.claims() == {"a": "granted"}
    row = rig.row()
    assert row is not None
    assert (row.tokens, row.tokens_until) == (7, END_MS + 10_000)


def test_a_raised_limit_of_tokens_admits_what_waits() -> None:
    rig = TokensRig(LIMITS)
    rig.use(100)
    rig.tell("requested", "a")
    rig.limits = LIMITS._replace(tokens=101)
    rig.tick_at(START_MS + LOOK_MS)
    assert rig.claims() == {"a": "granted"}


@pytest.mark.parametrize(
    ("limits", "state", "token_limit"),
    [
        (LIMITS._replace(over="reject"), "over_tokens", 100),
        (LIMITS._replace(over="reject", concurrent_runs=0), "over_tokens", 100),
        (LIMITS._replace(over="reject", concurrent_runs=0, tokens=None), "rejected", None),
        (LIMITS._replace(over="reject", concurrent_runs=0, tokens=101), "rejected", None),
        (LIMITS._replace(over="reject", tokens=101), "granted", None),
    ],
)
def test_a_rejection_says_if_it_is_because_of_the_tokens(
    limits: TenantLimits, state: QuotaClaimState, token_limit: int | None
) -> None:
    rig = TokensRig(limits)
    rig.use(100)
    rig.tell("requested", "a")
    assert rig.claims() == {"a": state}
    row = rig.row()
    assert row is not None
    (pending,) = pending_verdicts(row, "q1")
    assert (pending.verdict.granted, pending.verdict.token_limit) == (state == "granted", token_limit)


def test_a_row_of_tokens_alone_goes_when_its_window_ends() -> None:
    rig = TokensRig(LIMITS)
    rig.use(5)
    assert rig.state.next_deadline_ms == END_MS
    rig.tell("requested", "a")
    outcome = rig.tell("released", "a")
    assert list(outcome.rows) == [KEY]
    row = rig.row()
    assert row is not None
    assert (row.claims, row.tokens) == ((), 5)
    rig.tick_at(END_MS)
    assert rig.state.rows == {}
    assert rig.state.next_deadline_ms is None


def test_no_token_is_lost_by_a_limit_that_is_not_set_yet() -> None:
    rig = TokensRig(TenantLimits(2, token_window_s=10))
    rig.use(100)
    rig.tell("requested", "a")
    rig.limits = LIMITS
    rig.tell("requested", "b")
    assert rig.claims() == {"a": "granted", "b": "waiting"}


def test_a_window_that_is_made_shorter_ends_earlier_and_a_longer_one_begins_after_it() -> None:
    row = take_notice(None, used(5), LIMITS._replace(token_window_s=60), START_MS)
    assert row is not None
    assert row.tokens_until > END_MS
    shorter = take_notice(row, used(5), LIMITS, START_MS)
    assert shorter is not None
    assert (shorter.tokens, shorter.tokens_until) == (10, END_MS)
    longer = take_notice(shorter, used(5), LIMITS._replace(token_window_s=60), START_MS)
    assert longer is not None
    assert (longer.tokens, longer.tokens_until) == (15, END_MS)


def test_an_account_has_a_bound_and_takes_no_negative_number() -> None:
    row = take_notice(None, used((1 << 63) - 1), LIMITS, START_MS)
    row = take_notice(row, used(10), LIMITS, START_MS)
    assert row is not None
    assert row.tokens == (1 << 63) - 1
    assert encode_record(row)
    for tokens in (0, -5):
        assert take_notice(row, used(tokens), LIMITS, START_MS) is row
        assert take_notice(None, used(tokens), LIMITS, START_MS) is None


@pytest.mark.parametrize("step", ["taken", "released"])
def test_what_changes_no_claim_leaves_the_same_row(step: QuotaStep) -> None:
    row = take_notice(None, used(5), LIMITS, START_MS)
    notice = QuotaNotice("concurrent_runs", step, "acme", "s1", "a", 1)
    assert take_notice(row, notice, LIMITS, END_MS + 1) is row


def test_a_window_of_a_clock_that_leapt_is_cut_when_the_clock_is_set_back() -> None:
    rig = TokensRig(LIMITS)
    rig.tell("requested", "a")
    rig.at = START_MS + 10**9
    rig.use(100)
    batch = rig.state.begin()
    batch.set_clock(ClockSetting(START_MS, rig.offset, "it leapt", "on-call"))
    batch.finish()
    rig.state.merge(batch)
    rig.at = START_MS + 1
    rig.tell("requested", "b")
    row = rig.row()
    assert row is not None
    assert (row.tokens, row.tokens_until) == (100, END_MS)
    rig.tick_at(START_MS + SETTINGS.outage_grace_ms + LOOK_MS)
    assert rig.claims() == {"a": "granted", "b": "granted"}
