"""A call without an outcome in time: what becomes of it, its run and the audit trail."""

from typing import Any
from unittest.mock import patch

import pytest

from sessionary.schemas.ids import run_key
from sessionary.schemas.records import Tombstone
from sessionary.schemas.types import ClockRepair, ErrorInfo
from sessionary.stream_processors.core.children.call import CallLabel, CallRows
from sessionary.stream_processors.core.model import LogRecord
from tests.core.fold_rig import FINISHED_RUN_MS
from tests.core.stream_processors.core.child_rig import FATAL, LIMIT_MS, RETRYABLE, UNCLEAR, ChildRig
from tests.support.event_factory import TICK


def test_a_call_without_a_side_effect_may_be_tried_again() -> None:
    rig = ChildRig()
    (reported,) = rig.lose(side_effect=False)
    row = rig.ended()
    assert (row.state, row.error, row.resolved_by, row.entered_at) == ("unknown", None, None, rig.at)
    assert (rig.open_run().state, rig.open_run().unresolved_calls) == ("running", 0)
    assert (reported.kind, reported.event_type, reported.event_id) == ("tool_call", "tool_call_unknown", None)
    assert (reported.from_state, reported.to_state, reported.reason_code) == ("Active", "Active", "tool_call_limit")
    assert reported.reason == "Tool call unknown after 1s: no outcome of pay was reported within its limit"
    assert (reported.run_id, reported.tool_name, reported.idem_key) == ("r1", "pay", "k")
    assert (reported.from_call_state, reported.to_call_state) == ("running", "unknown")
    assert (reported.due_at, reported.fired_at, reported.user_id) == (rig.at * 1_000, rig.at * 1_000, "u1")
    assert reported.audit_seq == rig.row_of(rig.agent).audit_seq
    assert rig.call("started", 1, side_effect=False) == "rejected invalid_value"
    assert rig.call("started", 2, side_effect=True) == "rejected call_unresolved"
    assert rig.call("started", 2, side_effect=False) == "applied"
    assert rig.running().try_number == 2


def test_an_unknown_call_with_a_side_effect_holds_its_run_until_it_is_resolved() -> None:
    rig = ChildRig()
    heard = rig.open_run().last_event_at
    call, run = rig.lose()
    assert [call.kind, run.kind, run.audit_seq - call.audit_seq] == ["tool_call", "run", 1]
    assert (run.event_type, run.from_run_state, run.to_run_state) == ("run_paused", "running", "paused")
    assert (run.reason_code, run.reason) == ("call_unresolved", "Run paused: the outcome of pay is unknown")
    assert (run.due_at, run.fired_at) == (None, None)
    row = rig.open_run()
    assert (row.state, row.reason_code, row.unresolved_calls, row.entered_at) == (
        *("paused", "call_unresolved", 1, rig.at),
    )
    assert row.last_event_at == heard
    assert rig.say("run_resumed") == "rejected call_unresolved"
    assert rig.call("started", 2, side_effect=False) == "rejected illegal_transition"
    rig.at += 5
    assert rig.resolve(result_json="7") == "applied"
    done = rig.ended()
    assert (done.state, done.result_json, done.resolved_by, done.entered_at) == ("succeeded", "7", "eve", rig.at)
    (reported,) = rig.audits()
    assert (reported.kind, reported.event_type, reported.reason_code) == ("run", "run_resumed", "call_resolved")
    assert reported.reason == "Run resumed: the outcome of all its calls is known"
    assert reported.event_id is not None
    row = rig.open_run()
    assert (row.state, row.reason_code, row.unresolved_calls, row.entered_at) == (
        *("running", "call_resolved", 0, rig.at),
    )
    assert row.last_event_at == rig.at


def test_a_resolution_that_found_no_effect_lets_the_call_be_tried_again() -> None:
    rig = ChildRig()
    rig.lose()
    assert rig.resolve("UNKNOWN") == "rejected invalid_value"
    assert rig.resolve("failed", tool_name="other") == "rejected invalid_value"
    assert rig.resolve("failed", result_json="1") == "applied"
    row = rig.ended()
    assert row.error == ErrorInfo("retryable", "resolved_failed", "eve found that the call had no effect")
    assert (row.state, row.resolved_by, row.result_json) == ("failed", "eve", None)
    assert rig.open_run().state == "running"
    assert rig.call("started", 2) == "applied"


@pytest.mark.parametrize(("event", "fields"), [("succeeded", {"result_json": "1"}), ("failed", {"error": FATAL})])
def test_the_caller_may_answer_late(event: str, fields: dict[str, Any]) -> None:
    rig = ChildRig()
    rig.lose()
    assert rig.call(event, 2, **fields) == "rejected invalid_value"
    if event == "failed":
        assert rig.call(event, error=UNCLEAR) == "rejected missing_error_class"
    assert rig.call(event, **fields) == "applied"
    assert (rig.ended().state, rig.ended().resolved_by) == (event, None)
    assert (rig.open_run().state, rig.open_run().unresolved_calls) == ("running", 0)
    assert rig.resolve() == "rejected illegal_transition"


