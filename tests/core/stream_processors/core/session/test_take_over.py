"""A session is taken over: who may, what becomes of the former holder, and what the trail says."""

import pytest

from sessionary.schemas.types import Limits
from tests.core.fold_rig import FoldRig
from tests.support.event_factory import EventFactory

LIMIT_MS = 20_000  # two heartbeats of a session with the default limits


def rig_with_session(limits: Limits | None = None) -> tuple[FoldRig, EventFactory]:
    rig, agent = FoldRig(), EventFactory()
    rig.start(agent, **({} if limits is None else {"limits": limits}))
    return rig, agent


def other_process(rig: FoldRig, service: str = "billing", producer: str = "q") -> EventFactory:
    """Return another process that has attached to the session."""
    other = EventFactory(service=service, producer=producer)
    row = rig.row_of(other)
    other.epoch, other.head = row.epoch, row.snapshot.snapshot_id
    return other


def take_over(rig: FoldRig, agent: EventFactory) -> str:
    return rig.send(agent, "session_taken_over", {"agent_id": "agent-2"})


def test_a_take_over_fences_off_the_former_holder_and_says_who_it_was() -> None:
    rig, first = rig_with_session()
    second = other_process(rig)
    before = rig.row_of(first)
    assert take_over(rig, second) == "applied"
    (line,) = rig.audits()
    assert (line.kind, line.reason_code, line.event_type) == ("take_over", "taken_over", "session_taken_over")
    assert line.reason == "agent-2 of billing (process q) took over from agent-1 of billing (process p)"
    assert (line.from_state, line.to_state, line.transition) == ("Active", "Active", None)
    assert (line.epoch, line.audit_seq, line.agent_id, line.producer_id) == (2, before.audit_seq + 1, "agent-2", "q")
    row = rig.row_of(first)
    assert (row.epoch, row.state, row.phase, row.holder, row.agent_id) == (2, "Active", "processing", "q", "agent-2")
    assert row.version == before.version
    stale = first.event_bytes("message_appended", {"epoch": 1})
    assert rig.append(first.key.encoded(), stale) == "rejected stale_epoch"
    assert rig.send(second, "message_appended") == "applied"


def test_the_former_holder_may_take_the_session_back() -> None:
    rig, first = rig_with_session()
    second = other_process(rig)
    assert take_over(rig, second) == "applied"
    first.epoch = 2
    assert take_over(rig, first) == "applied"
    assert (rig.row_of(first).holder, rig.row_of(first).epoch) == ("p", 3)


def test_of_two_that_take_over_at_once_the_second_is_rejected() -> None:
    rig, _ = rig_with_session()
    second, third = other_process(rig), other_process(rig, producer="r")
    assert take_over(rig, second) == "applied"
    assert take_over(rig, third) == "rejected stale_epoch"


@pytest.mark.parametrize(("ms", "outcome"), [(LIMIT_MS - 1, "rejected owner_alive"), (LIMIT_MS, "applied")])
def test_another_service_waits_for_two_missed_heartbeats(ms: int, outcome: str) -> None:
    rig, first = rig_with_session()
    rig.advance(5_000)
    assert rig.send(first, "heartbeat") == "applied"
    heard = rig.at
    rig.advance(15_000)
    rig.at = heard + ms
    stranger = other_process(rig, "shop")
    assert take_over(rig, stranger) == outcome
    assert (rig.row_of(first).owner_service == "shop") == (outcome == "applied")


def test_a_rejected_stranger_learns_how_long_to_wait() -> None:
    rig, _ = rig_with_session()
    assert take_over(rig, other_process(rig, "shop")) == "rejected owner_alive"
    assert rig.letter().detail == "billing may be alive; shop may take over once billing is silent for 20s"
    assert not rig.letter().security


def test_the_own_service_never_waits() -> None:
    rig, first = rig_with_session()
    assert rig.send(first, "heartbeat") == "applied"
    assert take_over(rig, other_process(rig)) == "applied"


