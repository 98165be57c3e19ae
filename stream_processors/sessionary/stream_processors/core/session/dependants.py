"""What an event comes to for its run and its child, and a transition for the open runs.

And what their facts leave in the audit trail, and on the topic of tasks.
"""

from collections.abc import Sequence
from typing import Final

from sessionary.schemas.codec import Event
from sessionary.schemas.events import MessageAppended, RunQueued
from sessionary.schemas.ids import SessionKey, run_key
from sessionary.schemas.limits import CHILDREN_MAX
from sessionary.schemas.records import (
    AgentState,
    ArtifactState,
    AuditRecord,
    MessageState,
    QuotaVerdict,
    RunState,
    SessionState,
    StepState,
    TaskRequest,
    ToolCallState,
)
from sessionary.schemas.types import OpenRun, SessionQuota
from sessionary.stream_processors.core.agent.facts import AgentMoved
from sessionary.stream_processors.core.agent.judge import judge_agent
from sessionary.stream_processors.core.artifact.facts import ArtifactMoved
from sessionary.stream_processors.core.artifact.judge import judge_artifact
from sessionary.stream_processors.core.call.facts import CallBecameUnknown, CallMoved
from sessionary.stream_processors.core.call.judge import judge_call
from sessionary.stream_processors.core.dependants.child_naming import ARTIFACT_PAYLOADS, CALL_PAYLOADS, STEP_PAYLOADS
from sessionary.stream_processors.core.machine import Arrival, Decision, ForRow, split_facts
from sessionary.stream_processors.core.message.facts import MessageTaken
from sessionary.stream_processors.core.message.judge import judge_message
from sessionary.stream_processors.core.model import Place
from sessionary.stream_processors.core.run.facts import (
    CallSettled,
    ClaimDecided,
    RunChanged,
    RunRejected,
    SessionEnded,
    SessionTimedOut,
    TaskAdmitted,
)
from sessionary.stream_processors.core.run.judge import RunJudgement, is_of_detached_run, judge_run, makes_run_open
from sessionary.stream_processors.core.run.transitions import QUOTA_EXCEEDED, QUOTA_REQUESTED, RunRow
from sessionary.stream_processors.core.session.admission.claims import SESSION_QUOTA, receive_verdict
from sessionary.stream_processors.core.session.clocks import INACTIVITY
from sessionary.stream_processors.core.session.facts import (
    AgentKept,
    RunClosed,
    RunEventTaken,
    RunOpened,
    SessionFact,
    Transitioned,
    TurnTaken,
    WorkDone,
)
from sessionary.stream_processors.core.session.row_size import object_to_size
from sessionary.stream_processors.core.session.transitions import Objection
from sessionary.stream_processors.core.step.facts import StepMoved, StepTimedOut
from sessionary.stream_processors.core.step.judge import judge_step
from sessionary.stream_processors.core.trail import at_due_time, session_record

# Beside Active, where all work is possible.
_OUTLIVED_STATES: Final = frozenset({"Paused", "Timeout", "Error", "Terminated"})


def outlives_state(row: SessionState, event: Event, run: RunRow | None) -> bool:
    """Return whether an event of a detached run is possible although its session is not Active."""
    return row.state in _OUTLIVED_STATES and is_of_detached_run(event, run) and not makes_run_open(event, run)


def judge_dependants(
    row: SessionState, event: Event, arrival: Arrival, fact: SessionFact | Objection
) -> tuple[SessionFact | Objection, Sequence[SessionFact | ForRow]]:
    """Judge an event against its run and its child, if the session has nothing against it.

    `fact` is what the event comes to for the session. Returns it, or an objection, and the further
    facts: first those for the session, then those for the other rows.
    """
    if type(fact) not in (WorkDone, RunEventTaken):
        return fact, ()
    judgement = judge_run(row, event, arrival)
    if isinstance(judgement, Objection):
        return judgement, ()
    further: list[SessionFact | ForRow] = []
    run_id = event.envelope.run_id
    if judgement is not None and judgement.fact is not None and run_id:
        opened = _session_facts(judgement, event)
        if judgement.opens and (objection := object_to_size(row, opened, arrival)):
            return objection, ()
        further += (*opened, ForRow(arrival.run_key, RunState, judgement.fact))
    if arrival.child_key is not None:
        child = _judge_child(row, event, arrival, arrival.child_key)
        if isinstance(child, Objection):
            return child, ()
        if arrival.siblings >= CHILDREN_MAX and not isinstance(event.payload, MessageAppended):
            parent = f"run {run_id}" if run_id else "session"
            return Objection(
                "too_many_children", f"the {parent} has {arrival.siblings} children, which is the most"
            ), ()
        own, others = split_facts(child)
        further = [*own, *further, *others]
    return fact, further


