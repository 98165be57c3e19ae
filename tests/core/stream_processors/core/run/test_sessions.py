"""What a session's state means for its runs, and what a run means for its session."""

import pytest

from sessionary.schemas.records import FinishedRun, RunState, Tombstone
from sessionary.schemas.types import ErrorInfo, Limits
from sessionary.stream_processors.core.clock import NEVER_MS
from tests.core.stream_processors.core.run.run_rig import RunRig
from tests.support.event_factory import TICK


def time_out(rig: RunRig) -> None:
    """Bring the session to Timeout, within the step of a tick."""
    while rig.row_of(rig.agent).state == "Active":
        rig.leap(4_000)


def test_a_time_out_pauses_what_is_at_work_and_attached() -> None:
    rig = RunRig()
    rig.begin("detached", "detached")
    assert rig.say("run_queued", "queued", mode="attached") == "applied"
    rig.begin("working")
    assert rig.say("run_started", "started", mode="attached") == "applied"
    heard = rig.found("working").last_event_at
    time_out(rig)
    states = {name: rig.found(name).state for name in ("detached", "queued", "working", "started")}
    assert states == {"detached": "running", "queued": "queued", "working": "paused", "started": "paused"}
    row = rig.found("working")
    assert (row.reason_code, row.last_event_at, row.entered_at) == ("connection_lost", heard, rig.at)
    moved, *reported = rig.audits()
    assert moved.transition == "T06"
    assert [(one.run_id, one.from_run_state, one.to_run_state) for one in reported] == [
        ("working", "running", "paused"),
        ("started", "started", "paused"),
    ]
    assert [one.audit_seq - moved.audit_seq for one in reported] == [1, 2]
    first = reported[0]
    assert (first.kind, first.event_type, first.from_state, first.to_state) == ("run", "run_paused", *["Timeout"] * 2)
    assert (first.reason_code, first.reason) == ("connection_lost", "The session timed out: inactive")
    assert (first.due_at, first.fired_at, first.event_id, first.user_id) == (None, None, None, "u1")
    assert rig.row_of(rig.agent).audit_seq == reported[-1].audit_seq
    assert len(rig.open_ids()) == 4


def test_a_lost_connection_is_recorded_with_the_last_checkpoint_of_the_run() -> None:
    rig = RunRig(limits=Limits(grace_ms=60_000))
    rig.begin("a1")
    rig.begin("bare")
    for number in (1, 2):
        assert rig.say("checkpoint_saved", "a1", checkpoint_id=f"c{number}", processed_count=number) == "applied"
    rig.leap(60_000)
    paused = [(one.run_id, one.event_type, one.reason_code, one.checkpoint_id) for one in rig.reported()]
    assert paused == [
        ("a1", "run_paused", "connection_lost", "c2"),
        ("bare", "run_paused", "connection_lost", None),
    ]
    row = rig.found("a1")
    assert row.checkpoint is not None
    assert (row.checkpoint.processed_count, row.run_seq) == (2, 4)
    rig.leap(60_000)
    assert [(one.event_type, one.reason_code, one.checkpoint_id) for one in rig.reported()] == [
        ("run_failed", "session_ended", "c2"),
        ("run_failed", "session_ended", None),
    ]
    assert rig.found("a1").checkpoint == row.checkpoint


def test_a_time_out_of_an_agent_that_is_heard_is_no_lost_connection() -> None:
    rig = RunRig(limits=Limits(idle_ms=30_000))
    rig.begin("a1")
    while rig.row_of(rig.agent).state == "Active":
        rig.send(rig.agent, "heartbeat")
        rig.leap(4_000)
    moved, reported = rig.audits()
    assert (moved.reason_code, reported.reason_code) == ("idle", "session_timed_out")


def test_the_end_of_a_session_fails_its_attached_runs() -> None:
    rig = RunRig()
    rig.begin("a1")
    rig.begin("d1", "detached")
    assert rig.say("run_queued", "a2", mode="attached") == "applied"
    assert rig.send(rig.agent, "session_terminated", reason="completed") == "applied"
    for name in ("a1", "a2"):
        row = rig.found(name)
        assert isinstance(row, FinishedRun)
        assert row.error == ErrorInfo("retryable", "session_ended", "The session ended: completed")
        assert (row.state, row.reason_code, row.entered_at) == ("failed", "session_ended", rig.at)
    assert [one.run_id for one in rig.reported()] == ["a1", "a2"]
    assert rig.reported()[0].event_id == rig.audits()[0].event_id
    assert rig.open_ids() == ["d1"]
    assert rig.fold.deadline_ms(rig.row_of(rig.agent)) == NEVER_MS


