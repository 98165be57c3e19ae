"""Limits: one home for defaults, ranges and the inactivity budget."""

from sessionary.schemas.limits import DEFAULTS, LIMIT_MAX, RANGES, inactivity_budget_ms, with_defaults
from sessionary.schemas.types import Limits, SessionLimits


def test_a_session_has_each_limit_that_may_be_asked_for() -> None:
    assert Limits._fields == (*SessionLimits._fields, "override")


def test_what_is_not_given_is_the_default() -> None:
    assert with_defaults(Limits()) == DEFAULTS
    assert with_defaults(Limits(idle_ms=7, override=True)) == DEFAULTS._replace(idle_ms=7)
    given = Limits(*range(1, 15))
    assert with_defaults(given) == SessionLimits(*range(1, 15))


def test_zero_is_a_value_and_no_default() -> None:
    assert with_defaults(Limits(grace_ms=0)).grace_ms == 0


def test_the_inactivity_budget_is_model_tool_and_network() -> None:
    assert inactivity_budget_ms(DEFAULTS) == 60_000
    assert inactivity_budget_ms(with_defaults(Limits(model_ms=1, tool_ms=20))) == 10_021


def test_every_default_is_within_its_range_and_below_the_maximum() -> None:
    assert all(low <= getattr(DEFAULTS, name) <= high for name, (low, high) in RANGES.items())
    assert all(0 < value <= LIMIT_MAX for value in DEFAULTS)
    assert sum([LIMIT_MAX] * len(DEFAULTS)) * 1_000 < 1 << 63
