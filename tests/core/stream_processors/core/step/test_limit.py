"""An attempt at a step that may take only so long: its clock, and what comes of it."""

from typing import Any
from unittest.mock import patch

import pytest

from sessionary.schemas.ids import run_key, step_key
from sessionary.schemas.limits import LIMIT_MAX
from sessionary.schemas.records import Tombstone
from sessionary.schemas.types import ClockRepair, ErrorInfo, Limits
from sessionary.stream_processors.core.children.step import StepRows
from tests.core.fold_rig import FINISHED_RUN_MS
from tests.core.stream_processors.core.child_rig import LIMIT_MS, RETRYABLE, ChildRig
from tests.support.event_factory import TICK


def test_an_attempt_over_its_limit_fails_alone_and_its_reason_names_step_and_limit() -> None:
    rig = ChildRig()
    assert rig.step("started", limit_ms=LIMIT_MS, input_json="[1]") == "applied"
    timed = rig.timed_step()
    assert (timed.due_at, timed.limit_ms, timed.attempt) == (rig.at + LIMIT_MS, LIMIT_MS, 1)
    rig.leap(LIMIT_MS)
    reason = "Step failed after 1s: no end of a was reported within its model limit"
    row = rig.found_step()
    assert (row.state, row.attempt, row.step_id, row.input_json) == ("failed", 1, "id-1", "[1]")
    assert (row.started_at, row.entered_at) == (timed.started_at, rig.at)
    assert row.error == ErrorInfo("retryable", "model_limit", reason)
    (reported,) = rig.audits()
    assert (reported.kind, reported.event_type, reported.reason_code, reported.reason) == (
        "step",
        "step_failed",
        "model_limit",
        reason,
    )
    assert (reported.run_id, reported.step_name, reported.step_attempt) == ("r1", "a", 1)
    assert (reported.from_step_state, reported.to_step_state) == ("running", "failed")
    assert (reported.from_state, reported.to_state, reported.event_id, reported.user_id) == (
        "Active",
        "Active",
        None,
        "u1",
    )
    assert (reported.occurred_at, reported.due_at, reported.fired_at) == (*[timed.due_at * 1_000] * 2, rig.at * 1_000)
    session = rig.row_of(rig.agent)
    assert (session.state, session.audit_seq) == ("Active", reported.audit_seq)
    assert session.last_event_at == timed.started_at  # a clock is no sign of life
    assert rig.open_run().state == "running"


def test_a_step_over_its_share_may_be_retried_and_what_is_said_of_it_late_is_rejected() -> None:
    rig = ChildRig()
    assert rig.step("started", limit_ms=LIMIT_MS) == "applied"
    rig.leap(LIMIT_MS)
    failed = rig.found_step()
    assert rig.step("succeeded") == "rejected illegal_transition"
    assert rig.step("failed", error=RETRYABLE) == "rejected illegal_transition"
    assert rig.found_step() == failed
    assert rig.step("started", 2, limit_ms=LIMIT_MS) == "applied"
    assert rig.timed_step().attempt == 2
    assert rig.step("succeeded", 2, output_json="7") == "applied"
    rig.leap(2 * LIMIT_MS)
    assert (rig.found_step().state, rig.found_step().output_json, rig.audits()) == ("succeeded", "7", [])


def test_only_the_silence_of_the_whole_budget_times_the_session_out() -> None:
    """Each retry is a sign of life; model 3 s, tool 2 s and network 1 s are a budget of 6 s."""
    rig = ChildRig("attached", limits=Limits(model_ms=3_000, tool_ms=2_000, network_ms=1_000, override=True))
    for attempt in range(1, 5):
        assert rig.step("started", attempt, limit_ms=3_000) == "applied"
        rig.leap(4_000)
        assert (rig.found_step().state, rig.row_of(rig.agent).state) == ("failed", "Active")
    rig.leap(1_999)
    assert rig.row_of(rig.agent).state == "Active"
    rig.leap(1)
    assert rig.row_of(rig.agent).state == "Timeout"
    assert [record.reason_code for record in rig.audits()] == ["inactive", "connection_lost"]


def test_an_attempt_without_a_limit_has_no_timer() -> None:
    rig = ChildRig()
    live, timers = rig.fold.live, len(rig.fold.timers.keys())
    assert rig.step("started") == "applied"
    assert (rig.fold.live, len(rig.fold.timers.keys())) == (live, timers)
    assert rig.step("started", 2, limit_ms=LIMIT_MS) == "applied"
    assert (rig.fold.live, len(rig.fold.timers.keys())) == (live + 1, timers + 1)
    assert rig.step("failed", 2, error=RETRYABLE) == "applied"
    assert rig.fold.live == live
    rig.leap(LIMIT_MS)
    assert (len(rig.fold.timers.keys()), rig.found_step().error) == (timers, RETRYABLE)


@pytest.mark.parametrize("limit_ms", [0, -1, LIMIT_MAX + 1])
def test_a_limit_has_bounds(limit_ms: int) -> None:
    rig = ChildRig()
    assert rig.step("started", limit_ms=limit_ms) == "rejected invalid_value"
    assert rig.step_row() is None
    assert rig.step("started", limit_ms=LIMIT_MAX) == "applied"


