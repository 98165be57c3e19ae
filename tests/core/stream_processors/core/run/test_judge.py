"""What events come to for the runs that they name."""

import pytest

from sessionary.schemas.codec import encode_record
from sessionary.schemas.headers import REPLAYED_FROM
from sessionary.schemas.ids import derived_id, run_key
from sessionary.schemas.limits import RESUME_MS, RUNS_OPEN_MAX
from sessionary.schemas.records import FinishedRun, RunState
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.schemas.types import ErrorInfo, Limits, OpenRun
from tests.core.stream_processors.core.run.run_rig import RunRig
from tests.support.event_factory import EventFactory

RETRYABLE, FATAL = ErrorInfo("retryable", "boom", "it broke"), ErrorInfo("fatal", "dead", "it is over")
LONG = Limits(idle_ms=10**9, max_duration_ms=10**12, grace_ms=10**9)


def test_a_run_begins_works_and_completes() -> None:
    rig = RunRig()
    assert rig.say("run_queued", mode="attached", task_type="sum", input_json="[1]") == "applied"
    row = rig.found()
    assert isinstance(row, RunState)
    assert (row.state, row.run_seq, row.input_json, row.due_at, row.user_id) == ("queued", 1, "[1]", None, "u1")
    rig.at += 1_000
    started = {"mode": "attached", "task_type": "other", "input_json": None, "plan_json": None}
    assert rig.say("run_started", **started) == "applied"
    row = rig.found()
    assert isinstance(row, RunState)
    assert (row.state, row.task_type, row.input_json, row.due_at) == ("started", "sum", "[1]", rig.at + 900_000)
    assert rig.say("plan_recorded", plan_json="[]") == "applied"
    assert rig.found().state == "started"
    assert rig.found()._asdict().get("due_at") == rig.at + 900_000
    assert rig.say("run_running", progress=0.5) == "applied"
    rig.at += 500
    assert rig.say("run_running", progress=None) == "applied"
    assert (rig.found().entered_at, rig.found().progress) == (rig.at - 500, 0.5)
    assert rig.say("message_appended") == "applied"
    assert rig.open_ids() == ["r1"]
    assert rig.say("run_completed", result_json="6", artifact_id="a") == "applied"
    done = rig.found()
    assert isinstance(done, FinishedRun)
    assert (done.state, done.run_seq, done.result_json, done.plan_json, done.reason_code) == (
        *("completed", 7, "6", "[]", "completed"),
    )
    assert rig.open_ids() == []


@pytest.mark.parametrize("name", ["run_queued", "run_rejected", "run_completed", "plan_recorded"])
@pytest.mark.parametrize("run_id", [None, ""])
def test_an_event_that_needs_a_run_names_one(name: str, run_id: str | None) -> None:
    assert RunRig().say(name, run_id) == "rejected invalid_value"


@pytest.mark.parametrize("name", ["message_appended", "run_running", "plan_recorded", "tool_call_failed"])
def test_a_run_that_did_not_begin_is_unknown(name: str) -> None:
    rig = RunRig()
    assert rig.say(name) == "rejected unknown_run"
    assert rig.row_of(rig.agent).rejections[-1].reason == "unknown_run"
    assert rig.row_of(rig.agent).producers[0].last_seq == rig.agent.seq
    assert rig.say("run_rejected") == "applied"
    assert rig.run() is None


def test_what_is_no_event_of_a_run_is_not_looked_at() -> None:
    rig = RunRig()
    for name in ("heartbeat", "session_activity", "state_updated", "snapshot_created"):
        assert rig.say(name) == "applied"
    assert rig.run() is None


def test_the_run_of_another_session_is_another_run() -> None:
    rig, other = RunRig(), EventFactory("other")
    rig.begin()
    rig.start(other)
    assert rig.send(other, "run_running", {"run_id": "r1"}) == "rejected unknown_run"
    assert rig.send(other, "run_started", {"run_id": "r1"}) == "applied"
    assert rig.found().state == "running"


@pytest.mark.parametrize(
    ("path", "rejected"),
    [
        ([], ["run_started", "run_queued", "run_resumed", "run_rejected", "run_queued"]),
        (["run_paused"], ["run_running", "run_completed", "run_paused", "run_started"]),
        (["run_completed"], ["run_resumed", "message_appended", "run_cancelled", "plan_recorded", "run_started"]),
        (["run_cancelled"], ["run_resumed", "usage_recorded"]),
    ],
)
def test_any_other_pair_is_illegal(path: list[str], rejected: list[str]) -> None:
    rig = RunRig()
    rig.begin()
    for name in path:
        assert rig.say(name) == "applied"
    before = rig.found()
    for name in rejected:
        assert rig.say(name) == "rejected illegal_transition"
    assert rig.found() == before


def test_a_plan_is_recorded_once_and_then_replaced() -> None:
    rig = RunRig()
    rig.begin()
    assert rig.say("plan_replaced", plan_json="1") == "rejected illegal_transition"
    assert rig.say("plan_recorded", plan_json="2") == "applied"
    assert rig.say("plan_recorded", plan_json="3") == "rejected illegal_transition"
    assert rig.say("plan_replaced", plan_json="4") == "applied"
    assert (rig.found().plan_json, rig.found().run_seq) == ("4", 4)


