"""A session's rows as a story."""

from typing import Any

from sessionary.infra.story.story import Usage, add_totals, describe_moment, make_story
from tests.core.fold_rig import FoldRig
from tests.core.infra.story.story_rows import USAGE, event_row, iso_time, outcome_row
from tests.support.event_factory import EventFactory


def test_an_event_is_reported_with_what_became_of_it() -> None:
    rows = [event_row(1, "session_paused", {"kind": "manual"}), event_row(2, "session_activity", {"kind": "llm"})]
    outcomes = [
        outcome_row(1, "transition", from_state="Active", to_state="Paused"),
        outcome_row(2, "rejection", reason_code="not_legal"),
        outcome_row(2, "gap", reason="1 event is missing"),
    ]
    paused, rejected = make_story(rows, outcomes)
    assert (paused.states, paused.rejection) == (("Active", "Paused"), "")
    assert describe_moment(paused) == "Active → Paused; manual"
    assert (rejected.states, rejected.rejection) == (None, "not_legal")
    assert describe_moment(rejected) == "rejected: not_legal; gap: 1 event is missing"


def test_phases_go_with_the_next_event_of_their_process() -> None:
    rows = [
        event_row(1, "session_phase_changed", {"phase": "validating"}),
        event_row(2, "session_activity", {"kind": "llm"}, process="p2"),
        event_row(3, "session_phase_changed", {"phase": "connecting"}),
        event_row(4, "session_started", {}),
        event_row(5, "session_phase_changed", {"phase": "clearing"}),
        event_row(6, "session_phase_changed", {"phase": "planning"}, process="p2"),
    ]
    reported = make_story(rows, [outcome_row(6, "rejection", reason_code="not_owner")])
    assert [(moment.name, moment.phases) for moment in reported] == [
        ("llm", ()),
        ("started", ("validating", "connecting")),
        ("phase", ()),
        ("phase", ()),
    ]
    assert describe_moment(reported[1]) == "after validating, connecting"
    assert reported[3].rejection == "not_owner"


def test_the_wait_for_a_user_is_a_moment_of_its_own() -> None:
    rows = [
        event_row(1, "session_phase_changed", {"phase": "processing"}),
        event_row(2, "message_appended", {"role": "user", "content": "hi"}),
        event_row(3, "session_phase_changed", {"phase": "waiting"}, at_s=2.0),
        event_row(4, "session_phase_changed", {"phase": "processing"}, at_s=3_602.0),
        event_row(5, "message_appended", {"role": "user", "content": "again"}, at_s=3_602.0),
    ]
    reported = make_story(rows, [])
    assert [(moment.name, moment.phases) for moment in reported] == [
        ("message appended", ("processing",)),
        ("phase", ()),
        ("message appended", ("processing",)),
    ]
    assert describe_moment(reported[1]) == "waiting"


def test_a_phase_of_which_the_audit_trail_says_more_is_a_moment() -> None:
    rows = [
        event_row(1, "session_phase_changed", {"phase": "validating"}),
        event_row(3, "session_phase_changed", {"phase": "connecting"}),
        event_row(4, "session_started", {}),
    ]
    reported = make_story(rows, [outcome_row(3, "gap", reason="1 event is missing")])
    assert [(moment.name, moment.phases) for moment in reported] == [("phase", ("validating",)), ("started", ())]
    assert "gap: 1 event is missing" in describe_moment(reported[0])


def test_work_lasts_until_the_next_event_of_its_process() -> None:
    rows = [
        event_row(1, "session_activity", {"kind": "llm"}, at_s=1.0),
        event_row(2, "session_activity", {"kind": "tool"}, at_s=2.0, process="p2"),
        event_row(3, "usage_recorded", USAGE, at_s=4.5),
    ]
    reported = make_story(rows, [])
    assert [moment.took_s for moment in reported] == [3.5, None, None]
    assert [moment.lane for moment in reported] == ["agent-1", "agent-1 #2", "agent-1"]


