"""Edges that no random walk comes upon often enough: each of these was found by a mutant that lived."""

from typing import Any

import pytest

from sessionary.schemas.records import Gravestone
from sessionary.schemas.types import CleanupAction, Limits
from sessionary.stream_processors.core.session.machine import RECOVERY_ATTEMPTS_MAX
from sessionary.stream_processors.core.session.transitions import BY_ID
from sessionary.stream_processors.core.timers import Timers
from tests.core.court import Court
from tests.core.stream_processors.test_lifecycle_pairs import brought_to
from tests.support.scribe import Scribe, snapshot


def test_a_resume_names_the_head_of_the_chain_or_nothing() -> None:
    court, agent = Court(), Scribe()
    court.starts(agent)
    for name in ("nowhere", "first", "another", "", "None"):
        assert court.says(agent, "session_paused", snapshot=snapshot("held")) == "applied"
        assert court.says(agent, "session_resumed", snapshot_id=name) == "refused version_conflict"
        assert court.says(agent, "session_resumed", snapshot_id="held") == "applied"


def test_timers_count_sessions_and_not_entries() -> None:
    timers = Timers()
    timers.fill([(5, b"a"), (7, b"b")])
    assert len(timers) == 2
    timers.schedule(b"a", 3)
    timers.schedule(b"c", 9)
    assert len(timers) == 3


def told(court: Court) -> list[tuple[str | None, str, str]]:
    return [(line.transition, line.reason_code, line.reason) for line in court.last_audits()]


def test_five_recoveries_and_no_sixth() -> None:
    court, agent = Court(), Scribe()
    court.starts(agent)
    for attempt in range(1, 7):
        assert court.says(agent, "session_errored") == "applied"
        assert told(court) == [("T10", "boom", "boom: it broke")]
        assert court.says(agent, "session_phase_changed", phase="recovery") == "applied"
        if attempt <= RECOVERY_ATTEMPTS_MAX == 5:
            assert court.says(agent, "session_recovered") == "applied"
            assert told(court) == [("T11", "recovered", f"recovered, attempt {attempt}")]
    assert court.says(agent, "session_recovered") == "refused retries_exhausted"


def test_each_change_of_state_says_why() -> None:
    court, agent = Court(), Scribe()
    court.says(agent, "session_created")
    assert told(court) == [("T01", "created", "created")]
    for phase in ("validating", "connecting"):
        court.says(agent, "session_phase_changed", phase=phase)
    court.says(agent, "session_started")
    assert told(court) == [("T02", "started", "started")]
    court.says(agent, "session_paused", kind="review", reason=None)
    assert told(court) == [("T04", "review", "review")]
    court.says(agent, "session_resumed", snapshot_id="paused")
    assert told(court) == [("T05", "resumed", "resumed")]
    court.says(agent, "session_paused", kind="manual", reason="a look")
    assert told(court) == [("T04", "manual", "a look")]
    court.says(agent, "session_resumed")
    assert court.passes(60_000) == ["T06 inactive"]
    assert told(court) == [("T06", "inactive", "Agent timeout after 60s: nothing was heard")]
    court.says(agent, "session_resumed")
    assert told(court) == [("T07", "resumed", "resumed within its grace period")]
    court.says(agent, "session_terminated", reason="closed", message=None)
    assert told(court) == [("T13", "closed", "closed")]
    assert court.row(agent).reason_code == "closed"
    assert court.passes(300_000, step_ms=5_000) == ["T14 archived"]
    assert told(court) == [("T14", "archived", "Archived 300s after its end")]
    grave = court.fold.rows[agent.key.encoded()]
    assert isinstance(grave, Gravestone)
    assert (grave.reason_code, grave.epoch) == ("archived", 4)


@pytest.mark.parametrize("message", [None, "no such model"])
def test_a_failed_start_and_an_end_bring_their_own_words(message: str | None) -> None:
    court, agent = Court(), Scribe()
    court.says(agent, "session_created")
    court.says(agent, "session_start_failed", reason="connection_failed", message=message)
    assert told(court) == [("T03", "connection_failed", message or "connection_failed")]
    other = Scribe("other")
    court.starts(other)
    court.says(other, "session_terminated", reason="cancelled", message=message)
    assert told(court) == [("T13", "cancelled", message or "cancelled")]


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
def test_each_clock_says_which_limit_was_hit_at_the_moment_it_is(
    state: str, ms: int, expected: tuple[str, str, str]
) -> None:
    court, _ = brought_to(state)
    since = court.at
    assert court.passes(ms - 1, step_ms=5_000) == []
    court.passes(1)
    assert told(court) == [expected]
    (line,) = court.last_audits()
    assert line.due_at == line.fired_at == line.occurred_at == (since + ms) * 1_000
    assert line.event_type == BY_ID[expected[0]].event_type


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("idle_ms", ("T06", "idle", "Agent timeout after 40s without work")),
        ("max_duration_ms", ("T06", "max_duration", "Agent timeout after 40s: the maximum duration is over")),
    ],
)
def test_in_active_each_clock_names_its_own_limit(name: str, expected: tuple[str, str, str]) -> None:
    court, agent = Court(), Scribe()
    limits: dict[str, Any] = {name: 40_000}
    court.starts(agent, limits=Limits(**limits))
    assert court.passes(39_999, step_ms=5_000) == []
    court.passes(1)
    assert told(court) == [expected]


