"""Turns, the exchanges with a session's user, and the wait between them; beside the oracle."""

from typing import Any

import pytest

from sessionary.schemas.events import PAYLOADS
from sessionary.schemas.limits import DEFAULTS, RANGES
from sessionary.schemas.records import CleanupRequest
from sessionary.schemas.types import Limits
from sessionary.stream_processors.core.sequencing import hash_producer
from tests.core.oracle_rig import OracleRig
from tests.core.stream_processors.core.migration.test_migration import Stage
from tests.core.stream_processors.core.session.test_people import Hand
from tests.support.event_factory import EventFactory

DAY_MS = 86_400_000
USER_IDLE_MS = 70_000
BUDGET_MS = 60_000
RECOVERY: list[tuple[str, dict[str, Any]]] = [
    ("session_phase_changed", {"phase": "recovery"}),
    ("session_recovered", {}),
]
LIMITS = Limits(user_idle_ms=USER_IDLE_MS, idle_ms=65_000, max_duration_ms=200_000, hold_ms=20_000)


def started(limits: Limits = LIMITS) -> tuple[OracleRig, EventFactory]:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent, limits=limits)
    return rig, agent


def begin(rig: OracleRig, agent: EventFactory) -> str:
    return rig.send(agent, "session_phase_changed", phase="processing")


def end(rig: OracleRig, agent: EventFactory) -> str:
    return rig.send(agent, "session_phase_changed", phase="waiting")


def waiting(limits: Limits = LIMITS) -> tuple[OracleRig, EventFactory]:
    """Return a session after its first turn."""
    rig, agent = started(limits)
    assert (begin(rig, agent), end(rig, agent)) == ("applied", "applied")
    return rig, agent


def other_process(rig: OracleRig, producer: str = "q") -> EventFactory:
    other = EventFactory(producer=producer)
    row = rig.row_of(other)
    other.epoch, other.head = row.epoch, row.snapshot.snapshot_id
    return other


def phase_of(rig: OracleRig, agent: EventFactory) -> tuple[str, str | None]:
    row = rig.row_of(agent)
    return row.state, row.phase


def test_the_limit_is_a_day_with_a_range_and_an_override() -> None:
    assert DEFAULTS.user_idle_ms == DAY_MS
    assert RANGES["user_idle_ms"] == (60_000, 30 * DAY_MS)
    rig, agent = OracleRig(), EventFactory()
    assert rig.send(agent, "session_created", limits=Limits(user_idle_ms=59_999)) == "rejected invalid_limits"
    assert rig.send(agent, "session_created", limits=Limits(user_idle_ms=59_999, override=True)) == "applied"
    assert [line.kind for line in rig.last_audits()] == ["transition", "gap", "limits_override"]


def test_between_turns_only_the_limit_of_the_user_runs_and_it_ends_the_session_exactly_then() -> None:
    rig, agent = waiting()
    row = rig.row_of(agent)
    assert (row.state, row.phase, row.exchanges, row.turn_by) == ("Active", "waiting", 1, 0)
    assert rig.fold.next_deadline_ms == rig.at + USER_IDLE_MS
    assert rig.advance(USER_IDLE_MS - 1) == []
    assert rig.advance(1) == ["T13 user_idle"]
    row, (line,) = rig.row_of(agent), rig.last_audits()
    assert (row.state, row.phase, row.reason_code) == ("Terminated", "releasing", "user_idle")
    assert (line.event_type, line.from_state) == ("session_terminated", "Active")
    assert line.reason == "Its user began no turn within 70s"
    ((_, asked),) = rig.outcomes[-1].records_on("cleanup")
    assert isinstance(asked, CleanupRequest)
    assert (asked.reason_code, asked.service_id) == ("user_idle", "billing")
    assert asked.actions == ("memory_cleanup", "close_connection", "release_context", "mark_closed")


def test_a_heartbeat_between_turns_is_accepted_and_prolongs_nothing() -> None:
    rig, agent = waiting()
    rig.advance(USER_IDLE_MS - 1_000)
    assert rig.send(agent, "heartbeat") == "applied"
    assert rig.advance(1_000) == ["T13 user_idle"]


@pytest.mark.parametrize("event_type", ["session_activity", "message_appended", "state_updated", "snapshot_created"])
def test_work_between_turns_is_accepted_and_begins_the_limit_anew(event_type: str) -> None:
    rig, agent = waiting()
    rig.advance(USER_IDLE_MS - 1_000)
    assert rig.send(agent, event_type) == "applied"
    assert phase_of(rig, agent) == ("Active", "waiting")
    assert rig.advance(USER_IDLE_MS - 1) == []
    assert rig.advance(1) == ["T13 user_idle"]