def test_a_run_waits_for_all_of_its_unknown_calls() -> None:
    rig = ChildRig()
    assert rig.call("started", idem_key="other") == "applied"
    rig.lose()
    assert (rig.open_run().state, rig.open_run().unresolved_calls) == ("paused", 2)
    assert [record.kind for record in rig.audits()] == ["tool_call", "run", "tool_call"]
    assert rig.resolve() == "applied"
    assert (rig.open_run().state, rig.open_run().unresolved_calls) == ("paused", 1)
    assert rig.say("run_resumed") == "rejected call_unresolved"
    assert rig.resolve(idem_key="other") == "applied"
    assert rig.open_run().state == "running"


def test_a_run_that_was_paused_stays_so() -> None:
    rig = ChildRig()
    assert rig.call("started") == "applied"
    assert rig.say("run_paused") == "applied"
    rig.leap(LIMIT_MS)
    assert [record.kind for record in rig.audits()] == ["tool_call"]
    assert (rig.open_run().reason_code, rig.open_run().unresolved_calls) == ("paused", 1)
    assert rig.resolve() == "applied"
    assert rig.audits() == []
    assert (rig.open_run().state, rig.open_run().unresolved_calls) == ("paused", 0)
    assert rig.say("run_resumed") == "applied"


@pytest.mark.parametrize(("mode", "state"), [("attached", "paused"), ("detached", "running")])
def test_an_attached_run_goes_on_only_in_an_active_session(mode: str, state: str) -> None:
    rig = ChildRig(mode)
    rig.lose()
    assert rig.send(rig.agent, "session_paused") == "applied"
    assert rig.resolve() == "applied"
    assert (rig.open_run().state, rig.open_run().unresolved_calls) == (state, 0)
    if state == "paused":
        assert rig.send(rig.agent, "session_resumed") == "applied"
        assert rig.say("run_resumed") == "applied"


def test_a_failed_run_is_not_resumed_before_its_calls_are_resolved() -> None:
    rig = ChildRig()
    rig.lose()
    assert rig.say("run_failed", error=FATAL) == "applied"
    assert rig.finished_run().unresolved_calls == 1
    assert rig.say("run_resumed", actor="eve") == "rejected call_unresolved"
    before = rig.finished_run()
    assert rig.resolve() == "applied"
    assert rig.finished_run() == before._replace(run_seq=before.run_seq + 1, last_event_at=rig.at, unresolved_calls=0)
    assert rig.say("run_resumed", actor="eve") == "applied"
    assert rig.open_run().state == "running"


def test_a_call_of_a_session_holds_nothing() -> None:
    rig = ChildRig()
    (reported,) = rig.lose(None)
    assert (reported.kind, reported.run_id) == ("tool_call", None)
    assert (rig.open_run().state, rig.open_run().unresolved_calls) == ("running", 0)
    assert rig.call("started", 2, None, side_effect=False) == "rejected call_unresolved"
    assert rig.resolve(run_id=None) == "applied"
    assert rig.ended(None).resolved_by == "eve"


def test_calls_are_counted_by_state() -> None:
    rig = ChildRig()
    rig.lose()
    assert rig.call("started", run_id=None, idem_key="live") == "applied"
    counts = rig.fold.tally.counts
    assert (counts[CallLabel("unknown")], counts[CallLabel("running")]) == (1, 1)
    rig.fold.finish_loading()
    rig.fold.tally.count_waiting(rig.fold.peek_row, 100)
    assert rig.fold.tally.counts == +counts


def test_the_calls_of_a_run_vanish_with_it_and_those_of_a_session_with_that() -> None:
    rig = ChildRig()
    assert rig.call("started", limit_ms=10**12) == "applied"
    assert rig.call("started", run_id=None, limit_ms=10**12) == "applied"
    assert rig.call("started", run_id=None, idem_key="done") == "applied"
    assert rig.call("succeeded", run_id=None, idem_key="done", result_json="1" * 2_000) == "applied"
    assert rig.say("run_completed") == "applied"
    assert rig.fold.live == 3
    assert rig.send(rig.agent, "session_terminated", reason="closed") == "applied"
    session = rig.agent.key.encoded()
    while not isinstance(rig.fold.rows.get(session), Tombstone):
        rig.leap(4_000)
    assert rig.call_row(None) is rig.call_row(None, "done") is None
    assert rig.fold.children(session) == []
    gone = {written[1] for written in rig.written if written[2] is None}
    assert gone >= {rig.call_key(None), rig.call_key(None, "done")}
    assert rig.fold.live == 1
    rig.fold.load_position(rig.fold.position._replace(clock_ms=rig.at + FINISHED_RUN_MS))
    rig.at += FINISHED_RUN_MS
    rig.append(None, TICK)
    assert rig.call_row() is None
    assert rig.run() is None
    assert (rig.fold.live, rig.fold.unpacked) == (0, 0)
    assert +rig.fold.tally.counts == {}


