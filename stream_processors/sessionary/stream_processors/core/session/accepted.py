"""Events that a session accepts without a change of state: what each of them comes to."""

from collections.abc import Callable
from typing import Any

from sessionary.schemas.events import SnapshotCreated, StateUpdated
from sessionary.schemas.limits import HEARTBEATS_PER_BUDGET, inactivity_budget_ms
from sessionary.schemas.records import SessionState
from sessionary.schemas.topics import VALUE_BYTES_MAX
from sessionary.schemas.types import Envelope
from sessionary.stream_processors.core.clock import format_seconds
from sessionary.stream_processors.core.machine import Arrival
from sessionary.stream_processors.core.session.facts import (
    CleanupReleased,
    ContentUpdated,
    HeartbeatSeen,
    PhaseMoved,
    SessionFact,
    SnapshotTaken,
    TakenOver,
    WorkDone,
)
from sessionary.stream_processors.core.session.transitions import PHASES, Objection

STATE_BYTES_MAX = VALUE_BYTES_MAX
_BEATS_MISSED = 2
AcceptRule = Callable[[SessionState, Any, int], SessionFact | Objection]  # session, payload, log time in ms


def _move_phase(state: SessionState, payload: Any, now_ms: int) -> SessionFact | Objection:
    if (state.phase, payload.phase) in PHASES[state.state]:
        return PhaseMoved(payload.phase, now_ms)
    return Objection("phase_order", f"{payload.phase} does not follow {state.phase} in {state.state}")


def _update_content(state: SessionState, payload: StateUpdated, now_ms: int) -> SessionFact | Objection:
    if payload.base_version != state.version or payload.new_version != state.version + 1:
        return Objection(
            "version_conflict",
            f"{payload.base_version} to {payload.new_version}, but the session is at version {state.version}",
        )
    if len(payload.state_json.encode()) > STATE_BYTES_MAX:
        return Objection("state_too_large", f"a state above {STATE_BYTES_MAX} bytes goes by reference")
    return ContentUpdated(payload.new_version, payload.state_json, now_ms)


def _take_snapshot(state: SessionState, payload: SnapshotCreated, now_ms: int) -> SessionFact | Objection:
    return SnapshotTaken(payload.snapshot, now_ms)


def _do_work(state: SessionState, payload: object, now_ms: int) -> SessionFact | Objection:
    return WorkDone(now_ms)


def _see_heartbeat(state: SessionState, payload: object, now_ms: int) -> SessionFact | Objection:
    return HeartbeatSeen(now_ms)


def _release_cleanup(state: SessionState, payload: Any, now_ms: int) -> SessionFact | Objection:
    for cleanup in state.cleanups:
        if cleanup.cleanup_id == payload.cleanup_id:
            if cleanup.released:
                return Objection("already_released", f"clean-up {payload.cleanup_id} was confirmed before")
            return CleanupReleased(payload.cleanup_id, now_ms)
    return Objection("unknown_cleanup", f"nobody asked for clean-up {payload.cleanup_id}")


def take_over_session(state: SessionState, envelope: Envelope, arrival: Arrival) -> TakenOver | Objection:
    """Let the sender of an event hold the session.

    Another service has to wait until the owning one has missed two heartbeats.
    """
    if envelope.service_id != state.owner_service:
        # The row of a session that rules 1 judged does not say whose its last event was.
        heard_ms = max(state.owner_heard_at or state.last_event_at, arrival.hole_end_ms)
        limit_ms = _BEATS_MISSED * inactivity_budget_ms(state.limits) // HEARTBEATS_PER_BUDGET
        if arrival.now_ms - heard_ms < limit_ms:
            owner, limit = state.owner_service, format_seconds(limit_ms)
            detail = f"{owner} may be alive; {envelope.service_id} may take over once {owner} is silent for {limit}"
            return Objection("owner_alive", detail)
    return TakenOver(envelope.service_id, envelope.agent_id, envelope.producer_id, arrival.now_ms)


_SPECIAL_RULES: dict[str, AcceptRule] = {
    "session_phase_changed": _move_phase,
    "state_updated": _update_content,
    "heartbeat": _see_heartbeat,
    "resources_released": _release_cleanup,
    "snapshot_created": _take_snapshot,
}


def rule_for(event_type: str) -> AcceptRule:
    """Return the rule of an accepted event; by default the event is work."""
    return _SPECIAL_RULES.get(event_type, _do_work)


__all__ = ["STATE_BYTES_MAX", "AcceptRule", "rule_for", "take_over_session"]
