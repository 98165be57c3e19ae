"""Edge cases that random tests rarely reach: a surviving mutant pointed to each of them."""

from typing import Any

import pytest

from sessionary.schemas.records import CleanupRequest, Tombstone
from sessionary.schemas.types import CleanupAction, ErrorInfo, Limits
from sessionary.stream_processors.core.session.transitions import RECOVERY_ATTEMPTS_MAX, TRANSITIONS
from tests.core.oracle_rig import START_MS, OracleRig
from tests.core.stream_processors.core.session.test_decide import rig_in_state
from tests.support.event_factory import EventFactory, snapshot, snapshot_id


def test_a_resume_names_the_head_of_the_chain_or_nothing() -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    for name in ("nowhere", "first", "another", "", "None"):
        assert rig.send(agent, "session_paused", snapshot=snapshot(f"held, not {name}")) == "applied"
        assert rig.send(agent, "session_resumed", snapshot_id=name) == "rejected version_conflict"
        assert rig.send(agent, "session_resumed", snapshot_id=snapshot_id(f"held, not {name}")) == "applied"


def test_a_resume_within_the_grace_period_names_the_head_too() -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    assert rig.advance(60_000) == ["T06 inactive"]
    assert (
        rig.send(agent, "session_resumed", {"epoch": 1}, snapshot_id=snapshot_id("nowhere"))
        == "rejected version_conflict"
    )
    assert rig.send(agent, "session_resumed", {"epoch": 1}, snapshot_id=None) == "applied"


MEMORY_FIRST = ("memory_cleanup", "close_connection", "release_context", "mark_closed")
EXCEPTION_FIRST = ("exception_cleanup", "close_connection", "release_context", "mark_closed")


@pytest.mark.parametrize(
    ("code", "actions"),
    [("timeout_cleanup", MEMORY_FIRST), ("abnormal_termination", EXCEPTION_FIRST), ("model_overloaded", ())],
)
def test_an_error_asks_for_the_clean_up_that_its_code_names(code: str, actions: tuple[str, ...]) -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    assert rig.send(agent, "session_errored", error=ErrorInfo("retryable", code, "no answer")) == "applied"
    (line,) = rig.last_audits()
    assert (line.transition, line.reason_code, line.cleanup_actions) == ("T10", code, actions)


def test_each_timeout_asks_for_the_clean_up_again() -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    for _ in range(2):
        assert rig.advance(60_000) == ["T06 inactive"]
        (line,) = rig.last_audits()
        assert line.cleanup_actions == MEMORY_FIRST
        done = {"cleanup_id": line.cleanup_id, "actions": [CleanupAction("memory_cleanup", True, 1)]}
        assert rig.send(agent, "resources_released", **done) == "applied"
        assert rig.send(agent, "session_resumed", snapshot_id=None) == "applied"


def last_reasons(rig: OracleRig) -> list[tuple[str | None, str, str]]:
    return [(line.transition, line.reason_code, line.reason) for line in rig.last_audits()]


def test_five_recoveries_and_no_sixth() -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    for attempt in range(1, 7):
        assert rig.send(agent, "session_errored") == "applied"
        assert last_reasons(rig) == [("T10", "boom", "boom: it broke")]
        assert rig.send(agent, "session_phase_changed", phase="recovery") == "applied"
        if attempt <= RECOVERY_ATTEMPTS_MAX == 5:
            assert rig.send(agent, "session_recovered") == "applied"
            assert last_reasons(rig) == [("T11", "recovered", f"recovered, attempt {attempt}")]
    assert rig.send(agent, "session_recovered") == "rejected retries_exhausted"


