"""Events that use tokens: which quotas are notified of them, once and with the event."""

from typing import Any

import pytest

from sessionary.schemas.headers import REPLAYED_FROM
from sessionary.schemas.records import QuotaNotice
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.schemas.types import RuleSet
from tests.core.fold_rig import FoldRig
from tests.core.stream_processors.core.run.test_quotas import LONG, STARTED, QuotaRig
from tests.support.event_factory import EventFactory

RUNS = NEWEST_RULES._replace(quotas=True, token_quotas=True)
BOTH = RUNS._replace(session_quotas=True)
USAGE: dict[str, Any] = {"tokens_in": 30, "tokens_out": 12}


class TokensRig(FoldRig):
    """An Active session, judged by rules with quotas."""

    def __init__(self, rules: RuleSet = RUNS) -> None:
        super().__init__()
        self.agent = EventFactory()
        self.start(self.agent, limits=LONG)
        if rules != NEWEST_RULES:
            self.activate(rules)

    def use(self, **fields: Any) -> str:
        return self.send(self.agent, "usage_recorded", **{**USAGE, **fields})

    def reported(self) -> list[QuotaNotice]:
        assert self.outcome is not None
        return [notice for _, notice in self.outcome.records_on("quotas")]


def use_of(quota: Any, rig: TokensRig) -> QuotaNotice:
    return QuotaNotice(quota, "used", "acme", rig.agent.key.session_id, "", rig.offset - 1, 42)


@pytest.mark.parametrize(
    ("rules", "quotas"),
    [
        (NEWEST_RULES, []),
        (NEWEST_RULES._replace(quotas=True, session_quotas=True), []),
        (NEWEST_RULES._replace(token_quotas=True), []),
        (RUNS, ["concurrent_runs"]),
        (BOTH._replace(quotas=False), ["live_sessions"]),
        (BOTH, ["concurrent_runs", "live_sessions"]),
    ],
)
def test_each_quota_that_is_asked_for_hears_of_tokens_if_the_rules_say_so(rules: RuleSet, quotas: list[str]) -> None:
    rig = TokensRig(rules)
    assert rig.use() == "applied"
    assert rig.reported() == [use_of(quota, rig) for quota in quotas]
    assert rig.use(tokens_in=0, tokens_out=0) == "applied"
    assert rig.reported() == []
    assert rig.send(rig.agent, "session_activity") == "applied"
    assert rig.reported() == []


def test_what_is_rejected_or_repeated_uses_nothing() -> None:
    rig = TokensRig()
    assert rig.use(tokens_in=-1) == "rejected invalid_value"
    assert rig.reported() == []
    key, value = rig.agent.key.encoded(), rig.agent.event_bytes("usage_recorded", {}, **USAGE)
    for outcome, times in (("applied", 1), ("duplicate", 0)):
        assert rig.append(key, value) == outcome
        assert len(rig.reported()) == times


def test_a_session_that_is_held_tells_of_what_it_used_before() -> None:
    rig = TokensRig()
    rig.send(rig.agent, "session_paused")
    assert rig.use() == "applied"
    assert rig.reported() == [use_of("concurrent_runs", rig)]


def test_a_usage_that_fills_its_gap_is_counted() -> None:
    rig = TokensRig()
    value = rig.agent.event_bytes("usage_recorded", {}, **USAGE)
    assert rig.send(rig.agent, "session_activity") == "applied"
    assert rig.append(rig.agent.key.encoded(), value, [(REPLAYED_FROM, b"0:1")]) == "applied"
    assert rig.reported() == [use_of("concurrent_runs", rig)]


def test_a_detached_run_uses_tokens_after_its_session_has_ended() -> None:
    rig = QuotaRig(limits=LONG)
    rig.activate(RUNS)
    assert rig.decide(rig.ask(**{**STARTED, "mode": "detached"})) == "tick"
    assert rig.send(rig.agent, "session_terminated", reason="closed") == "applied"
    assert rig.say("usage_recorded", **USAGE) == "applied"
    assert rig.notices() == [("used", "", rig.offset - 1)]


def test_a_run_that_is_rejected_because_of_the_tokens_says_so() -> None:
    rig = QuotaRig()
    asked = rig.ask()
    assert rig.decide(asked, granted=False, token_limit=100) == "tick"
    (reported,) = rig.reported()
    assert reported.reason == "Run rejected: tenant acme has used its 100 tokens of this window"