def test_after_its_session_was_archived_a_call_becomes_unknown_without_a_record() -> None:
    rig = ChildRig()
    assert rig.call("started", limit_ms=10**7) == "applied"
    assert rig.say("run_completed") == "applied"
    assert rig.send(rig.agent, "session_terminated", reason="closed") == "applied"
    while not isinstance(rig.fold.rows.get(rig.agent.key.encoded()), Tombstone):
        rig.leap(4_000)
    grave = rig.fold.rows[rig.agent.key.encoded()]
    rig.fold.load_position(rig.fold.position._replace(clock_ms=rig.running().due_at - 1_000))
    rig.at = rig.running().due_at
    rig.append(None, TICK)
    assert rig.ended().state == "unknown"
    assert rig.finished_run().unresolved_calls == 1
    assert rig.audits() == []
    assert rig.fold.rows[rig.agent.key.encoded()] == grave


def test_a_run_that_comes_again_has_no_calls_of_before() -> None:
    rig = ChildRig()
    assert rig.call("started") == "applied"
    assert rig.call("succeeded") == "applied"
    assert rig.say("run_completed") == "applied"
    gone = rig.finished_run().entered_at + FINISHED_RUN_MS
    rig.fold.load_position(rig.fold.position._replace(clock_ms=gone - 4_000))
    key = rig.agent.key.encoded()
    rows = rig.fold.rows[key]._replace(entered_at=gone, last_event_at=gone, last_work_at=gone, created_at=gone)
    rig.fold.rows[key] = rows
    rig.at = gone
    fields = {"mode": "detached", "input_json": None, "plan_json": None}
    started = rig.agent.event_bytes("run_started", {"run_id": "r1"}, **fields)
    work = {"tool_call_id": "id", "tool_name": "pay", "idem_key": "k2", "try_number": 1}
    called = rig.agent.event_bytes("tool_call_started", {"run_id": "r1"}, **work)
    outcome = rig.append_batch(
        *(LogRecord(rig.offset + n, rig.at, key, value) for n, value in enumerate((started, called)))
    )
    assert outcome.rejections == []
    assert outcome.rows[rig.call_key()] is None
    assert rig.fold.children(run_key(*rig.agent.key, "r1")) == [rig.call_key(idem_key="k2")]


def test_a_batch_that_is_void_leaves_calls_as_before() -> None:
    rig = ChildRig()
    rows, children = dict(rig.fold.rows), rig.fold.children(run_key(*rig.agent.key, "r1"))
    batch = rig.fold.begin()
    fields = {"tool_name": "pay", "idem_key": "k", "try_number": 1}
    value = rig.agent.event_bytes("tool_call_started", {"run_id": "r1"}, **fields)
    assert batch.apply(LogRecord(rig.offset, rig.at, rig.agent.key.encoded(), value))
    assert rig.call_key() in batch.rows
    rig.fold.begin()
    assert (rig.fold.rows, rig.fold.children(run_key(*rig.agent.key, "r1"))) == (rows, children)


@pytest.mark.parametrize("method", ["estimate_bytes"])
def test_failing_rows_of_calls_leave_all_rows_as_before(method: str) -> None:
    rig = ChildRig()
    rig.lose()
    rows, live = dict(rig.fold.rows), rig.fold.live

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a fault of the rows")

    with patch.object(CallRows, method, fail):
        assert rig.call("failed", error=RETRYABLE) == "rejected internal_error"
    assert (dict(rig.fold.rows), rig.fold.live) == (rows, live)


def test_a_repair_of_the_clock_leaves_a_call_its_limit() -> None:
    rig = ChildRig()
    assert rig.call("started") == "applied"
    row, rows = rig.running(), CallRows()
    back = [ClockRepair(1, 0, row.started_at - 10_000, 0, 10_000)]
    repaired = rows.repair_times(row, back)
    assert repaired == row._replace(
        started_at=row.started_at - 10_000, due_at=row.started_at - 10_000 + LIMIT_MS, clock_repair=1
    )
    assert rows.repair_times(repaired, back) is repaired
    forward = rows.repair_times(row, [ClockRepair(1, 0, row.started_at + 50_400, 50_000, 0)])
    assert forward == row._replace(
        started_at=row.started_at + 50_000, due_at=row.started_at + 50_000 + LIMIT_MS, clock_repair=1
    )
