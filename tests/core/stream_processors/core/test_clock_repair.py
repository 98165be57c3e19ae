"""A clock that an operator sets to the broker's time: no limit of a session ends early by it."""

from typing import Any

import pytest

from sessionary.schemas.codec import Decoder, encode_position, encode_record
from sessionary.schemas.records import SessionState
from sessionary.schemas.types import ClockRepair, Limits, PartitionDecision
from sessionary.stream_processors.core.clock import add_repair, believed_from
from sessionary.stream_processors.core.model import ClockSetting, LogRecord, SkippedOffsets
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.core.session.clocks import repair_times
from tests.core.oracle_rig import SETTINGS, OracleRig
from tests.support.event_factory import TICK, EventFactory
from tests.support.judges import JUDGE

DAY_MS, SECOND_MS, OUTAGE_GRACE_MS = 86_400_000, 1_000, 25_000
LIMITS = Limits(idle_ms=120_000, max_duration_ms=200_000, grace_ms=60_000, recovery_ms=40_000)
INIT_MS, BUDGET_MS = 15_000, 60_000


def started_rig(limits: Limits = LIMITS) -> tuple[OracleRig, EventFactory]:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent, limits=limits)
    return rig, agent


def leap(rig: OracleRig, ms: int) -> None:
    """Let one record be stamped ahead, so that the clock is."""
    rig.at += ms
    rig.tick()
    rig.at -= ms


def test_a_clock_that_is_ahead_is_set_back_and_says_so_in_the_audit_trail() -> None:
    rig, _ = started_rig()
    leap(rig, DAY_MS)
    rig.at += 3_000
    outcome = rig.set_clock()
    ((key, line),) = outcome.records_on("audit")
    assert (key, line.kind, line.event_type, line.reason_code) == (None, "decision", *["clock_repaired"] * 2)
    assert (line.actor, line.appended_at, line.gap_first, line.gap_last) == ("alice", rig.at * 1_000, None, None)
    former_ms = rig.at + DAY_MS - 3_000
    assert line.reason == (f"sessionary.events-0: clock set from {former_ms} to {rig.at} ms (-86,397.0 s): it leapt")
    position = outcome.position
    assert (position.clock_ms, position.outage_grace_until_ms) == (rig.at, rig.at + OUTAGE_GRACE_MS)
    assert position.clock_repairs == (ClockRepair(1, 0, rig.at, 0, DAY_MS - 3_000),)
    decided = PartitionDecision("clock_repaired", line.source_offset, None, None, rig.at, "alice")
    assert position.decisions == (decided,)
    assert Decoder().decode_record(encode_position(position)) == position
    assert outcome.counts[:4] == (0, 0, 0, 1)


def test_records_that_were_stamped_before_the_repair_do_not_move_the_clock() -> None:
    rig, agent = started_rig()
    rig.at += 20_000
    outcome = rig.set_clock(until_offset=6)
    ((_, line),) = outcome.records_on("audit")
    assert (line.gap_first, line.gap_last) == (4, 5)
    assert "the stamps of offsets 4 to 5 do not move it" in line.reason
    repaired_ms = rig.at
    rig.at += DAY_MS
    assert rig.send(agent, "heartbeat") == "applied"
    assert rig.row_of(agent).last_event_at == repaired_ms
    rig.tick()
    assert rig.fold.position.clock_ms == repaired_ms
    rig.at -= DAY_MS - SECOND_MS
    rig.tick()
    assert rig.fold.position.clock_ms == repaired_ms + SECOND_MS


@pytest.mark.parametrize("back", [True, False])
def test_who_falls_silent_times_out_a_whole_budget_after_the_repair(back: bool) -> None:
    rig, agent = started_rig()
    if back:
        leap(rig, DAY_MS)
        assert rig.send(agent, "heartbeat") == "applied"
        assert rig.row_of(agent).last_event_at == rig.at + DAY_MS
    rig.at += 50_000
    rig.set_clock()
    assert rig.fold.next_deadline_ms == rig.at + BUDGET_MS
    assert rig.advance(BUDGET_MS - 1) == []
    assert rig.advance(1) == ["T06 inactive"]


def reach(rig: OracleRig, agent: EventFactory, state: str) -> int:
    """Bring a session to a state; return its limit there, in ms."""
    if state == "Idle":
        rig.send(agent, "session_created", limits=LIMITS)
        return INIT_MS
    rig.start(agent, limits=LIMITS)
    if state == "Error":
        rig.send(agent, "session_errored")
        return 40_000
    assert rig.advance(BUDGET_MS) == ["T06 inactive"]
    return 60_000