def test_a_turn_that_begins_has_the_usual_clocks_and_times_out_with_its_process() -> None:
    rig, agent = waiting()
    rig.advance(50_000)
    assert begin(rig, agent) == "applied"
    row = rig.row_of(agent)
    assert (row.phase, row.exchanges, row.turn_by) == ("processing", 1, hash_producer("p"))
    assert rig.fold.next_deadline_ms == rig.at + BUDGET_MS
    assert rig.advance(BUDGET_MS) == ["T06 inactive"]
    assert begin(rig, agent) == "rejected late"
    assert end(rig, agent) == "rejected late"
    other = other_process(rig)
    assert rig.send(other, "session_resumed", snapshot_id=None) == "applied"
    assert begin(rig, other) == "applied"  # the turn of the dead process is over
    assert end(rig, other) == "applied"
    assert rig.row_of(agent).exchanges == 2


def test_the_maximum_duration_stands_between_turns() -> None:
    rig, agent = started(LIMITS._replace(user_idle_ms=DAY_MS))
    assert begin(rig, agent) == "applied"
    rig.advance(40_000)
    assert end(rig, agent) == "applied"
    assert rig.row_of(agent).max_due_at == 160_000
    rig.at += 3_000_000
    rig.tick()
    assert begin(rig, agent) == "applied"
    assert rig.row_of(agent).max_due_at == rig.at + 160_000


@pytest.mark.parametrize("repaired_in", ["waiting", "processing"])
def test_a_repair_of_the_clock_leaves_as_much_time_as_there_was(repaired_in: str) -> None:
    rig, agent = started()
    for phase, move in (("processing", begin), ("waiting", end), ("", begin)):
        assert move(rig, agent) == "applied"
        rig.advance(10_000)
        if phase == repaired_in:
            rig.at += DAY_MS
            rig.set_clock()
    assert rig.row_of(agent).max_due_at == rig.at + 200_000 - 20_000


def test_an_outage_ends_no_waiting_session_before_its_user_was_heard() -> None:
    rig, agent = waiting()
    rig.advance(10_000)
    rig.at += USER_IDLE_MS
    assert begin(rig, agent) == "applied"  # sent meanwhile, as from a spool
    assert phase_of(rig, agent) == ("Active", "processing")


def test_one_process_at_a_time_is_in_a_turn() -> None:
    rig, agent = started()
    other = other_process(rig)
    assert begin(rig, agent) == "applied"
    assert begin(rig, agent) == "applied"  # its own turn goes on
    assert begin(rig, other) == "rejected phase_order"
    assert end(rig, other) == "rejected phase_order"
    assert rig.send(agent, "message_appended") == "applied"
    assert end(rig, agent) == "applied"
    assert end(rig, agent) == "rejected phase_order"
    assert begin(rig, other) == "applied"
    assert rig.row_of(agent).turn_by == hash_producer("q")


@pytest.mark.parametrize(
    "phases", [(), ("updating",), ("updating", "persisting"), ("updating", "persisting", "processing")]
)
def test_a_turn_may_have_phases_of_its_own_and_ends_from_each(phases: tuple[str, ...]) -> None:
    rig, agent = started()
    assert begin(rig, agent) == "applied"
    for phase in phases:
        assert rig.send(agent, "session_phase_changed", phase=phase) == "applied"
    assert begin(rig, other_process(rig)).startswith("rejected phase_order") or phases == ("updating", "persisting")
    assert end(rig, agent) == "applied"
    assert rig.row_of(agent).exchanges == 1


def test_between_turns_no_other_phase_follows() -> None:
    rig, agent = waiting()
    for phase in ("updating", "persisting", "connecting", "logging"):
        assert rig.send(agent, "session_phase_changed", phase=phase) == "rejected phase_order"


def test_only_the_owning_service_has_turns() -> None:
    rig, _ = waiting()
    guest = EventFactory(service="other", producer="g")
    guest.head = rig.row_of(guest).snapshot.snapshot_id
    assert begin(rig, guest) == "rejected not_owner"
    assert end(rig, guest) == "rejected not_owner"