def test_the_limit_follows_the_sessions_inactivity_budget() -> None:
    rig, _ = rig_with_session(Limits(model_ms=60_000, tool_ms=30_000, network_ms=15_000))
    rig.advance(34_000)
    stranger = other_process(rig, "shop")
    assert take_over(rig, stranger) == "rejected owner_alive"
    rig.advance(1_000)
    assert take_over(rig, stranger) == "applied"


def test_the_work_of_strangers_is_no_sign_of_life_of_the_owner() -> None:
    rig, _ = rig_with_session()
    stranger = other_process(rig, "shop")
    for _ in range(5):
        rig.advance(4_000)
        assert rig.send(stranger, "message_appended") == "applied"
        assert rig.send(stranger, "heartbeat") == "applied"
    assert take_over(rig, stranger) == "applied"
    row = rig.row_of(stranger)
    assert (row.owner_service, row.owner_heard_at) == ("shop", rig.at)


def test_the_new_owner_may_do_what_only_owners_may() -> None:
    rig, first = rig_with_session()
    stranger = other_process(rig, "shop")
    assert rig.send(stranger, "session_terminated") == "rejected not_owner"
    rig.advance(LIMIT_MS)
    assert take_over(rig, stranger) == "applied"
    assert rig.send(stranger, "state_updated") == "applied"
    former = first.event_bytes("session_terminated", {"epoch": 2})
    assert rig.append(first.key.encoded(), former) == "rejected not_owner"
    assert rig.send(stranger, "session_terminated") == "applied"


@pytest.mark.parametrize("event_type", ["session_paused", "session_errored", "session_timed_out"])
def test_a_take_over_leaves_the_state_and_the_holder_goes_on_from_there(event_type: str) -> None:
    rig, first = rig_with_session()
    if event_type == "session_timed_out":
        rig.advance(60_000)
    else:
        assert rig.send(first, event_type) == "applied"
    state = rig.row_of(first).state
    stranger = other_process(rig, "shop")
    rig.advance(LIMIT_MS)
    assert take_over(rig, stranger) == "applied"
    row = rig.row_of(first)
    assert (row.state, row.epoch, row.entered_at) == (state, 2, row.entered_at)
    if state != "Error":
        assert rig.send(stranger, "session_resumed") == "applied"
        assert rig.row_of(first).epoch == 3


def test_an_owner_that_beats_in_timeout_is_alive() -> None:
    rig, first = rig_with_session(Limits(idle_ms=10_000, override=True))
    for _ in range(12):
        rig.advance(5_000)
        assert rig.send(first, "heartbeat") == "applied"
    assert rig.row_of(first).state == "Timeout"
    assert take_over(rig, other_process(rig, "shop")) == "rejected owner_alive"


def test_a_session_that_ended_cannot_be_taken_over() -> None:
    rig, first = rig_with_session()
    assert rig.send(first, "session_terminated") == "applied"
    assert take_over(rig, other_process(rig)) == "rejected illegal_transition"


def test_after_an_outage_in_the_log_the_owner_has_its_time_again() -> None:
    rig, _ = rig_with_session()
    rig.at += 30_000  # the broker was away: nothing could be heard
    stranger = other_process(rig, "shop")
    assert take_over(rig, stranger) == "rejected owner_alive"
    rig.advance(LIMIT_MS - 1_000)
    assert take_over(rig, stranger) == "rejected owner_alive"
    rig.advance(1_000)
    assert take_over(rig, stranger) == "applied"


def test_a_take_over_counts_as_work() -> None:
    rig, _ = rig_with_session()
    rig.advance(59_000)
    second = other_process(rig)
    assert take_over(rig, second) == "applied"
    rig.advance(59_000)
    assert rig.row_of(second).state == "Active"
    rig.advance(1_000)
    assert rig.row_of(second).state == "Timeout"
