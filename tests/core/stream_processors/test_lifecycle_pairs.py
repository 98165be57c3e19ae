"""Every state with every event type: listed in the table and applied, or not listed and refused."""

from typing import Any

import pytest

from sessionary.schemas.events import PAYLOADS
from sessionary.schemas.records import Gravestone, SessionState
from sessionary.stream_processors.core.session.transitions import ACCEPTED, TRANSITIONS
from tests.core.court import Court
from tests.support.scribe import Scribe

STATES = ("unknown", "Idle", "Active", "Paused", "Timeout", "Error", "Terminated", "Archived")


def brought_to(state: str) -> tuple[Court, Scribe]:
    """A court with one session in `state`, at the phase where most is allowed."""
    court, scribe = Court(), Scribe()
    if state == "unknown":
        return court, scribe
    court.says(scribe, "session_created")
    for phase in ("validating", "connecting"):
        court.says(scribe, "session_phase_changed", phase=phase)
    if state == "Idle":
        return court, scribe
    court.says(scribe, "session_started")
    if state == "Paused":
        court.says(scribe, "session_paused")
    elif state == "Timeout":
        assert court.passes(60_000, step_ms=5_000) == ["T06 inactive"]
    elif state == "Error":
        court.says(scribe, "session_errored")
        court.says(scribe, "session_phase_changed", phase="recovery")
    elif state in ("Terminated", "Archived"):
        court.says(scribe, "session_terminated", reason="closed")
    if state == "Archived":
        assert court.passes(300_000, step_ms=5_000) == ["T14 archived"]
    return court, scribe


def fitting(state: str, event_type: str, court: Court, scribe: Scribe) -> dict[str, Any]:
    """The payload that passes the guards in this state."""
    row = court.fold.rows.get(scribe.key.encoded())
    if event_type == "session_phase_changed":
        return {"phase": {"Active": "updating", "Error": "cleanup", "Terminated": "clearing"}.get(state, "validating")}
    if event_type == "session_terminated":
        return {"reason": {"Paused": "cancelled", "Error": "forced"}.get(state, "closed")}
    if event_type == "resources_released" and isinstance(row, SessionState) and row.cleanups:
        return {"cleanup_id": row.cleanups[-1].cleanup_id}
    return {}


def listed(state: str, event_type: str) -> bool:
    source = None if state == "unknown" else state
    by_client = any(t.source == source and t.event_type == event_type and t.by != "processor" for t in TRANSITIONS)
    accepted = {str(name): types for name, types in ACCEPTED.items()}
    return by_client or event_type in accepted.get(state, ())


@pytest.mark.parametrize("event_type", PAYLOADS)
@pytest.mark.parametrize("state", STATES)
def test_what_is_not_listed_is_refused_and_what_is_listed_applies(state: str, event_type: str) -> None:
    court, scribe = brought_to(state)
    before = court.fold.rows.get(scribe.key.encoded())
    outcome = court.says(scribe, event_type, **fitting(state, event_type, court, scribe))
    after = court.fold.rows.get(scribe.key.encoded())
    never_begun = event_type == "resources_released" and state in ("Active", "Paused", "Error")
    if never_begun:  # legal, but this session was never asked to clean up
        assert outcome == "refused unknown_cleanup"
    elif event_type == "session_phase_changed" and state == "Idle":  # legal, but the last phase is reached
        assert outcome == "refused phase_order"
    else:
        assert outcome == "applied" if listed(state, event_type) else outcome.startswith("refused ")
    if outcome.startswith("refused "):
        untouched(before, after)


BOOKKEEPING: dict[str, Any] = {"producers": (), "refusals": (), "audit_seq": 0, "late_epoch": 0}


def untouched(before: Any, after: Any) -> None:
    """A refusal leaves the state as it was but for the ledger, the audit's count and the list of refusals."""
    if isinstance(before, SessionState):
        assert before._replace(**BOOKKEEPING) == after._replace(**BOOKKEEPING)
    elif isinstance(before, Gravestone):
        assert before._replace(producers=(), audit_seq=0) == after._replace(producers=(), audit_seq=0)
    else:
        assert after is None


def test_every_transition_of_the_table_is_reached() -> None:
    """The scripts of this folder would be worth little if they missed a row of the table."""
    seen: set[str | None] = set()
    for state in STATES:
        for event_type in {row.event_type for row in TRANSITIONS}:
            court, scribe = brought_to(state)
            court.says(scribe, event_type, **fitting(state, event_type, court, scribe))
            seen |= {line.transition for outcome in court.outcomes for _, line in outcome.records_on("audit")}
    for state, ms in (("Timeout", 300_000), ("Paused", 86_400_000), ("Error", 60_000)):
        court, _ = brought_to(state)
        court.passes(ms, step_ms=4_999)
        seen |= {line.transition for outcome in court.outcomes for _, line in outcome.records_on("audit")}
    assert seen - {None} == {transition.id for transition in TRANSITIONS}


@pytest.mark.parametrize("state", ["Idle", "Active", "Paused", "Timeout", "Error", "Terminated"])
@pytest.mark.parametrize(
    ("event_type", "reason"), [("session_start_failed", "init_timeout"), ("session_terminated", "timeout_cleanup")]
)
def test_no_client_gives_a_clocks_reason(event_type: str, reason: str, state: str) -> None:
    court, scribe = brought_to(state)
    assert court.says(scribe, event_type, reason=reason) == "refused processor_only"


@pytest.mark.parametrize("state", ["Idle", "Paused", "Timeout", "Error"])
def test_a_heartbeat_moves_nothing_but_in_active(state: str) -> None:
    court, scribe = brought_to(state)
    court.at += 1_000
    before = court.row(scribe)
    assert court.says(scribe, "heartbeat") == "applied"
    assert court.row(scribe) == before
