"""What each fact of a session leaves on the audit, rejected, cleanup and tasks topics.

Clean-up actions on a transition are those requested; a confirmation lists them as done or failed.
"""

from collections.abc import Callable
from typing import Any

from sessionary.schemas.events import ResourcesReleased, RunQueued
from sessionary.schemas.ids import SessionKey
from sessionary.schemas.records import AuditRecord, CleanupRequest, SessionState, TaskRequest
from sessionary.schemas.types import AuditKind, Envelope
from sessionary.stream_processors.core.call.facts import CallBecameUnknown
from sessionary.stream_processors.core.machine import NO_SESSION, Arrival, Remains
from sessionary.stream_processors.core.model import Emitted, Place
from sessionary.stream_processors.core.run.facts import RunChanged, RunRejected, TaskAdmitted
from sessionary.stream_processors.core.run.transitions import QUOTA_EXCEEDED
from sessionary.stream_processors.core.session.effects import SessionRow, requested_actions
from sessionary.stream_processors.core.session.facts import (
    CleanupReleased,
    ContextExceeded,
    Created,
    GapFilled,
    GapFound,
    LimitsOverridden,
    Refused,
    RunOpened,
    SessionFact,
    TakenOver,
    Transitioned,
)
from sessionary.stream_processors.core.step.facts import StepTimedOut
from sessionary.stream_processors.core.trail import (
    SECURITY_REASONS,
    UNKNOWN_SUBJECT,
    Subject,
    audit_record,
    rejected_record,
)


def subject_of(row: SessionRow | Remains | None) -> Subject:
    """Return what an audit record says of the session itself."""
    if row is None:
        return UNKNOWN_SUBJECT
    if isinstance(row, Remains):
        return Subject("Archived")
    if not isinstance(row, SessionState):
        return Subject("Archived", row.audit_seq, row.epoch)
    return Subject(row.state, row.audit_seq, row.epoch, row.version, row.owner_service, row.data_classes)


def _session_record(
    session: SessionKey, after: SessionRow | Remains | None, arrival: Arrival | None, place: Place, kind: AuditKind
) -> AuditRecord:
    subject, envelope = subject_of(after), None
    if arrival is not None and arrival.event is not None:
        envelope = arrival.event.envelope
        if arrival.rules.version >= 2 and not isinstance(after, SessionState):
            # No row says what the session handles: the event does.
            subject = subject._replace(data_classes=tuple(sorted(set(envelope.data_classes))))
    return audit_record(session, subject, envelope, place, kind)


def _report_creation(
    session: SessionKey, row: None, after: SessionState, fact: Created, arrival: Arrival, place: Place
) -> list[AuditRecord]:
    record = _session_record(session, after, arrival, place, "transition")
    return [
        record._replace(transition=fact.transition.id, from_state="UNKNOWN", reason_code="created", reason="created")
    ]


def _report_transition(
    session: SessionKey,
    row: SessionState,
    after: SessionState,
    fact: Transitioned,
    arrival: Arrival | None,
    place: Place,
) -> list[AuditRecord | CleanupRequest]:
    """Report a change of state.

    A timer's change (`fact.due_ms` is set) occurred when it was due.
    """
    cleanup = cleanup_request(session, after, fact)
    # Audit records by rules 1 have no place for it.
    tells_snapshot = fact.snapshot is not None and arrival is not None and arrival.rules.version >= 2
    record = _session_record(session, after, arrival, place, "transition")
    record = record._replace(
        transition=fact.transition.id,
        event_type=fact.transition.event_type,
        from_state=row.state,
        reason_code=fact.reason_code,
        reason=fact.reason,
        cleanup_id=cleanup.cleanup_id if cleanup else None,
        cleanup_actions=cleanup.actions if cleanup else (),
        snapshot_id=fact.snapshot.snapshot_id if tells_snapshot and fact.snapshot else None,
    )
    if fact.due_ms is not None:
        record = _at_due_time(record, fact.due_ms, fact.at_ms)._replace(user_id=after.user_id)
    return [record, cleanup] if cleanup else [record]


def cleanup_request(session: SessionKey, after: SessionState, fact: Transitioned) -> CleanupRequest | None:
    """Return the clean-up that a transition asks for, or None. `after` has its id already."""
    actions = requested_actions(after, fact)
    if not actions:
        return None
    return CleanupRequest(
        cleanup_id=after.cleanups[-1].cleanup_id,
        tenant_id=session.tenant_id,
        session_id=session.session_id,
        service_id=after.owner_service,
        epoch=after.epoch,
        reason_code=fact.reason_code,
        reason=fact.reason,
        actions=actions,
        requested_at=fact.at_ms * 1000,
        context_bytes=after.context_bytes,
    )


def _report_refusal(
    session: SessionKey,
    row: SessionRow | Remains | None,
    after: SessionRow | Remains | None,
    fact: Refused,
    arrival: Arrival,
    place: Place,
) -> list[Any]:
    rejected = rejected_record(arrival, fact.reason, fact.detail)
    if not fact.audited:
        return [rejected]
    record = _session_record(session, after, arrival, place, "refusal")
    security = fact.reason in SECURITY_REASONS
    return [record._replace(reason_code=fact.reason, reason=fact.detail, security=security), rejected]


