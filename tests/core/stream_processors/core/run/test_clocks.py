"""The clock of a run: to the millisecond, after outages, and after repairs of the clock."""

import pytest

from sessionary.schemas.ids import run_key
from sessionary.schemas.limits import RUN_SILENCE_MS
from sessionary.schemas.records import FinishedRun, RunState, RunTombstone
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.schemas.types import ClockRepair, ErrorInfo, Limits
from sessionary.stream_processors.core.run.rows import RUN_TOMBSTONE_MS, repair_run_times, run_deadline, run_due_ms
from sessionary.stream_processors.core.tombstones import DAY_MS
from tests.core.fold_rig import FINISHED_RUN_MS
from tests.core.stream_processors.core.run.run_rig import RunRig
from tests.support.event_factory import TICK

LIMITS = Limits(idle_ms=10**9, max_duration_ms=10**12, attached_run_ms=20_000)


def open_run(rig: RunRig, run_id: str = "r1") -> RunState:
    row = rig.found(run_id)
    assert isinstance(row, RunState)
    return row


def test_an_attached_run_fails_at_its_limit_and_not_before() -> None:
    rig = RunRig(limits=LIMITS)
    rig.begin()
    due = open_run(rig).due_at
    assert due == rig.at + 20_000
    for _ in range(3):
        rig.leap(4_000)
        assert rig.say("run_paused") == "applied"
        assert rig.say("run_resumed") == "applied"
    assert open_run(rig).due_at == due
    rig.leap(7_999)
    assert open_run(rig).state == "running"
    rig.leap(1)
    row = rig.found()
    assert isinstance(row, FinishedRun)
    message = "Attached run failed after 20s: its limit is over"
    assert (row.error, row.entered_at) == (ErrorInfo("retryable", "attached_limit", message), rig.at)
    (reported,) = rig.reported()
    assert (reported.run_id, reported.from_run_state, reported.to_run_state) == ("r1", "running", "failed")
    assert (reported.due_at, reported.fired_at, reported.occurred_at) == (due * 1_000, rig.at * 1_000, due * 1_000)
    assert (reported.reason_code, reported.reason, reported.event_type) == ("attached_limit", message, "run_failed")
    assert (reported.from_state, reported.to_state, reported.user_id) == ("Active", "Active", "u1")
    assert rig.row_of(rig.agent).audit_seq == reported.audit_seq
    assert rig.open_ids() == []
    assert rig.say("message_appended") == "rejected illegal_transition"
    assert rig.say("run_resumed") == "applied"


def test_a_queued_run_has_no_limit_but_silence() -> None:
    rig = RunRig(limits=LIMITS)
    assert rig.say("run_queued", mode="attached") == "applied"
    rig.leap(40_000)
    row = open_run(rig)
    assert run_deadline(row) == (
        *(row.last_event_at + RUN_SILENCE_MS, "run_silent"),
        "Run failed after 86400s: nothing was heard of it",
    )


@pytest.mark.parametrize(("early_ms", "state"), [(1, "running"), (0, "failed")])
def test_a_silent_detached_run_is_given_up_a_day_after_the_end_of_an_outage(early_ms: int, state: str) -> None:
    rig = RunRig(limits=LIMITS)
    rig.begin("d1", "detached")
    rig.jump(RUN_SILENCE_MS - 20_000)  # an outage: silence is measured from its end on
    end = rig.at
    assert run_due_ms(open_run(rig, "d1"), end) == end + RUN_SILENCE_MS
    rig.leap(30_000)
    assert rig.found("d1").state == "running"
    due = rig.fold.deadline_ms(open_run(rig, "d1"))
    assert due == end + RUN_SILENCE_MS
    position = rig.fold.position
    rig.fold.load_position(position._replace(clock_ms=due - 4_000))
    rig.at = due - early_ms
    rig.append(None, TICK)
    assert rig.found("d1").state == state


def test_an_outage_postpones_no_limit() -> None:
    rig = RunRig(limits=LIMITS)
    rig.begin()
    row = open_run(rig)
    assert run_due_ms(row, row.last_event_at + 10**6) == row.due_at


def test_a_finished_run_vanishes_after_thirty_days() -> None:
    rig = RunRig(limits=LIMITS)
    rig.begin(input_json="x" * 2_000)
    assert rig.say("run_completed", result_json="1") == "applied"
    assert (rig.fold.live, rig.fold.vanishing) == (1, 1)
    rig.jump(FINISHED_RUN_MS - 1)
    assert isinstance(rig.run(), FinishedRun)
    rig.at += 1
    rig.append(None, TICK)
    assert rig.fold.rows[run_key(*rig.agent.key, "r1")] == RunTombstone(rig.at + RUN_TOMBSTONE_MS)
    assert (rig.fold.vanishing, rig.fold.unpacked, rig.fold.tombstones) == (1, 0, 1)
    assert rig.say("run_running") == "rejected unknown_run"
    rig.jump(RUN_TOMBSTONE_MS + DAY_MS)
    assert run_key(*rig.agent.key, "r1") not in rig.fold.rows
    assert rig.fold.vanishing == rig.fold.tombstones == 0