@pytest.mark.parametrize("state", ["Idle", "Error", "Timeout"])
def test_what_is_left_of_a_limit_is_left_after_a_clock_is_set_forward(state: str) -> None:
    rig, agent = OracleRig(), EventFactory()
    limit_ms = reach(rig, agent, state)
    rig.advance(5_000)
    rig.at += DAY_MS  # the partition was halted, and its clock stood still
    rig.set_clock()
    left_ms = max(OUTAGE_GRACE_MS, limit_ms - 5_000)
    assert rig.advance(left_ms - 1) == []
    assert len(rig.advance(1)) == 1


def test_the_maximum_duration_is_as_long_as_it_was() -> None:
    rig, agent = started_rig()
    for _ in range(10):
        rig.advance(10_000)
        rig.send(agent, "session_activity")
    rig.at += DAY_MS
    rig.set_clock()
    for _ in range(9):
        assert rig.advance(10_000) == []
        rig.send(agent, "session_activity")
    assert rig.advance(9_999) == []
    assert rig.advance(1) == ["T06 max_duration"]


def test_a_pause_before_and_after_a_repair_takes_nothing_off_the_maximum_duration() -> None:
    for repaired_in in ("Active", "Paused"):
        rig, agent = started_rig()
        rig.advance(10_000)
        for state, event in (("Active", "session_paused"), ("Paused", "session_resumed")):
            if state == repaired_in:
                rig.at += DAY_MS
                rig.set_clock()
            assert rig.send(agent, event) == "applied"
        assert rig.row_of(agent).max_due_at == rig.at + 190_000


def test_a_resume_in_the_grace_period_is_not_rejected_for_the_time_of_the_leap() -> None:
    rig, agent = started_rig()
    assert rig.advance(BUDGET_MS) == ["T06 inactive"]
    rig.at += DAY_MS
    rig.set_clock()
    assert rig.send(agent, "session_resumed") == "applied"


def test_of_a_duration_that_began_while_the_clock_was_ahead_no_more_than_the_whole_is_left() -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.send(agent, "session_created", limits=LIMITS)
    leap(rig, DAY_MS)
    at, rig.at = rig.at, rig.at + DAY_MS
    for phase in ("validating", "connecting"):
        rig.send(agent, "session_phase_changed", phase=phase)
    rig.send(agent, "session_started")
    rig.at = at + 1_000
    rig.set_clock()
    assert rig.send(agent, "session_activity") == "applied"
    assert rig.row_of(agent).max_due_at == rig.at + 200_000


def test_what_was_heard_while_the_clock_was_ahead_was_heard_when_it_is_set_at_the_latest() -> None:
    rig, agent = started_rig()
    rig.at += DAY_MS
    rig.send(agent, "heartbeat")
    rig.at -= DAY_MS
    rig.set_clock()
    row = repair_times(rig.row_of(agent), rig.fold.position.clock_repairs)
    assert row.last_event_at == row.last_work_at == row.owner_heard_at == rig.at


def test_a_session_of_after_the_repair_has_its_own_times() -> None:
    rig, _ = started_rig()
    leap(rig, DAY_MS)
    rig.at += 1_000
    rig.set_clock()
    rig.advance(2_000)
    late = EventFactory("late")
    assert rig.send(late, "session_created", limits=LIMITS) == "applied"
    assert rig.row_of(late).clock_repair == 1
    assert rig.row_of(late).created_at == rig.at
    rig.at += DAY_MS
    rig.set_clock()
    assert rig.send(late, "session_phase_changed", phase="validating") == "applied"
    assert (rig.row_of(late).clock_repair, rig.row_of(late).created_at) == (2, rig.at)


@pytest.mark.parametrize("ahead_ms", [0, DAY_MS])
def test_a_new_owner_finds_the_same_deadlines(ahead_ms: int) -> None:
    rig, agent = started_rig()
    leap(rig, ahead_ms)
    rig.send(agent, "heartbeat")
    rig.at += 10_000
    position = rig.set_clock().position
    again = PartitionState(0, SETTINGS, Decoder(), JUDGE)
    again.load_position(position)
    again.load(agent.key.encoded(), Decoder().decode_record(encode_record(rig.row_of(agent))))
    again.finish_loading()
    assert again.next_deadline_ms == rig.fold.next_deadline_ms == rig.at + BUDGET_MS
    assert again.deadline_ms(rig.row_of(agent)) == rig.at + BUDGET_MS