def test_an_interrupted_attempt_is_followed_by_one_with_a_limit_of_its_own() -> None:
    rig = ChildRig()
    assert rig.step("started", limit_ms=LIMIT_MS) == "applied"
    rig.at += 500
    assert rig.step("started", 2, limit_ms=5_000) == "applied"
    rig.leap(4_999)
    assert rig.timed_step().attempt == 2
    rig.at += 1
    rig.append(None, TICK)
    assert rig.found_step().state == "failed"
    assert rig.step("started", 3) == "applied"
    rig.leap(60_000)
    assert rig.found_step().state == "running"


def test_the_limit_passes_while_the_run_is_paused_or_over() -> None:
    rig = ChildRig()
    for event in ("run_paused", "run_cancelled"):
        attempt = 1 if event == "run_paused" else 2
        assert rig.step("started", attempt, limit_ms=LIMIT_MS) == "applied"
        assert rig.say(event) == "applied"
        rig.leap(LIMIT_MS)
        assert (rig.found_step().state, rig.found_step().attempt) == ("failed", attempt)
        if event == "run_paused":
            assert rig.say("run_resumed") == "applied"


def test_after_its_session_was_archived_a_step_fails_without_a_record() -> None:
    rig = ChildRig()
    assert rig.step("started", limit_ms=10**7) == "applied"
    assert rig.say("run_completed") == "applied"
    assert rig.send(rig.agent, "session_terminated", reason="closed") == "applied"
    while not isinstance(rig.fold.rows.get(rig.agent.key.encoded()), Tombstone):
        rig.leap(4_000)
    rig.fold.load_position(rig.fold.position._replace(clock_ms=rig.timed_step().due_at - 1_000))
    rig.at = rig.timed_step().due_at
    rig.append(None, TICK)
    assert (rig.found_step().state, rig.audits()) == ("failed", [])


def test_a_step_with_a_limit_vanishes_with_its_run() -> None:
    rig = ChildRig()
    live = rig.fold.live
    assert rig.step("started", limit_ms=10**12, input_json="1" * 2_000) == "applied"
    assert rig.say("run_completed") == "applied"
    rig.fold.load_position(rig.fold.position._replace(clock_ms=rig.at + FINISHED_RUN_MS - 1_000))
    rig.at += FINISHED_RUN_MS
    rig.append(None, TICK)
    assert rig.step_row() is None
    assert rig.fold.live == live - 1  # the run's is gone too
    assert rig.fold.children(run_key(*rig.agent.key, "r1")) == []


def test_a_large_input_of_a_step_with_a_limit_is_a_record_of_its_own() -> None:
    rig = ChildRig()
    assert rig.step("started", limit_ms=LIMIT_MS, input_json="1" * 2_000) == "applied"
    key = step_key(run_key(*rig.agent.key, "r1"), "a")
    assert {written[1] for written in rig.written if (written[1] or b"").startswith(key)} == {key, key + b"\x00content"}
    rig.leap(LIMIT_MS)
    assert rig.found_step().input_json == "1" * 2_000


def test_the_timer_of_an_attempt_is_there_again_once_the_rows_are_loaded() -> None:
    rig = ChildRig()
    assert rig.step("started", limit_ms=LIMIT_MS) == "applied"
    live = rig.fold.live
    rig.fold.finish_loading()
    assert rig.fold.live == live
    rig.leap(LIMIT_MS)
    assert rig.found_step().state == "failed"


def test_a_repair_of_the_clock_leaves_an_attempt_its_limit() -> None:
    rig = ChildRig()
    assert rig.step("started", limit_ms=LIMIT_MS) == "applied"
    row: Any = rig.timed_step()
    rows: Any = StepRows()
    ahead = ClockRepair(1, 9, row.started_at + 50_000, shift_ms=40_000, back_ms=0)
    moved = rows.repair_times(row, [ahead])
    assert (moved.started_at, moved.due_at) == (row.started_at + 40_000, row.due_at + 40_000)
    assert rows.repair_times(moved, [ahead]) is moved
    back = ClockRepair(1, 9, row.started_at - 5_000, shift_ms=0, back_ms=5_000)
    moved = rows.repair_times(row, [back])
    assert (moved.started_at, moved.due_at) == (row.started_at - 5_000, row.started_at - 5_000 + LIMIT_MS)
    (after,) = rows.fire(b"", row, rig.fold.begin(), row.due_at).writes.values()
    assert rows.repair_times(after, [ahead]) is after


@pytest.mark.parametrize("method", ["estimate_bytes"])
def test_failing_rows_of_steps_leave_all_rows_as_before(method: str) -> None:
    rig = ChildRig()
    assert rig.step("started", limit_ms=LIMIT_MS) == "applied"
    rows, live = dict(rig.fold.rows), rig.fold.live

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a fault of the rows")

    with patch.object(StepRows, method, fail):
        assert rig.step("failed", error=RETRYABLE) == "rejected internal_error"
    assert (dict(rig.fold.rows), rig.fold.live) == (rows, live)