def test_a_take_over_ends_the_turn_of_another_process_and_not_the_wait() -> None:
    rig, agent = started()
    assert begin(rig, agent) == "applied"
    other = other_process(rig)
    assert rig.send(other, "session_taken_over") == "applied"
    assert (rig.row_of(agent).phase, rig.row_of(agent).turn_by) == ("processing", 0)
    assert end(rig, EventFactory(producer="x")) == "rejected stale_epoch"
    assert (begin(rig, other), end(rig, other)) == ("applied", "applied")
    third = other_process(rig, "r")
    assert rig.send(third, "session_taken_over") == "applied"
    assert phase_of(rig, agent) == ("Active", "waiting")
    assert rig.advance(USER_IDLE_MS) == ["T13 user_idle"]


def test_a_process_that_takes_its_own_session_over_stays_in_its_turn() -> None:
    rig, agent = started()
    assert begin(rig, agent) == "applied"
    assert rig.send(agent, "session_taken_over") == "applied"
    assert begin(rig, other_process(rig)) == "rejected phase_order"


@pytest.mark.parametrize("is_operators", [False, True])
def test_a_session_that_is_paused_between_turns_waits_for_its_user_afterwards(is_operators: bool) -> None:
    rig, agent = waiting(LIMITS._replace(user_idle_ms=DAY_MS))
    left_ms = rig.row_of(agent).max_due_at
    rig.advance(10_000)
    hand = Hand(rig, agent)
    assert (hand.pause() if is_operators else rig.send(agent, "session_paused")) == "applied"
    assert phase_of(rig, agent) == ("Paused", "waiting")
    assert begin(rig, agent) == "rejected illegal_transition"
    rig.advance(10_000)
    resumed = hand.send("session_resumed") if is_operators else rig.send(agent, "session_resumed")
    assert resumed == "applied"
    agent.epoch = rig.row_of(agent).epoch
    assert phase_of(rig, agent) == ("Active", "waiting")
    assert rig.row_of(agent).max_due_at == left_ms
    assert rig.advance(2 * BUDGET_MS) == []
    assert begin(rig, agent) == "applied"
    assert rig.row_of(agent).max_due_at == rig.at + (left_ms or 0)


def test_a_turn_ends_while_a_person_holds_the_session() -> None:
    rig, agent = started(LIMITS._replace(user_idle_ms=DAY_MS))
    assert begin(rig, agent) == "applied"
    rig.advance(10_000)
    left_ms = (rig.row_of(agent).max_due_at or 0) - rig.at
    hand = Hand(rig, agent)
    assert hand.pause() == "applied"
    assert begin(rig, agent) == "rejected illegal_transition"
    assert end(rig, other_process(rig)) == "rejected phase_order"
    assert end(rig, agent) == "applied"
    assert phase_of(rig, agent) == ("Paused", "waiting")
    assert end(rig, agent) == "rejected illegal_transition"
    assert hand.send("session_resumed") == "applied"
    agent.epoch = rig.row_of(agent).epoch
    row = rig.row_of(agent)
    assert (row.phase, row.exchanges, row.turn_by, row.max_due_at) == ("waiting", 1, 0, left_ms)
    assert rig.advance(2 * BUDGET_MS) == []
    assert begin(rig, other_process(rig, "r")) == "applied"
    assert rig.row_of(agent).max_due_at == rig.at + left_ms


def test_a_pause_between_turns_has_its_own_limit() -> None:
    rig, agent = waiting()
    assert rig.send(agent, "session_paused") == "applied"
    assert rig.advance(20_000) == ["T09 timeout_cleanup"]


def test_a_question_in_a_turn_leaves_the_turn_to_its_process() -> None:
    rig, agent = started()
    assert begin(rig, agent) == "applied"
    asked: dict[str, Any] = {"kind": "review", "question": "Send it?", "answer_ms": 10_000}
    assert rig.send(agent, "session_paused", **asked) == "applied"
    assert rig.advance(10_000) == ["T05 expired"]
    agent.epoch = rig.row_of(agent).epoch
    assert phase_of(rig, agent) == ("Active", "processing")
    assert begin(rig, other_process(rig)) == "rejected phase_order"
    assert end(rig, agent) == "applied"