def test_a_late_clock_says_when_it_was_due() -> None:
    court, agent = Court(), Scribe()
    court.starts(agent)
    due = court.at + 60_000
    court.passes(58_000)
    court.at += 4_000
    court.tick()
    (line,) = court.last_audits()
    assert (line.due_at, line.fired_at, line.occurred_at) == (due * 1_000, court.at * 1_000, due * 1_000)


def test_what_is_left_of_the_maximum_duration_is_never_less_than_nothing() -> None:
    court, agent = Court(), Scribe()
    court.starts(agent, limits=Limits(max_duration_ms=20_000))
    court.passes(10_000)
    court.at += 30_000  # a hole: the duration is over, but nothing fires in the quiet after it
    assert court.says(agent, "session_paused") == "applied"
    assert court.row(agent).max_due_at == 0
    assert court.says(agent, "session_resumed") == "applied"
    assert court.row(agent).max_due_at == court.at


@pytest.mark.parametrize(("reason", "first"), [("closed", "close_connection"), ("forced", "exception_cleanup")])
def test_what_was_released_is_archived_a_minute_later(reason: str, first: str) -> None:
    court, agent = brought_to("Error" if reason == "forced" else "Active")
    assert court.says(agent, "session_terminated", reason=reason) == "applied"
    (line,) = court.last_audits()
    assert line.cleanup_actions[0] == first
    court.passes(10_000)
    actions = [CleanupAction("close_connection", True, 1)]
    assert court.says(agent, "resources_released", cleanup_id=line.cleanup_id, actions=actions) == "applied"
    assert court.row(agent).released_at == court.at
    assert court.passes(59_999) == []
    assert court.passes(1) == ["T14 archived"]
    assert told(court) == [("T14", "archived", "Archived 60s after its end")]


def test_an_end_may_bring_a_last_snapshot() -> None:
    court, agent = Court(), Scribe()
    court.starts(agent)
    assert court.says(agent, "session_terminated", reason="closed", snapshot=snapshot("last")) == "applied"
    assert court.row(agent).snapshot.snapshot_id == "last"


@pytest.mark.parametrize(("base", "new"), [(2, 2), (0, 2), (1, 3), (1, 1), (2, 3)])
def test_an_update_goes_from_the_version_that_is_to_the_next(base: int, new: int) -> None:
    court, agent = Court(), Scribe()
    court.starts(agent)
    assert court.says(agent, "state_updated", base_version=base, new_version=new) == "refused version_conflict"
    assert court.says(agent, "state_updated", base_version=1, new_version=2) == "applied"


@pytest.mark.parametrize("phase", ["processing", "updating", "persisting"])
def test_an_update_ends_the_writing(phase: str) -> None:
    court, agent = Court(), Scribe()
    court.starts(agent)
    for step in {"processing": (), "updating": ("updating",), "persisting": ("updating", "persisting")}[phase]:
        assert court.says(agent, "session_phase_changed", phase=step) == "applied"
    assert court.says(agent, "state_updated", base_version=1, new_version=2) == "applied"
    assert court.row(agent).phase == "processing"


def timed_out_and_resumed(court: Court, agent: Scribe, idle_ms: int = 900_000) -> str:
    """Bring a session to Active with a clean-up of which nobody has said that it was done; return the clean-up's id."""
    court.starts(agent, limits=Limits(idle_ms=idle_ms))
    assert len(court.passes(60_000, step_ms=5_000)) == 1
    cleanup_id: str = court.last_audits()[0].cleanup_id
    assert court.says(agent, "session_resumed") == "applied"
    return cleanup_id


@pytest.mark.parametrize(("idle_ms", "clock"), [(900_000, "inactive"), (60_000, "idle")])
def test_a_late_confirmation_in_active_is_a_sign_of_life_and_of_work(idle_ms: int, clock: str) -> None:
    court, agent = Court(), Scribe()
    cleanup_id = timed_out_and_resumed(court, agent, idle_ms=idle_ms)
    court.passes(10_000)
    assert court.says(agent, "resources_released", cleanup_id=cleanup_id) == "applied"
    assert court.row(agent).released_at is None
    court.passes(20_000)
    assert court.says(agent, "heartbeat") == "applied"
    rest_ms = 60_000 if clock == "inactive" else 40_000
    assert court.passes(rest_ms - 1) == []
    assert court.passes(1) == [f"T06 {clock}"]


@pytest.mark.parametrize("state", ["Timeout", "Terminated"])
def test_released_is_since_the_first_confirmation(state: str) -> None:
    court, agent = Court(), Scribe()
    first = timed_out_and_resumed(court, agent)
    if state == "Timeout":
        assert court.passes(60_000, step_ms=5_000) == ["T06 inactive"]
    else:
        assert court.says(agent, "session_terminated", reason="closed") == "applied"
    second = court.last_audits()[0].cleanup_id
    court.passes(10_000)
    since = court.at
    for cleanup_id in (first, second):
        assert court.says(agent, "resources_released", cleanup_id=cleanup_id) == "applied"
        assert court.row(agent).released_at == since
        court.passes(10_000)
    if state == "Terminated":
        assert court.passes(39_999) == []
        assert court.passes(1) == ["T14 archived"]


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
def test_a_value_that_makes_no_sense_is_told(field: str, value: Any, detail: str, state: str) -> None:
    court, agent = brought_to(state)
    assert court.says(agent, "session_created", {field: value}) == "refused invalid_value"
    ((_, rejected),) = court.outcomes[-1].rejected
    assert rejected.detail == detail
