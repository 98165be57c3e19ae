"""Every state with every event type: what the table lists is applied, all else is rejected."""

from typing import Any

import pytest

from sessionary.schemas.events import PAYLOADS
from sessionary.schemas.records import SessionState, Tombstone
from sessionary.stream_processors.core.children.artifact import ARTIFACT_TRANSITIONS
from sessionary.stream_processors.core.run.transitions import RUN_EVENTS
from sessionary.stream_processors.core.session.migration import OFFER_STATES
from sessionary.stream_processors.core.session.transitions import ACCEPTED, TRANSITIONS
from tests.core.oracle_rig import OracleRig
from tests.support.event_factory import EventFactory

OF_KNOWN_ARTIFACTS = {each.event_type for each in ARTIFACT_TRANSITIONS if None not in each.sources}

STATES = ("unknown", "Idle", "Active", "Paused", "Timeout", "Error", "Terminated", "Archived")


def rig_in_state(state: str) -> tuple[OracleRig, EventFactory]:
    """Return a rig with one session in `state`, at the phase in which most events are legal."""
    rig, agent = OracleRig(), EventFactory()
    if state == "unknown":
        return rig, agent
    rig.send(agent, "session_created")
    for phase in ("validating", "connecting"):
        rig.send(agent, "session_phase_changed", phase=phase)
    if state == "Idle":
        return rig, agent
    rig.send(agent, "session_started")
    if state == "Paused":
        rig.send(agent, "session_paused")
    elif state == "Timeout":
        assert rig.advance(60_000, step_ms=5_000) == ["T06 inactive"]
    elif state == "Error":
        rig.send(agent, "session_errored")
        rig.send(agent, "session_phase_changed", phase="recovery")
    elif state in ("Terminated", "Archived"):
        rig.send(agent, "session_terminated", reason="closed")
    if state == "Archived":
        assert rig.advance(300_000, step_ms=5_000) == ["T14 archived"]
    return rig, agent


def valid_fields(state: str, event_type: str, rig: OracleRig, agent: EventFactory) -> dict[str, Any]:
    """Return payload fields that pass the guards in this state."""
    row = rig.fold.rows.get(agent.key.encoded())
    if event_type == "session_phase_changed":
        return {"phase": {"Active": "updating", "Error": "cleanup", "Terminated": "clearing"}.get(state, "validating")}
    if event_type == "session_terminated":
        return {"reason": {"Paused": "cancelled", "Error": "forced"}.get(state, "closed")}
    if event_type == "resources_released" and isinstance(row, SessionState) and row.cleanups:
        return {"cleanup_id": row.cleanups[-1].cleanup_id}
    return {}


def is_listed(state: str, event_type: str) -> bool:
    source = None if state == "unknown" else state
    by_client = any(
        t.source == source and t.event_type == event_type and t.by in ("client", "either") for t in TRANSITIONS
    )
    accepted = {str(name): types for name, types in ACCEPTED.items()}
    return by_client or event_type in accepted.get(state, ())


@pytest.mark.parametrize("event_type", PAYLOADS)
@pytest.mark.parametrize("state", STATES)
def test_what_is_not_listed_is_rejected_and_what_is_listed_applies(state: str, event_type: str) -> None:
    rig, agent = rig_in_state(state)
    before = rig.fold.rows.get(agent.key.encoded())
    outcome = rig.send(agent, event_type, **valid_fields(state, event_type, rig, agent))
    after = rig.fold.rows.get(agent.key.encoded())
    if state == "Active" and event_type in RUN_EVENTS:  # legal, but no run is named
        assert outcome == "rejected invalid_value"
        return
    if state == "Active" and event_type in OF_KNOWN_ARTIFACTS:  # legal, but none was created
        assert outcome == "rejected unknown_artifact"
        return
    if event_type == "session_migration_offered" and state in OFFER_STATES:
        assert outcome == "applied"
        return
    if state == "Active" and event_type in ("agent_task_updated", "context_synced"):
        assert outcome == "rejected unknown_agent"  # legal, but none was registered
        return
    if state == "Active" and event_type in ("txn_committed", "txn_rolled_back"):
        assert outcome == "rejected unknown_transaction"  # legal, but none was begun
        return
    never_begun = event_type == "resources_released" and state in ("Active", "Paused", "Error")
    if never_begun:  # legal, but this session was never asked to clean up
        assert outcome == "rejected unknown_cleanup"
    elif event_type == "session_phase_changed" and state == "Idle":  # legal, but the last phase is reached
        assert outcome == "rejected phase_order"
    elif event_type == "session_phase_changed" and state == "Paused":  # legal, but no turn ends with it
        assert outcome == "rejected illegal_transition"
    else:
        assert outcome == "applied" if is_listed(state, event_type) else outcome.startswith("rejected ")
    if outcome.startswith("rejected "):
        assert_unchanged(before, after)


BOOKKEEPING: dict[str, Any] = {"producers": (), "rejections": (), "audit_seq": 0, "late_epoch": 0}


def assert_unchanged(before: Any, after: Any) -> None:
    """Assert that a rejection changed only the ledger, the audit number and the list of
    rejections.
    """
    if isinstance(before, SessionState):
        assert before._replace(**BOOKKEEPING) == after._replace(**BOOKKEEPING)
    elif isinstance(before, Tombstone):
        assert before._replace(producers=(), audit_seq=0) == after._replace(producers=(), audit_seq=0)
    else:
        assert after is None


def test_every_transition_of_the_table_is_reached() -> None:
    """Otherwise the tests of this folder would miss a row of the table."""
    seen: set[str | None] = set()
    for state in STATES:
        for event_type in {row.event_type for row in TRANSITIONS}:
            rig, agent = rig_in_state(state)
            rig.send(agent, event_type, **valid_fields(state, event_type, rig, agent))
            seen |= {line.transition for outcome in rig.outcomes for _, line in outcome.records_on("audit")}
    for state, ms in (("Timeout", 300_000), ("Paused", 86_400_000), ("Error", 60_000)):
        rig, _ = rig_in_state(state)
        rig.advance(ms, step_ms=4_999)
        seen |= {line.transition for outcome in rig.outcomes for _, line in outcome.records_on("audit")}
    assert seen - {None} == {transition.id for transition in TRANSITIONS}


@pytest.mark.parametrize("state", ["Idle", "Active", "Paused", "Timeout", "Error", "Terminated"])
@pytest.mark.parametrize(
    ("event_type", "reason"), [("session_start_failed", "init_timeout"), ("session_terminated", "timeout_cleanup")]
)
def test_a_client_must_not_send_a_deadlines_reason(event_type: str, reason: str, state: str) -> None:
    rig, agent = rig_in_state(state)
    assert rig.send(agent, event_type, reason=reason) == "rejected processor_only"


@pytest.mark.parametrize("state", ["Idle", "Paused", "Timeout", "Error"])
def test_a_heartbeat_changes_a_row_only_in_active(state: str) -> None:
    rig, agent = rig_in_state(state)
    rig.at += 1_000
    before = rig.row_of(agent)
    assert rig.send(agent, "heartbeat") == "applied"
    assert rig.row_of(agent) == before._replace(owner_heard_at=rig.at)