def test_each_transition_has_a_reason() -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.send(agent, "session_created")
    assert last_reasons(rig) == [("T01", "created", "created")]
    for phase in ("validating", "connecting"):
        rig.send(agent, "session_phase_changed", phase=phase)
    rig.send(agent, "session_started")
    assert last_reasons(rig) == [("T02", "started", "started")]
    rig.send(agent, "session_paused", kind="review", reason=None)
    assert last_reasons(rig) == [("T04", "review", "review")]
    rig.send(agent, "session_resumed", snapshot_id=snapshot_id("paused"))
    assert last_reasons(rig) == [("T05", "resumed", "resumed")]
    rig.send(agent, "session_paused", kind="manual", reason="a look")
    assert last_reasons(rig) == [("T04", "manual", "a look")]
    rig.send(agent, "session_resumed")
    assert rig.advance(60_000) == ["T06 inactive"]
    assert last_reasons(rig) == [("T06", "inactive", "Agent timeout after 60s: nothing was heard")]
    rig.send(agent, "session_resumed")
    assert last_reasons(rig) == [("T07", "resumed", "resumed within its grace period")]
    rig.send(agent, "session_terminated", reason="closed", message=None)
    assert last_reasons(rig) == [("T13", "closed", "closed")]
    assert rig.row_of(agent).reason_code == "closed"
    assert rig.advance(300_000, step_ms=5_000) == ["T14 archived"]
    assert last_reasons(rig) == [("T14", "archived", "Archived 300s after its end")]
    grave = rig.fold.rows[agent.key.encoded()]
    assert isinstance(grave, Tombstone)
    assert (grave.reason_code, grave.epoch) == ("archived", 4)


@pytest.mark.parametrize("message", [None, "no such model"])
def test_a_failed_start_and_an_end_may_carry_a_message(message: str | None) -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.send(agent, "session_created")
    rig.send(agent, "session_start_failed", reason="connection_failed", message=message)
    assert last_reasons(rig) == [("T03", "connection_failed", message or "connection_failed")]
    other = EventFactory("other")
    rig.start(other)
    rig.send(other, "session_terminated", reason="cancelled", message=message)
    assert last_reasons(rig) == [("T13", "cancelled", message or "cancelled")]


@pytest.mark.parametrize(
    ("state", "ms", "expected"),
    [
        ("Idle", 15_000, ("T03", "init_timeout", "Session not started after 15s")),
        ("Paused", 86_400_000, ("T09", "timeout_cleanup", "Not resumed within 86400s of hold")),
        ("Timeout", 300_000, ("T08", "timeout_cleanup", "Not resumed within 300s after its timeout")),
        ("Error", 60_000, ("T12", "recovery_failed", "Not recovered within 60s")),
        ("Terminated", 300_000, ("T14", "archived", "Archived 300s after its end")),
    ],
)
def test_each_deadline_fires_exactly_when_due_and_names_its_limit(
    state: str, ms: int, expected: tuple[str, str, str]
) -> None:
    rig, _ = rig_in_state(state)
    since = rig.at
    assert rig.advance(ms - 1, step_ms=5_000) == []
    rig.advance(1)
    assert last_reasons(rig) == [expected]
    (line,) = rig.last_audits()
    assert line.due_at == line.fired_at == line.occurred_at == (since + ms) * 1_000
    assert line.event_type == {row.id: row.event_type for row in TRANSITIONS}[expected[0]]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("idle_ms", ("T06", "idle", "Agent timeout after 40s without work")),
        ("max_duration_ms", ("T06", "max_duration", "Agent timeout after 40s: the maximum duration is over")),
    ],
)
def test_in_active_each_deadline_names_its_own_limit(name: str, expected: tuple[str, str, str]) -> None:
    rig, agent = OracleRig(), EventFactory()
    limits: dict[str, Any] = {name: 40_000}
    rig.start(agent, limits=Limits(**limits))
    assert rig.advance(39_999, step_ms=5_000) == []
    rig.advance(1)
    assert last_reasons(rig) == [expected]