def _report_gap(
    session: SessionKey,
    row: SessionRow | Remains | None,
    after: SessionRow,
    fact: GapFound,
    arrival: Arrival,
    place: Place,
) -> list[AuditRecord]:
    record = _session_record(session, after, arrival, place, "gap")
    first, last = fact.gap
    reason = f"{_envelope_of(arrival).producer_id} jumped over {first} to {last}"
    return [record._replace(reason_code="gap", reason=reason, gap_first=first, gap_last=last)]


def _report_filled_gap(
    session: SessionKey, row: SessionState, after: SessionState, fact: GapFilled, arrival: Arrival, place: Place
) -> list[AuditRecord]:
    record = _session_record(session, after, arrival, place, "gap_filled")
    reason = f"a replayed record is {fact.seq} of {_envelope_of(arrival).producer_id}, which was missing"
    return [record._replace(reason_code="gap_filled", reason=reason, gap_first=fact.seq, gap_last=fact.seq)]


def _report_release(
    session: SessionKey,
    row: SessionState,
    after: SessionState,
    fact: CleanupReleased,
    arrival: Arrival,
    place: Place,
) -> list[AuditRecord]:
    """Report a confirmed clean-up; only actions that were done count."""
    assert arrival.event is not None
    released = arrival.event.payload
    assert isinstance(released, ResourcesReleased)
    record = _session_record(session, after, arrival, place, "release")
    return [
        record._replace(
            reason_code="host_lost" if released.host_lost else "released",
            reason=f"clean-up {released.cleanup_id} confirmed",
            cleanup_id=released.cleanup_id,
            actions_done=tuple(action.action for action in released.actions if action.done),
            actions_failed=tuple(action.action for action in released.actions if not action.done),
            bytes_released=released.bytes_released,
            host_lost=released.host_lost,
        )
    ]


def _report_override(
    session: SessionKey, row: SessionState, after: SessionState, fact: LimitsOverridden, arrival: Arrival, place: Place
) -> list[AuditRecord]:
    record = _session_record(session, after, arrival, place, "limits_override")
    return [record._replace(reason_code="limits_override", reason=fact.reason)]


def _report_context(
    session: SessionKey, row: SessionState, after: SessionState, fact: ContextExceeded, arrival: Arrival, place: Place
) -> list[AuditRecord]:
    record = _session_record(session, after, arrival, place, "context_limit")
    reason = f"context of {fact.size_bytes} bytes is above the limit of {fact.limit_bytes}"
    return [record._replace(reason_code="context_limit", reason=reason)]


def _report_take_over(
    session: SessionKey, row: SessionState, after: SessionState, fact: TakenOver, arrival: Arrival, place: Place
) -> list[AuditRecord]:
    record = _session_record(session, after, arrival, place, "take_over")
    former = f"{row.agent_id} of {row.owner_service}"
    if row.holder:
        former += f" (process {row.holder})"
    reason = f"{fact.agent_id} of {fact.service_id} (process {fact.producer_id}) took over from {former}"
    return [record._replace(reason_code="taken_over", reason=reason)]


def _report_run(
    session: SessionKey, row: SessionState, after: SessionState, fact: RunChanged, arrival: Arrival | None, place: Place
) -> list[AuditRecord]:
    """Report a change of a run; its clock's (`fact.due_ms` is set) occurred when it was due."""
    record = _session_record(session, after, arrival, place, "run")._replace(
        event_type="run_resumed" if fact.to_state == "running" else f"run_{fact.to_state}",
        reason_code=fact.reason_code,
        reason=fact.reason,
        run_id=fact.run_id,
        from_run_state=fact.from_state,
        to_run_state=fact.to_state,
        checkpoint_id=fact.checkpoint_id,
    )
    if arrival is None or arrival.event is None:
        record = record._replace(user_id=after.user_id)
    if fact.due_ms is not None:
        record = _at_due_time(record, fact.due_ms, fact.at_ms)
    return [record]


def _report_call(
    session: SessionKey,
    row: SessionState,
    after: SessionState,
    fact: CallBecameUnknown,
    arrival: Arrival | None,
    place: Place,
) -> list[AuditRecord]:
    """Report that nothing is known of a call's outcome; that occurred when its limit was over."""
    record = _session_record(session, after, arrival, place, "tool_call")
    return [
        _at_due_time(record, fact.due_ms, fact.at_ms)._replace(
            event_type="tool_call_unknown",
            reason_code=fact.reason_code,
            reason=fact.reason,
            user_id=after.user_id,
            run_id=fact.run_id,
            tool_name=fact.tool_name,
            idem_key=fact.idem_key,
            from_call_state="running",
            to_call_state="unknown",
        )
    ]


