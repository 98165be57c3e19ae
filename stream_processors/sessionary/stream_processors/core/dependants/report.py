"""What each fact of a run, a step or a call leaves, as the session's machine reports it."""

from sessionary.schemas.events import RunQueued
from sessionary.schemas.ids import SessionKey
from sessionary.schemas.records import AuditRecord, SessionState, TaskRequest
from sessionary.stream_processors.core.call.facts import CallBecameUnknown
from sessionary.stream_processors.core.machine import Arrival
from sessionary.stream_processors.core.model import Place
from sessionary.stream_processors.core.run.facts import RunChanged, RunRejected, TaskAdmitted
from sessionary.stream_processors.core.run.transitions import QUOTA_EXCEEDED
from sessionary.stream_processors.core.session.facts import RunOpened
from sessionary.stream_processors.core.step.facts import StepTimedOut
from sessionary.stream_processors.core.trail import at_due_time, session_record


def report_run(
    session: SessionKey, row: SessionState, after: SessionState, fact: RunChanged, arrival: Arrival | None, place: Place
) -> list[AuditRecord]:
    """Report a change of a run; its clock's (`fact.due_ms` is set) occurred when it was due."""
    record = session_record(session, after, arrival, place, "run")._replace(
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
        record = at_due_time(record, fact.due_ms, fact.at_ms)
    return [record]


def report_call(
    session: SessionKey,
    row: SessionState,
    after: SessionState,
    fact: CallBecameUnknown,
    arrival: Arrival | None,
    place: Place,
) -> list[AuditRecord]:
    """Report that nothing is known of a call's outcome; that occurred when its limit was over."""
    record = session_record(session, after, arrival, place, "tool_call")
    return [
        at_due_time(record, fact.due_ms, fact.at_ms)._replace(
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


def report_step(
    session: SessionKey,
    row: SessionState,
    after: SessionState,
    fact: StepTimedOut,
    arrival: Arrival | None,
    place: Place,
) -> list[AuditRecord]:
    """Report that an attempt at a step failed by its limit; that occurred when it was over."""
    record = session_record(session, after, arrival, place, "step")
    return [
        at_due_time(record, fact.due_ms, fact.at_ms)._replace(
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


def report_opened_run(
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


def report_admitted_task(
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


def report_rejected_run(
    session: SessionKey, row: SessionState, after: SessionState, fact: RunRejected, arrival: Arrival, place: Place
) -> list[AuditRecord]:
    """Report that a run is over its tenant's quota; the event that asked is refused by that."""
    record = session_record(session, after, arrival, place, "run")
    record = record._replace(run_id=fact.run_id, from_run_state="queued", to_run_state="rejected")
    told = record._replace(event_type="run_rejected", reason_code=QUOTA_EXCEEDED, reason=fact.reason)
    return [told._replace(user_id=after.user_id)]


__all__ = [
    "report_admitted_task",
    "report_call",
    "report_opened_run",
    "report_rejected_run",
    "report_run",
    "report_step",
]