@pytest.mark.parametrize(
    ("limits", "first"),
    [
        (Limits(idle_ms=60_000, max_duration_ms=60_000), "T06 inactive"),
        (Limits(idle_ms=30_000, max_duration_ms=30_000), "T06 idle"),
        (Limits(max_duration_ms=60_000), "T06 inactive"),
    ],
)
def test_of_clocks_that_are_due_together_the_first_of_the_table_is_the_reason(limits: Limits, first: str) -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent, limits=limits)
    assert rig.advance(60_000)[:1] == [first]


def test_a_deadline_that_fires_late_records_when_it_was_due() -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    due = rig.at + 60_000
    rig.advance(58_000)
    rig.at += 4_000
    rig.tick()
    (line,) = rig.last_audits()
    assert (line.due_at, line.fired_at, line.occurred_at) == (due * 1_000, rig.at * 1_000, due * 1_000)


def test_what_a_clock_does_is_audited_for_the_sessions_user_alone() -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    assert rig.advance(60_000) == ["T06 inactive"]
    (line,) = rig.last_audits()
    assert (line.event_type, line.from_state, line.to_state) == ("session_timed_out", "Active", "Timeout")
    assert line.user_id == rig.row_of(agent).user_id
    assert line.user_id
    assert (line.event_id, line.agent_id, line.service_id, line.actor) == (None, None, None, None)


def test_a_clean_up_request_says_what_to_do_for_whom_and_since_when() -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    rig.at += 700
    assert rig.send(agent, "session_terminated", reason="cancelled", message="no longer needed") == "applied"
    row = rig.row_of(agent)
    ((key, request),) = rig.outcomes[-1].records_on("cleanup")
    assert key == agent.key.encoded()
    assert request == CleanupRequest(
        cleanup_id=row.cleanups[-1].cleanup_id,
        tenant_id=agent.key.tenant_id,
        session_id=agent.key.session_id,
        service_id=row.owner_service,
        epoch=1,
        reason_code="cancelled",
        reason="no longer needed",
        actions=("close_connection", "release_resources", "clear_context"),
        requested_at=(START_MS + 700) * 1_000,
        context_bytes=None,
    )


def test_the_rest_of_the_maximum_duration_is_never_negative() -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent, limits=Limits(max_duration_ms=20_000))
    rig.advance(10_000)
    rig.at += 30_000  # an outage: the duration is over, but nothing fires in the outage grace
    assert rig.send(agent, "session_paused") == "applied"
    assert rig.row_of(agent).max_due_at == 0
    assert rig.send(agent, "session_resumed") == "applied"
    assert rig.row_of(agent).max_due_at == rig.at


@pytest.mark.parametrize(("reason", "first"), [("closed", "close_connection"), ("forced", "exception_cleanup")])
def test_a_released_session_is_archived_a_minute_later(reason: str, first: str) -> None:
    rig, agent = rig_in_state("Error" if reason == "forced" else "Active")
    assert rig.send(agent, "session_terminated", reason=reason) == "applied"
    (line,) = rig.last_audits()
    assert line.cleanup_actions[0] == first
    rig.advance(10_000)
    actions = [CleanupAction("close_connection", True, 1)]
    assert rig.send(agent, "resources_released", cleanup_id=line.cleanup_id, actions=actions) == "applied"
    assert rig.row_of(agent).released_at == rig.at
    assert rig.advance(59_999) == []
    assert rig.advance(1) == ["T14 archived"]
    assert last_reasons(rig) == [("T14", "archived", "Archived 60s after its end")]


def test_an_end_may_bring_a_last_snapshot() -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    assert rig.send(agent, "session_terminated", reason="closed", snapshot=snapshot("last")) == "applied"
    assert rig.row_of(agent).snapshot.snapshot_id == snapshot_id("last")


