"""Limits of a session: defaults, recommended ranges, and the deadlines that follow from them."""

from typing import Any

import pytest

from sessionary.schemas.errors import Invalid
from sessionary.schemas.events import StateUpdated
from sessionary.schemas.limits import DEFAULTS, LIMIT_MAX, RANGES, inactivity_budget_ms
from sessionary.schemas.types import Limits
from sessionary.stream_processors.core.session.accepted import STATE_BYTES_MAX, rule_for
from sessionary.stream_processors.core.session.facts import ContentUpdated
from sessionary.stream_processors.core.session.transitions import Objection
from sessionary.stream_processors.core.session.values import resolved
from tests.core.oracle_rig import OracleRig
from tests.support.event_factory import EventFactory

PARTS = {"model_ms": 30_000, "tool_ms": 20_000, "network_ms": 10_000}


def test_the_budget_is_model_plus_tool_plus_network() -> None:
    assert {name: getattr(DEFAULTS, name) for name in PARTS} == PARTS
    assert inactivity_budget_ms(DEFAULTS) == 60_000


@pytest.mark.parametrize(("name", "by_ms"), [("model_ms", 7_000), ("tool_ms", 5_000), ("network_ms", 3_000)])
def test_each_part_moves_the_deadline_by_its_own_length(name: str, by_ms: int) -> None:
    rig, agent = OracleRig(), EventFactory()
    given: dict[str, Any] = {name: PARTS[name] + by_ms}
    rig.start(agent, limits=Limits(**given))
    assert rig.advance(60_000 + by_ms - 1) == []
    assert rig.advance(1) == ["T06 inactive"]
    (line,) = rig.last_audits()
    assert line.reason.startswith(f"Agent timeout after {(60_000 + by_ms) // 1_000}s")


def test_two_sessions_of_different_budgets_time_out_at_their_own_deadlines() -> None:
    rig, brief, long = OracleRig(), EventFactory("brief"), EventFactory("long")
    rig.start(brief)
    rig.start(long, limits=Limits(model_ms=60_000))
    assert rig.advance(60_000) == ["T06 inactive"]
    assert rig.row_of(brief).state == "Timeout"
    assert rig.advance(30_000 - 1) == []
    assert rig.advance(1) == ["T06 inactive"]
    assert rig.row_of(long).state == "Timeout"


@pytest.mark.parametrize("name", sorted(RANGES))
@pytest.mark.parametrize("edge", [0, 1])
def test_a_limit_at_the_edge_of_its_range_is_fine_and_one_beyond_needs_the_override(name: str, edge: int) -> None:
    at = RANGES[name][edge]
    beyond = at - 1 if edge == 0 else at + 1
    given: dict[str, Any] = {name: beyond}
    rig = OracleRig()
    assert rig.send(EventFactory("at"), "session_created", limits=Limits(**{**given, name: at})) == "applied"
    assert len(rig.last_audits()) == 1
    limits = Limits(**given)
    assert rig.send(EventFactory("beyond"), "session_created", limits=limits) == "rejected invalid_limits"
    meant = limits._replace(override=True)
    assert rig.send(EventFactory("meant"), "session_created", limits=meant) == "applied"
    flagged = rig.last_audits()[-1]
    assert (flagged.kind, flagged.reason_code) == ("limits_override", "limits_override")
    assert str(beyond) in flagged.reason


@pytest.mark.parametrize("name", Limits._fields[:-1])
def test_no_limit_is_0_or_less(name: str) -> None:
    rig = OracleRig()
    for value in (0, -1):
        limits = Limits(**{name: value}, override=True)
        assert rig.send(EventFactory(f"{name}{value}"), "session_created", limits=limits) == "rejected invalid_limits"


@pytest.mark.parametrize("name", Limits._fields[:-1])
def test_a_limit_may_be_as_small_as_1_and_as_large_as_300_years(name: str) -> None:
    for value in (1, LIMIT_MAX):
        limits = Limits(**{name: value}, override=True)
        assert OracleRig().send(EventFactory(), "session_created", limits=limits) == "applied"
    beyond = Limits(**{name: LIMIT_MAX + 1}, override=True)
    with pytest.raises(Invalid, match="at most"):
        resolved(beyond)


def test_a_context_above_its_limit_is_audited_once_until_it_falls() -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent, limits=Limits(context_limit_bytes=50_000_000))
    kinds = []
    for size in (50_000_000, 50_000_001, 60_000_000, 40_000_000, 50_000_001):
        assert rig.send(agent, "session_activity", {"context_bytes": size}) == "applied"
        kinds.append([line.kind for line in rig.last_audits()])
    assert kinds == [[], ["context_limit"], [], [], ["context_limit"]]


def test_a_clean_up_request_has_the_last_reported_context_size() -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    for size in (1_000, 2_000, None):
        assert rig.send(agent, "session_activity", {"context_bytes": size}) == "applied"
    assert rig.row_of(agent).context_bytes == 2_000
    assert rig.send(agent, "session_terminated", reason="closed") == "applied"
    ((_, request),) = rig.outcomes[-1].records_on("cleanup")
    assert request.context_bytes == 2_000


def test_a_state_above_1_mib_is_rejected_and_the_row_stays() -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    row = rig.row_of(agent)
    fits, too_large = ("{" + " " * (size - 2) + "}" for size in (STATE_BYTES_MAX, STATE_BYTES_MAX + 1))
    assert isinstance(rule_for("state_updated")(row, StateUpdated(1, 2, fits), rig.at), ContentUpdated)
    rejected = rule_for("state_updated")(row, StateUpdated(1, 2, too_large), rig.at)
    assert isinstance(rejected, Objection)
    assert rejected.reason == "state_too_large"