def test_values_of_runs_have_bounds() -> None:
    rig = RunRig()
    assert rig.say("run_queued", mode="UNKNOWN") == "rejected invalid_value"
    assert rig.say("run_queued", mode="detached") == "applied"
    assert rig.say("run_started", mode="attached") == "rejected invalid_value"
    assert rig.say("run_started", mode="detached") == "applied"
    outcomes = [rig.say("run_running", progress=value) for value in (0.0, 1.0, -0.01, 1.01)]
    assert outcomes == ["applied", "applied", "rejected invalid_value", "rejected invalid_value"]
    assert rig.say("run_failed", error=ErrorInfo("UNKNOWN", "c", "m")) == "rejected missing_error_class"
    assert rig.found().progress == 1.0


def test_so_many_runs_may_be_open() -> None:
    rig = RunRig()
    for number in range(RUNS_OPEN_MAX):
        assert rig.say("run_started", f"r{number}", mode="detached") == "applied"
    assert rig.say("run_queued", "more") == "rejected too_many_runs"
    assert rig.say("run_cancelled", "r7") == "applied"
    assert rig.say("run_started", "more", mode="detached") == "applied"
    assert rig.open_ids()[-2:] == ["r63", "more"]
    assert rig.row_of(rig.agent).open_runs[-1] == OpenRun("more", True)


@pytest.mark.parametrize(("waited_ms", "outcome"), [(90_000, "applied"), (90_001, "rejected resume_expired")])
def test_for_how_long_a_failed_run_may_be_resumed_is_a_setting_of_the_rules(waited_ms: int, outcome: str) -> None:
    rig = RunRig(limits=LONG)
    rig.begin()
    assert rig.say("run_failed", error=RETRYABLE) == "applied"
    rig.activate(NEWEST_RULES._replace(resume_ms=90_000))  # it failed by others
    rig.at += waited_ms
    assert rig.say("run_resumed") == outcome


@pytest.mark.parametrize(
    ("error", "actor", "waited_ms", "outcome"),
    [
        (RETRYABLE, None, 0, "applied"),
        (FATAL, None, 0, "rejected not_retryable"),
        (FATAL, "eve", 0, "applied"),
        (RETRYABLE, None, RESUME_MS, "applied"),
        (RETRYABLE, None, RESUME_MS + 1, "rejected resume_expired"),
        (FATAL, None, RESUME_MS + 1, "rejected not_retryable"),
    ],
)
def test_a_failed_run_may_be_resumed_for_a_day(
    error: ErrorInfo, actor: str | None, waited_ms: int, outcome: str
) -> None:
    rig = RunRig(limits=LONG)
    rig.begin()
    assert rig.say("run_failed", error=error) == "applied"
    assert (rig.found().state, rig.found().error, rig.found().reason_code) == ("failed", error, error.code)
    rig.at += waited_ms  # an outage: no clock of activity is due yet
    assert rig.say("run_resumed", actor=actor) == outcome
    row = rig.found()
    if outcome == "applied":
        assert isinstance(row, RunState)
        assert (row.state, row.resumes, row.error, row.due_at) == ("running", 1, None, rig.at + 900_000)
        assert (rig.open_ids(), rig.fold.live) == (["r1"], 2)
    else:
        assert isinstance(row, FinishedRun)
        assert rig.open_ids() == []


def test_a_record_with_the_key_of_a_run_touches_nothing() -> None:
    rig = RunRig()
    rig.begin()
    before = dict(rig.fold.rows)
    value = rig.agent.event_bytes("run_completed", {"run_id": "r1"})
    assert rig.append(run_key(*rig.agent.key, "r1"), value) == "rejected bad_key"
    assert rig.fold.rows == before


def test_a_row_of_a_run_has_the_bound_of_every_row() -> None:
    rig = RunRig()
    large = "j" * (1 << 20)
    rig.begin(input_json=large, plan_json=large)
    wide = "😀" * (1 << 19)
    assert rig.say("plan_replaced", plan_json=wide) == "applied"
    assert rig.say("run_completed", result_json=wide) == "rejected state_too_large"
    assert "the run's row would have" in rig.audits()[-1].reason
    assert rig.found().state == "running"
    assert rig.say("run_completed", result_json="1") == "applied"


def test_a_session_without_runs_has_one_byte_more() -> None:
    rig = RunRig()
    row = rig.row_of(rig.agent)._replace(external_id=None)
    with_run = row._replace(open_runs=(OpenRun("", False),))
    assert (
        len(encode_record(with_run)) - len(encode_record(row)) == 3
    )  # the one is the count; the run has two, and an end


def test_a_replayed_event_of_a_run_fills_no_gap() -> None:
    rig = RunRig()
    rig.begin()
    missed = rig.agent.event_bytes("run_paused", {"run_id": "r1"})
    work = rig.agent.event_bytes("message_appended", {"run_id": "r1"})
    assert rig.say("message_appended") == "applied"
    before = rig.found()
    replayed = [(REPLAYED_FROM, b"1")]
    key = rig.agent.key.encoded()
    assert rig.append(key, missed, replayed) == "rejected late_filler"
    assert rig.append(key, work, replayed) == "applied"
    assert rig.found() == before


def test_ids_of_runs_may_be_any_text() -> None:
    rig = RunRig()
    for run_id in ("a:b", "\x00content", "ü", derived_id("x")):
        rig.begin(run_id)
        assert rig.found(run_id).run_id == run_id