def test_an_archive_clock_waits_for_open_runs() -> None:
    rig = RunRig()
    rig.begin("d1", "detached")
    assert rig.send(rig.agent, "session_terminated", reason="closed") == "applied"
    for _ in range(100):
        rig.leap(4_000)
    assert rig.row_of(rig.agent).state == "Terminated"
    assert rig.say("run_completed", "d1") == "applied"
    assert rig.row_of(rig.agent).open_runs == ()
    rig.append(None, TICK)
    assert isinstance(rig.fold.rows[rig.agent.key.encoded()], Tombstone)
    assert isinstance(rig.run("d1"), FinishedRun)
    assert rig.say("run_resumed", "d1") == "rejected session_archived"


@pytest.mark.parametrize("state", ["Paused", "Timeout", "Error", "Terminated"])
def test_a_detached_run_goes_on_outside_active(state: str) -> None:
    rig = RunRig()
    rig.begin("d1", "detached")
    rig.begin("a1")
    assert rig.say("run_queued", "dq", mode="detached") == "applied"
    if state == "Timeout":
        time_out(rig)
    else:
        end = {"Paused": "session_paused", "Error": "session_errored", "Terminated": "session_terminated"}[state]
        assert rig.send(rig.agent, end) == "applied"
    before, seq = rig.row_of(rig.agent), rig.found("d1").run_seq
    rig.at += 1_000
    assert rig.say("message_appended", "d1") == "applied"
    assert rig.say("tool_call_succeeded", "d1") == "applied"
    assert rig.say("run_paused", "d1") == "applied"
    assert rig.send(rig.agent, "step_skipped", {"run_id": "d1", "epoch": 0}) == "applied"
    assert rig.send(rig.agent, "step_started", {"run_id": "d1", "epoch": 9}) == "rejected future_epoch"
    after = rig.row_of(rig.agent)
    clocks = ("last_event_at", "last_work_at", "owner_heard_at", "entered_at", "state")
    assert {name: getattr(after, name) for name in clocks} == {name: getattr(before, name) for name in clocks}
    assert after.producers[0].last_seq == rig.agent.seq
    assert (rig.found("d1").run_seq, rig.found("d1").last_event_at) == (seq + 4, rig.at)
    rejection = "rejected late" if state == "Timeout" else "rejected illegal_transition"
    assert rig.say("message_appended", "a1") == rejection
    assert rig.say("run_started", "new", mode="detached") == rejection
    assert rig.say("run_started", "dq", mode="detached") == "applied"
    assert rig.say("message_appended", "unknown") == rejection
    assert rig.say("run_cancelled", "dq") == "applied"
    assert rig.say("run_failed", "d1", error=ErrorInfo("retryable", "c", "m")) == "applied"
    assert rig.say("run_resumed", "d1") == rejection
    assert rig.say("message_appended", "d1") == "rejected illegal_transition"


def test_in_active_an_event_of_a_detached_run_is_never_stale() -> None:
    rig = RunRig()
    rig.begin("d1", "detached")
    rig.begin("a1")
    assert rig.send(rig.agent, "message_appended", {"run_id": "d1", "epoch": 0}) == "applied"
    assert rig.row_of(rig.agent).last_work_at == rig.at
    assert rig.send(rig.agent, "message_appended", {"run_id": "a1", "epoch": 0}) == "rejected stale_epoch"


def test_completions_of_an_attached_run_are_possible_while_the_session_is_held() -> None:
    rig = RunRig()
    rig.begin()
    assert rig.send(rig.agent, "session_paused") == "applied"
    rig.at += 1_000
    assert rig.say("tool_call_succeeded") == "applied"
    assert rig.row_of(rig.agent).last_work_at == rig.at == rig.found().last_event_at
    assert rig.say("tool_call_succeeded", "unknown") == "rejected unknown_run"
    assert rig.say("message_appended") == "rejected illegal_transition"


def test_a_clock_of_a_run_may_let_its_session_be_archived_with_the_same_record() -> None:
    rig = RunRig(limits=Limits(idle_ms=10**9))
    rig.begin("d1", "detached")
    assert rig.send(rig.agent, "session_terminated", reason="closed") == "applied"
    row = rig.found("d1")
    assert isinstance(row, RunState)
    due = rig.fold.deadline_ms(row)
    rig.fold.load_position(rig.fold.position._replace(clock_ms=due - 4_000))
    rig.at = due - 1
    rig.append(None, TICK)
    assert rig.run("d1") == row
    rig.at = due
    rig.append(None, TICK)
    assert rig.found("d1").reason_code == "run_silent"
    assert isinstance(rig.fold.rows[rig.agent.key.encoded()], Tombstone)