def test_for_how_long_a_finished_run_is_kept_is_a_setting_of_the_rules_that_it_began_by() -> None:
    rig = RunRig(limits=LIMITS)
    rig.begin("before")
    rig.activate(NEWEST_RULES._replace(finished_run_days=3))
    rig.begin("after")
    for run_id in ("before", "after"):
        assert rig.say("run_completed", run_id, result_json="1") == "applied"
    rig.jump(3 * DAY_MS - 1)
    assert [type(rig.run(run_id)) for run_id in ("before", "after")] == [FinishedRun, FinishedRun]
    rig.jump(1_000)
    assert [type(rig.run(run_id)) for run_id in ("before", "after")] == [FinishedRun, type(None)]
    rig.jump(FINISHED_RUN_MS)
    assert rig.run("before") is None


def test_a_repaired_clock_moves_the_times_of_an_open_run() -> None:
    rig = RunRig(limits=LIMITS)
    rig.begin()
    row = open_run(rig)
    at = rig.at
    forward = ClockRepair(1, 0, at + 50_000, 45_000, 0)
    moved = repair_run_times(row, (forward,))
    assert (moved.last_event_at, moved.due_at) == (at + 45_000, at + 65_000)
    assert repair_run_times(moved, (forward,)) is moved
    back = repair_run_times(row, (ClockRepair(1, 0, at - 50_000, 0, 60_000),))
    assert (back.created_at, back.entered_at, back.last_event_at) == (at - 50_000,) * 3
    assert back.due_at == at - 30_000


def test_a_revived_run_finishes_and_vanishes_once() -> None:
    rig = RunRig(limits=LIMITS)
    rig.begin()
    assert rig.say("run_failed", error=ErrorInfo("retryable", "c", "m")) == "applied"
    assert rig.say("run_resumed") == "applied"
    assert (rig.fold.live, rig.fold.vanishing) == (2, 0)
    assert rig.say("run_cancelled") == "applied"
    rig.jump(FINISHED_RUN_MS)
    assert isinstance(rig.fold.rows[run_key(*rig.agent.key, "r1")], RunTombstone)
    assert rig.fold.vanishing == rig.fold.tombstones == 1


def test_the_id_of_a_run_may_be_used_again_once_it_vanished_and_not_before() -> None:
    rig = RunRig(limits=Limits(model_ms=10**12, idle_ms=10**12, max_duration_ms=10**12, override=True))
    again = {"mode": "detached", "input_json": None, "plan_json": None}
    rig.begin("d1", "detached")
    assert rig.say("run_completed", "d1") == "applied"
    ends = rig.found("d1").entered_at + FINISHED_RUN_MS
    rig.at = ends - 1
    assert rig.say("run_started", "d1", **again) == "rejected illegal_transition"
    rig.at += 1
    assert rig.say("run_running", "d1", progress=None) == "rejected unknown_run"
    assert isinstance(rig.fold.rows[run_key(*rig.agent.key, "d1")], RunTombstone)
    assert rig.say("run_started", "d1", **again) == "applied"
    assert open_run(rig, "d1").run_seq == 1
    assert (rig.fold.vanishing, rig.fold.tombstones) == (0, 0)


def test_it_is_known_since_when_attached_runs_hold_connections_open() -> None:
    rig = RunRig()
    began = rig.at
    rig.begin("a1")
    rig.at += 1_000
    rig.begin("a2")
    rig.begin("d1", "detached")
    assert rig.say("run_queued", "q1", mode="attached") == "applied"
    since = {run_key(*rig.agent.key, "a1"): began, run_key(*rig.agent.key, "a2"): began + 1_000}
    assert rig.fold.tally.open_since_ms == since
    rig.fold.finish_loading()
    rig.fold.tally.count_waiting(rig.fold.peek_row, 100)
    assert rig.fold.tally.open_since_ms == since
    assert rig.say("run_paused", "a1") == "applied"
    assert rig.say("run_completed", "a2") == "applied"
    assert rig.fold.tally.open_since_ms == {run_key(*rig.agent.key, "a1"): began}
    assert rig.say("run_cancelled", "a1") == "applied"
    assert rig.fold.tally.open_since_ms == {}