def test_the_end_of_a_call_goes_with_its_start() -> None:
    tool, other = {"tool_name": "search", "tool_call_id": "c1"}, {"tool_name": "search", "tool_call_id": "c2"}
    error = {"error_class": "fatal", "message": "no"}
    rows = [
        event_row(1, "tool_call_started", tool),
        event_row(2, "tool_call_started", other),
        event_row(3, "step_started", {"name": "llm large"}, at_s=1.0, step="s1"),
        event_row(4, "tool_call_succeeded", {**tool, "execution_time_ms": 250}, at_s=2.0),
        event_row(5, "usage_recorded", USAGE, at_s=3.0, step="s1"),
        event_row(6, "step_failed", {"name": "llm large", "error": error}, at_s=3.5, step="s1"),
        event_row(7, "tool_call_failed", {"tool_name": "search", "tool_call_id": "unknown", "error": error}, at_s=4.0),
    ]
    reported = make_story(rows, [])
    assert [(moment.name, moment.took_s) for moment in reported] == [
        ("search", 0.25), ("search", None), ("llm large", 2.5), ("usage", None), ("search", None),
    ]  # fmt: skip
    assert describe_moment(reported[2]) == "failed, fatal: no"
    assert describe_moment(reported[4]) == "failed, fatal: no"


def test_a_deadline_is_a_moment_of_the_processor() -> None:
    fired = outcome_row(9, "transition", "session_timed_out", from_state="Active", to_state="Timeout", reason="silent")
    (moment,) = make_story([], [fired | {"fired_at": iso_time(7.0)}])
    assert (moment.lane, moment.producer_id, moment.name) == ("processor", "", "timed out")
    assert describe_moment(moment) == "Active → Timeout; silent"


def test_rejected_usage_costs_nothing() -> None:
    rows = [event_row(1, "usage_recorded", USAGE), event_row(2, "usage_recorded", USAGE, process="p2")]
    reported = make_story(rows, [outcome_row(2, "rejection", reason_code="stale_epoch")])
    assert [moment.usage for moment in reported] == [Usage("large", 1200, 300, 5_500_000), None]
    assert add_totals(reported) == (1200, 300, 5_500_000, 1, ("agent-1", "agent-1 #2"))


def test_content_that_retention_removed_is_said_to_be_gone() -> None:
    (moment,) = make_story([event_row(1, "usage_recorded")], [])
    assert (moment.usage, moment.payload, moment.text) == (None, None, "(content removed by retention)")


def test_a_rejected_record_that_is_no_event_has_an_unknown_sender() -> None:
    (moment,) = make_story([], [outcome_row(3, "rejection", reason_code="undecodable", reason="no Avro")])
    assert (moment.lane, moment.rejection, describe_moment(moment)) == (
        "unknown sender", "undecodable", "rejected: undecodable; no Avro",
    )  # fmt: skip


def test_a_take_over_says_who_took_over_from_whom_and_why() -> None:
    """The row is what the processor writes, not one of this test's making."""
    rig, agent = FoldRig(), EventFactory()
    rig.start(agent)
    other = EventFactory(producer="q")
    other.epoch, other.head = rig.row_of(agent).epoch, rig.row_of(agent).snapshot.snapshot_id
    taken = other.event_bytes("session_taken_over", {"agent_id": "agent-2"}, reason="the host\nis lost")
    assert rig.append(other.key.encoded(), taken) == "applied"
    (line,) = rig.audits()
    fields: dict[str, Any] = {
        name: getattr(line, name) or "" for name in ("from_state", "to_state", "reason_code", "reason")
    }
    reported = outcome_row(1, line.kind, line.event_type, **fields)
    event = event_row(1, "session_taken_over", {"reason": "the host\nis lost"}, process="q") | {"agent_id": "agent-2"}
    (moment,) = make_story([event], [reported])
    assert (moment.lane, moment.name, moment.rejection) == ("agent-2", "taken over", "")
    assert describe_moment(moment).endswith(
        "take_over: agent-2 of billing (process q) took over from agent-1 of billing (process p): the host is lost"
    )
    (alone,) = make_story([], [reported])
    assert "took over from agent-1 of billing (process p): the host is lost" in describe_moment(alone)