@pytest.mark.parametrize(("base", "new"), [(2, 2), (0, 2), (1, 3), (1, 1), (2, 3)])
def test_an_update_goes_from_the_current_version_to_the_next(base: int, new: int) -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    assert rig.send(agent, "state_updated", base_version=base, new_version=new) == "rejected version_conflict"
    assert rig.send(agent, "state_updated", base_version=1, new_version=2) == "applied"


@pytest.mark.parametrize("phase", ["processing", "updating", "persisting"])
def test_an_update_ends_the_writing(phase: str) -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    for step in {"processing": (), "updating": ("updating",), "persisting": ("updating", "persisting")}[phase]:
        assert rig.send(agent, "session_phase_changed", phase=step) == "applied"
    assert rig.send(agent, "state_updated", base_version=1, new_version=2) == "applied"
    assert rig.row_of(agent).phase == "processing"


def timed_out_and_resumed(rig: OracleRig, agent: EventFactory, idle_ms: int = 900_000) -> str:
    """Bring a session to Active with an unconfirmed clean-up; return the clean-up's id."""
    rig.start(agent, limits=Limits(idle_ms=idle_ms))
    assert len(rig.advance(60_000, step_ms=5_000)) == 1
    cleanup_id: str = rig.last_audits()[0].cleanup_id
    assert rig.send(agent, "session_resumed") == "applied"
    return cleanup_id


@pytest.mark.parametrize(("idle_ms", "clock"), [(900_000, "inactive"), (60_000, "idle")])
def test_a_late_confirmation_in_active_is_a_sign_of_life_and_of_work(idle_ms: int, clock: str) -> None:
    rig, agent = OracleRig(), EventFactory()
    cleanup_id = timed_out_and_resumed(rig, agent, idle_ms=idle_ms)
    rig.advance(10_000)
    assert rig.send(agent, "resources_released", cleanup_id=cleanup_id) == "applied"
    assert rig.row_of(agent).released_at is None
    rig.advance(20_000)
    assert rig.send(agent, "heartbeat") == "applied"
    rest_ms = 60_000 if clock == "inactive" else 40_000
    assert rig.advance(rest_ms - 1) == []
    assert rig.advance(1) == [f"T06 {clock}"]


@pytest.mark.parametrize("state", ["Timeout", "Terminated"])
def test_released_at_is_the_time_of_the_first_confirmation(state: str) -> None:
    rig, agent = OracleRig(), EventFactory()
    first = timed_out_and_resumed(rig, agent)
    if state == "Timeout":
        assert rig.advance(60_000, step_ms=5_000) == ["T06 inactive"]
    else:
        assert rig.send(agent, "session_terminated", reason="closed") == "applied"
    second = rig.last_audits()[0].cleanup_id
    rig.advance(10_000)
    since = rig.at
    for cleanup_id in (first, second):
        assert rig.send(agent, "resources_released", cleanup_id=cleanup_id) == "applied"
        assert rig.row_of(agent).released_at == since
        rig.advance(10_000)
    if state == "Terminated":
        assert rig.advance(39_999) == []
        assert rig.advance(1) == ["T14 archived"]


@pytest.mark.parametrize("state", ["unknown", "Active"])
@pytest.mark.parametrize(
    ("field", "value", "detail"),
    [
        ("producer_seq", 0, "producer_seq is 0; it counts from 1"),
        ("epoch", -1, "epoch is -1"),
        ("service_id", "a b", "service_id 'a b' is no name"),
        ("agent_id", "", "agent_id '' is no name"),
        ("producer_id", "", "producer_id '' is no name"),
        ("producer_id", "p:q", "producer_id 'p:q' is no name"),
        ("user_id", None, "session_created names no user"),
    ],
)
def test_the_detail_names_an_invalid_value(field: str, value: Any, detail: str, state: str) -> None:
    rig, agent = rig_in_state(state)
    assert rig.send(agent, "session_created", {field: value}) == "rejected invalid_value"
    ((_, rejected),) = rig.outcomes[-1].records_on("rejected")
    assert rejected.detail == detail