def _report_step(
    session: SessionKey,
    row: SessionState,
    after: SessionState,
    fact: StepTimedOut,
    arrival: Arrival | None,
    place: Place,
) -> list[AuditRecord]:
    """Report that an attempt at a step failed by its limit; that occurred when it was over."""
    record = _session_record(session, after, arrival, place, "step")
    return [
        _at_due_time(record, fact.due_ms, fact.at_ms)._replace(
            event_type="step_failed",
            reason_code=fact.reason_code,
            reason=fact.reason,
            user_id=after.user_id,
            run_id=fact.run_id,
            step_name=fact.name,
            step_attempt=fact.attempt,
            from_step_state="running",
            to_step_state="failed",
        )
    ]


def _at_due_time(record: AuditRecord, due_ms: int, fired_ms: int) -> AuditRecord:
    """Return a record of what a clock did: it occurred when it was due. Takes ms of log time."""
    due_at = due_ms * 1000
    return record._replace(occurred_at=due_at, due_at=due_at, fired_at=fired_ms * 1000)


def _report_opened_run(
    session: SessionKey, row: SessionState, after: SessionState, fact: RunOpened, arrival: Arrival, place: Place
) -> list[TaskRequest]:
    """Ask for the work of a detached run that was queued; others are their clients' own."""
    assert arrival.event is not None
    envelope, queued = arrival.event
    if fact.asks_quota or not fact.run.detached or not isinstance(queued, RunQueued):
        return []
    return [
        TaskRequest(
            tenant_id=session.tenant_id,
            session_id=session.session_id,
            run_id=fact.run.run_id,
            service_id=after.owner_service,
            user_id=after.user_id if envelope.user_id is None else envelope.user_id,
            epoch=after.epoch,
            task_type=queued.task_type,
            input_json=queued.input_json,
            data_classes=after.data_classes,
            requested_at=arrival.now_ms * 1000,
        )
    ]


def _report_admitted_task(
    session: SessionKey, row: SessionState, after: SessionState, fact: TaskAdmitted, arrival: Arrival, place: Place
) -> list[TaskRequest]:
    """Ask for the work of a task once its tenant's quota admits it."""
    run = fact.run
    return [
        TaskRequest(
            tenant_id=session.tenant_id,
            session_id=session.session_id,
            run_id=run.run_id,
            service_id=after.owner_service,
            user_id=run.user_id,
            epoch=after.epoch,
            task_type=run.task_type,
            input_json=run.input_json,
            data_classes=after.data_classes,
            requested_at=fact.at_ms * 1000,
        )
    ]


def _report_rejected_run(
    session: SessionKey, row: SessionState, after: SessionState, fact: RunRejected, arrival: Arrival, place: Place
) -> list[AuditRecord]:
    """Report that a run is over its tenant's quota; the event that asked is refused by that."""
    record = _session_record(session, after, arrival, place, "run")
    record = record._replace(run_id=fact.run_id, from_run_state="queued", to_run_state="rejected")
    told = record._replace(event_type="run_rejected", reason_code=QUOTA_EXCEEDED, reason=fact.reason)
    return [told._replace(user_id=after.user_id)]


def _envelope_of(arrival: Arrival) -> Envelope:
    assert arrival.event is not None
    return arrival.event.envelope


_REPORTS: dict[type[Any], Callable[..., list[Any]]] = {
    CallBecameUnknown: _report_call,
    CleanupReleased: _report_release,
    ContextExceeded: _report_context,
    Created: _report_creation,
    GapFilled: _report_filled_gap,
    GapFound: _report_gap,
    LimitsOverridden: _report_override,
    Refused: _report_refusal,
    RunChanged: _report_run,
    RunOpened: _report_opened_run,
    RunRejected: _report_rejected_run,
    StepTimedOut: _report_step,
    TakenOver: _report_take_over,
    TaskAdmitted: _report_admitted_task,
    Transitioned: _report_transition,
}
REPORTED_FACTS = frozenset(_REPORTS)


def report_fact(
    key: bytes,
    row: SessionRow | Remains | None,
    after: SessionRow | Remains | None,
    fact: SessionFact,
    arrival: Arrival | None,
    place: Place,
) -> list[Emitted]:
    """Return the records of a fact, each with its topic and key."""
    if arrival is not None:
        session = arrival.session
    else:
        session = NO_SESSION if row is None or isinstance(row, Remains) else SessionKey(row.tenant_id, row.session_id)
    emitted: list[Emitted] = []
    for record in _REPORTS[type(fact)](session, row, after, fact, arrival, place):
        if isinstance(record, AuditRecord):
            emitted.append(Emitted("audit", key, record))
        elif isinstance(record, CleanupRequest):
            emitted.append(Emitted("cleanup", key, record))
        elif isinstance(record, TaskRequest):
            emitted.append(Emitted("tasks", key, record))
        else:
            emitted.append(Emitted("rejected", record.key, record))
    return emitted


__all__ = ["REPORTED_FACTS", "cleanup_request", "report_fact", "subject_of"]