def _judge_child(
    row: SessionState, event: Event, arrival: Arrival, child_key: bytes
) -> Sequence[SessionFact | ForRow] | Objection:
    """Return what an event is for its child: facts for the session, then those for other rows."""
    payload = event.payload
    if isinstance(payload, CALL_PAYLOADS):
        return _judge_call(row, event, arrival, child_key)
    if isinstance(payload, MessageAppended):
        return take_turn(row, event, arrival, child_key)
    if isinstance(payload, STEP_PAYLOADS):
        assert arrival.run is not None
        step = judge_step(arrival.run, event, arrival)
        if isinstance(step, Objection):
            return step
        return () if step is None else (ForRow(child_key, StepState, StepMoved(step)),)
    if isinstance(payload, ARTIFACT_PAYLOADS):
        artifact = judge_artifact(row, event, arrival)
        if isinstance(artifact, Objection):
            return artifact
        return () if artifact is None else (ForRow(child_key, ArtifactState, ArtifactMoved(artifact)),)
    return _judge_agent(row, event, arrival, child_key)


def _judge_agent(
    row: SessionState, event: Event, arrival: Arrival, child_key: bytes
) -> Sequence[SessionFact | ForRow] | Objection:
    """Return what an event is for its agent: what the session has of it, and the agent's row."""
    judged = judge_agent(row, event, arrival)
    if isinstance(judged, Objection):
        return judged
    if judged is None:
        return ()
    kept = AgentKept(judged.agent, judged.shared_results)
    return object_to_size(row, (kept,), arrival) or (kept, ForRow(child_key, AgentState, AgentMoved(judged.after)))


def take_turn(
    row: SessionState, event: Event, arrival: Arrival, child_key: bytes
) -> Sequence[SessionFact | ForRow] | Objection:
    """Return what a message comes to: the next turn of its session, and the row of that."""
    message = judge_message(row, event, arrival)
    if isinstance(message, Objection):
        return message
    return TurnTaken(message.turn), ForRow(child_key, MessageState, MessageTaken(message))


def _judge_call(row: SessionState, event: Event, arrival: Arrival, child_key: bytes) -> Sequence[ForRow] | Objection:
    """Return what an event is for its call, and for a run that waited for the call."""
    judged = judge_call(row, event, arrival)
    if isinstance(judged, Objection):
        return judged
    moved = ForRow(child_key, ToolCallState, CallMoved(judged.after))
    if arrival.run is None or not judged.settles:
        return (moved,)
    settled = CallSettled(arrival.now_ms, is_active=row.state == "Active")
    return moved, ForRow(arrival.run_key, RunState, settled)


def _session_facts(judgement: RunJudgement, event: Event) -> Sequence[SessionFact]:
    run_id = event.envelope.run_id or ""
    if judgement.opens:
        return (RunOpened(OpenRun(run_id, judgement.is_detached), judgement.asks_quota),)
    return (RunClosed(run_id),) if judgement.closes else ()


def with_claim(row: SessionState, arrival: Arrival) -> SessionState:
    """Return a new session as it waits for its tenant's quota, if the rules say that it asks."""
    if not arrival.rules.session_quotas:
        return row
    assert arrival.event is not None
    claim = SessionQuota(arrival.record.offset, arrival.event.envelope.event_id, granted=False)
    return row._replace(reason_code=QUOTA_REQUESTED, quota=claim)


def decide_claim(row: object, arrival: Arrival, verdict: QuotaVerdict) -> Decision:
    """Judge a verdict on the claim of a session; hand one on a run's claim to that run.

    The run knows whether its claim is open.
    """
    if not isinstance(row, SessionState):
        return Decision(())
    if verdict.quota == SESSION_QUOTA:
        return Decision(receive_verdict(row, verdict, arrival.now_ms))
    key = run_key(*arrival.session, verdict.run_id)
    return Decision((ForRow(key, RunState, ClaimDecided(arrival.now_ms, verdict)),))


def facts_for_runs(row: SessionState, fact: Transitioned) -> Sequence[ForRow]:
    """Return what a transition is for the attached runs of the session; `row`: before or after."""
    if not row.open_runs:
        return ()
    told: SessionTimedOut | SessionEnded
    if fact.transition.target == "Timeout":
        told = SessionTimedOut(fact.at_ms, fact.reason_code, fact.reason_code == INACTIVITY.reason_code)
    elif fact.transition.target == "Terminated":
        told = SessionEnded(fact.at_ms, fact.reason_code)
    else:
        return ()
    session = row.tenant_id, row.session_id
    return [ForRow(run_key(*session, run.run_id), RunState, told) for run in row.open_runs if not run.detached]


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