def test_a_void_batch_leaves_clock_and_deadlines_as_they_were() -> None:
    rig, _ = started_rig()
    leap(rig, DAY_MS)
    before = rig.fold.position, rig.fold.next_deadline_ms
    batch = rig.fold.begin()
    batch.set_clock(ClockSetting(rig.at, 0, "why", "alice"))
    rig.fold.begin()
    rig.fold.merge(rig.fold.begin())
    assert (rig.fold.position._replace(batch_number=before[0].batch_number), rig.fold.next_deadline_ms) == before


def test_no_clock_is_set_amid_the_timers_of_a_record() -> None:
    setting = ClockSetting(1, 0, "why", "alice")
    few = OracleRig(settings=SETTINGS._replace(timers_max=1))
    for name in ("one", "two"):
        few.send(EventFactory(name), "session_created", limits=LIMITS)
    few.advance(INIT_MS - 1)
    tick = LogRecord(few.fold.position.next_offset, few.at + 1, None, TICK)
    batch = few.fold.begin()
    assert not batch.apply(tick)  # both sessions are due, and one timer goes into a batch
    with pytest.raises(ValueError, match="between two records"):
        batch.set_clock(setting)
    few.fold.merge(batch)
    assert not few.fold.may_repair_clock
    with pytest.raises(ValueError, match="between two records"):
        few.fold.begin().set_clock(setting)


def test_no_clock_is_set_after_a_record_that_moved_it_and_did_not_fit_into_the_batch() -> None:
    few = OracleRig(settings=SETTINGS._replace(timers_max=1))
    for name in ("one", "two"):
        few.send(EventFactory(name), "session_created", limits=LIMITS)
        few.at += SECOND_MS
    few.advance(INIT_MS - 2 * SECOND_MS - 1)
    offset, due_ms = few.fold.position.next_offset, few.at + 1
    batch = few.fold.begin()
    assert batch.apply(LogRecord(offset, due_ms, None, TICK))
    assert not batch.apply(LogRecord(offset + 3, due_ms + SECOND_MS, None, TICK))
    few.fold.merge(batch)
    position = few.fold.position
    assert (position.next_offset, position.clock_ms, position.outputs_written) == (offset + 3, due_ms + SECOND_MS, 0)
    assert not few.fold.may_repair_clock
    with pytest.raises(ValueError, match="between two records"):
        few.fold.begin().set_clock(ClockSetting(few.at, 0, "why", "alice"))


def test_a_clock_is_set_right_after_a_decision_that_folds_nothing() -> None:
    rig, _ = started_rig()
    leap(rig, DAY_MS)
    batch = rig.fold.begin()
    batch.skip_offsets(
        SkippedOffsets("log_truncation_accepted", rig.fold.position.next_offset, 0, "power loss", "alice", (), (2, 3))
    )
    rig.fold.merge(batch)
    assert (rig.fold.position.outputs_written, rig.fold.may_repair_clock) == (1, True)
    ((_, line),) = rig.set_clock().records_on("audit")
    assert (line.event_type, line.source_n) == ("clock_repaired", 1)
    assert not rig.fold.may_repair_clock
    with pytest.raises(ValueError, match="between two records"):
        rig.set_clock()
    rig.at += BUDGET_MS - 1
    rig.tick()
    assert rig.fold.position.clock_ms == rig.at


def state_of(**fields: Any) -> SessionState:
    rig, agent = started_rig()
    return rig.row_of(agent)._replace(**fields)


def test_eight_repairs_are_kept_and_an_older_row_is_never_due_earlier() -> None:
    repairs: tuple[ClockRepair, ...] = ()
    clock_ms = state_of().last_event_at
    for _ in range(10):
        clock_ms += 7_000
        repairs = add_repair(repairs, 5, clock_ms - 7_000, clock_ms)
    assert [repair.number for repair in repairs] == list(range(3, 11))
    assert believed_from(repairs) == 5
    assert believed_from(()) == 0
    for included in range(11):
        row = state_of(clock_repair=included)
        moved_ms = repair_times(row, repairs).last_event_at - row.last_event_at
        assert moved_ms >= 7_000 * (10 - included)
    assert repair_times(state_of(clock_repair=10), repairs).clock_repair == 10


def test_the_ninth_repair_adds_the_way_back_of_the_first_one_to_the_second() -> None:
    repairs: tuple[ClockRepair, ...] = ()
    for n in range(9):
        repairs = add_repair(repairs, 5, former_ms=100_000, clock_ms=100_000 - 2**n)
    assert [repair.number for repair in repairs] == list(range(2, 10))
    assert [repair.back_ms for repair in repairs] == [1 + 2, *(2**n for n in range(2, 9))]
    assert {repair.shift_ms for repair in repairs} == {0}