@pytest.mark.parametrize("is_same", [True, False])
def test_who_resumes_or_recovers_a_session_in_a_turn_keeps_its_own_turn_only(is_same: bool) -> None:
    for leave, come_back in (("session_paused", [("session_resumed", {})]), ("session_errored", RECOVERY)):
        rig, agent = started()
        assert begin(rig, agent) == "applied"
        assert rig.send(agent, leave) == "applied"
        process = agent if is_same else other_process(rig)
        for event_type, fields in come_back:
            assert rig.send(process, event_type, **fields) == "applied"
        third = other_process(rig, "r")
        assert begin(rig, third) == ("rejected phase_order" if is_same else "applied"), leave


def test_an_error_between_turns_lets_the_duration_go_on() -> None:
    rig, agent = waiting()
    left_ms = rig.row_of(agent).max_due_at
    rig.advance(10_000)
    assert rig.send(agent, "session_errored") == "applied"
    assert phase_of(rig, agent) == ("Error", "logging")
    assert rig.row_of(agent).max_due_at == rig.at + (left_ms or 0)
    for event_type, fields in RECOVERY:
        assert rig.send(agent, event_type, **fields) == "applied"
    assert phase_of(rig, agent) == ("Active", "processing")
    assert begin(rig, agent) == "applied"


@pytest.mark.parametrize("reason", ["closed", "completed", "cancelled", "abnormal_termination"])
def test_a_session_may_be_ended_between_turns(reason: str) -> None:
    rig, agent = waiting()
    assert rig.send(agent, "session_terminated", reason=reason) == "applied"
    assert rig.row_of(agent).reason_code == reason
    assert begin(rig, agent) == "rejected phase_order"


def test_an_operator_cancels_a_session_between_turns() -> None:
    rig, agent = waiting()
    assert Hand(rig, agent).send("session_terminated", reason="cancelled") == "applied"
    assert (rig.row_of(agent).state, rig.row_of(agent).reason_code) == ("Terminated", "cancelled")


def test_a_question_between_turns_expires_and_the_session_waits_on() -> None:
    rig, agent = waiting()
    left_ms = rig.row_of(agent).max_due_at
    asked: dict[str, Any] = {"kind": "review", "question": "Send it?", "answer_ms": 10_000}
    assert rig.send(agent, "session_paused", **asked) == "applied"
    assert rig.advance(10_000) == ["T05 expired"]
    assert (phase_of(rig, agent), rig.row_of(agent).max_due_at) == (("Active", "waiting"), left_ms)
    assert rig.advance(USER_IDLE_MS) == ["T13 user_idle"]


@pytest.mark.parametrize("is_completed", [True, False])
def test_a_session_migrates_between_turns_and_waits_on(is_completed: bool) -> None:
    stage = Stage(user_idle_ms=USER_IDLE_MS, max_duration_ms=100_000)
    rig, owner = stage.rig, stage.owner
    assert (begin(rig, owner), end(rig, owner)) == ("applied", "applied")
    stage.prepare()
    assert phase_of(rig, owner) == ("Paused", "waiting")
    assert begin(rig, owner) == "rejected illegal_transition"
    moved = stage.accept() if is_completed else rig.send(owner, "session_migration_aborted", migration_id="m1")
    assert moved == "applied"
    assert phase_of(rig, owner) == ("Active", "waiting")
    assert rig.row_of(owner).max_due_at == 100_000
    holder = stage.target if is_completed else owner
    holder.epoch = rig.row_of(owner).epoch
    assert rig.fold.next_deadline_ms == rig.at + USER_IDLE_MS
    assert begin(rig, holder) == "applied"


def test_a_migration_in_a_turn_ends_it() -> None:
    stage = Stage()
    assert begin(stage.rig, stage.owner) == "applied"
    stage.prepare()
    assert stage.accept() == "applied"
    stage.target.epoch = stage.rig.row_of(stage.owner).epoch
    assert begin(stage.rig, stage.target) == "applied"


def test_no_client_says_that_its_user_is_idle() -> None:
    """No event can carry this reason."""
    assert "user_idle" not in str(PAYLOADS["session_terminated"].__annotations__["reason"])
    rig, agent = waiting()
    assert rig.send(agent, "session_terminated", reason="timeout_cleanup") == "rejected processor_only"


def test_a_session_without_turns_is_as_it_was() -> None:
    rig, agent = started()
    for _ in range(2):
        for phase in ("updating", "persisting", "processing"):
            assert rig.send(agent, "session_phase_changed", phase=phase) == "applied"
    row = rig.row_of(agent)
    assert (row.exchanges, row.turn_by) == (0, 0)
    assert rig.advance(BUDGET_MS) == ["T06 inactive"]
