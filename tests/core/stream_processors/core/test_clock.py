"""Time after an outage in the log: what fires, and when, by each version of the rules."""

import pytest

from sessionary.schemas.types import Limits
from sessionary.stream_processors.core.clock import Clock
from tests.core.oracle_rig import OracleRig
from tests.support.event_factory import EventFactory

BUDGET_MS = 60_000
OUTAGE_MS = 50_000
OUTAGE_GRACE_MS = 25_000


def rig_after_outage(outage_ms: int = OUTAGE_MS, limits: Limits = Limits()) -> OracleRig:
    """Return a rig whose session was heard last when the outage began; now it ends."""
    rig = OracleRig()
    rig.start(EventFactory(), limits=limits)
    rig.at += outage_ms
    rig.tick()
    return rig


def test_an_outage_ends_with_the_record_after_it() -> None:
    clock = Clock(1_000).advance_to(7_000, live=True, outage_ms=5_000, outage_grace_ms=OUTAGE_GRACE_MS)
    assert (clock.now_ms, clock.outage_grace_until_ms) == (7_000, 32_000)
    assert clock.outage_end_ms(OUTAGE_GRACE_MS) == 7_000
    assert Clock(1_000).outage_end_ms(OUTAGE_GRACE_MS) == 0


def test_inactivity_counts_from_the_end_of_the_outage() -> None:
    rig = rig_after_outage()
    assert rig.fold.next_deadline_ms == rig.at + BUDGET_MS
    assert rig.advance(BUDGET_MS - 1) == []
    assert rig.advance(1) == ["T06 inactive"]
    (line,) = rig.last_audits()
    assert line.due_at == line.fired_at == rig.at * 1_000


def test_the_time_without_work_counts_from_there_too() -> None:
    rig = rig_after_outage(outage_ms=3_600_000, limits=Limits(idle_ms=40_000))
    assert rig.advance(39_999) == []
    assert rig.advance(1) == ["T06 idle"]


def test_the_maximum_duration_goes_on_in_an_outage() -> None:
    rig = rig_after_outage(limits=Limits(max_duration_ms=55_000))
    assert rig.advance(OUTAGE_GRACE_MS - 1) == []
    assert rig.advance(1) == ["T06 max_duration"]


@pytest.mark.parametrize(("state", "ms"), [("Paused", 86_400_000), ("Error", 60_000), ("Idle", 15_000)])
def test_clocks_of_other_states_go_on_in_an_outage(state: str, ms: int) -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.send(agent, "session_created")
    if state != "Idle":
        for phase in ("validating", "connecting"):
            rig.send(agent, "session_phase_changed", phase=phase)
        rig.send(agent, "session_started")
        rig.send(agent, {"Paused": "session_paused", "Error": "session_errored"}[state])
    rig.at += ms
    rig.tick()
    assert rig.advance(OUTAGE_GRACE_MS - 1) == []
    assert len(rig.advance(1)) == 1


def test_what_is_heard_after_the_outage_counts_from_then() -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    rig.at += OUTAGE_MS
    rig.tick()
    rig.advance(10_000)
    assert rig.send(agent, "heartbeat") == "applied"
    assert rig.advance(BUDGET_MS - 1) == []
    assert rig.advance(1) == ["T06 inactive"]


def test_each_outage_starts_the_clocks_again() -> None:
    rig = rig_after_outage()
    assert rig.advance(BUDGET_MS - 1_000) == []
    rig.at += 5_001
    rig.tick()
    assert rig.advance(BUDGET_MS - 1) == []
    assert rig.advance(1) == ["T06 inactive"]
