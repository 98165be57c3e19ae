"""The records of a session's facts on the audit, rejected, cleanup, tasks and quotas topics.

Clean-up actions on a transition are those requested; a confirmation lists them as done or failed.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from sessionary.schemas.events import ResourcesReleased, RunQueued
from sessionary.schemas.ids import SessionKey, quota_key
from sessionary.schemas.records import (
    AuditRecord,
    CleanupRequest,
    MigrationRequest,
    QuotaNotice,
    RejectedEvent,
    SessionState,
    TaskRequest,
)
from sessionary.schemas.types import Envelope
from sessionary.stream_processors.core.judge import NO_SESSION, Arrival
from sessionary.stream_processors.core.model import Emitted, OutputCause, Stream
from sessionary.stream_processors.core.rows import Remains
from sessionary.stream_processors.core.run.changes import (
    ClaimMoved,
    RunChanged,
    RunRejected,
    TaskAdmitted,
    task_request,
)
from sessionary.stream_processors.core.session.admission import (
    WAITS,
    ClaimAnswered,
    claim_notices,
    report_admission,
    report_tokens,
)
from sessionary.stream_processors.core.session.effects import SessionRow, requested_actions
from sessionary.stream_processors.core.session.facts import (
    CleanupReleased,
    ContentRestored,
    ContextExceeded,
    Created,
    GapFilled,
    GapFound,
    LimitsOverridden,
    MigrationAborted,
    MigrationCompleted,
    MigrationMoved,
    Rejected,
    RequestsAsked,
    RunOpened,
    SessionAdmitted,
    StateHashed,
    TakenOver,
    TokensUsed,
    TransactionMoved,
    Transitioned,
)
from sessionary.stream_processors.core.session.migration import ReportedFact, cleanup_request, migration_records
from sessionary.stream_processors.core.trail import (
    SECURITY_REASONS,
    at_due_time,
    hash_row,
    rejected_record,
    session_record,
)


def _report_creation(
    session: SessionKey, row: None, after: SessionState, fact: Created, arrival: Arrival, cause: OutputCause
) -> list[AuditRecord | QuotaNotice]:
    record = session_record(session, after, arrival, cause, "transition")
    code, reason = after.reason_code, WAITS if after.quota is not None else after.reason_code
    record = record._replace(
        transition=fact.transition.id,
        from_state="UNKNOWN",
        reason_code=code,
        reason=reason,
        row_hash=hash_row(after),
        outage_end_at=arrival.outage_end_ms * 1_000 if arrival.outage_end_ms else None,
    )
    return [record, *claim_notices(None, after)]


def _report_transition(
    session: SessionKey,
    row: SessionState,
    after: SessionState,
    fact: Transitioned,
    arrival: Arrival | None,
    cause: OutputCause,
) -> list[AuditRecord | CleanupRequest | QuotaNotice]:
    """Report a change of state.

    A timer's change (`fact.due_ms` is set) occurred when it was due.
    """
    cleanup = _requested_cleanup(after, fact)
    record = session_record(session, after, arrival, cause, "transition")
    record = record._replace(
        transition=fact.transition.id,
        event_type=fact.transition.event_type,
        from_state=row.state,
        reason_code=fact.reason_code,
        reason=fact.reason,
        cleanup_id=cleanup.cleanup_id if cleanup else None,
        cleanup_actions=cleanup.actions if cleanup else (),
        snapshot_id=fact.snapshot.snapshot_id if arrival is not None and fact.snapshot else None,
        row_hash=hash_row(after),
    )
    if fact.due_ms is not None:
        record = at_due_time(record, fact.due_ms, fact.at_ms)._replace(user_id=after.user_id)
    elif arrival is not None and arrival.counts_as_tick:  # a verdict on the session's claim
        record = record._replace(user_id=after.user_id)
    reported: list[AuditRecord | CleanupRequest | QuotaNotice] = [record, cleanup] if cleanup else [record]
    return reported if row.quota is after.quota else [*reported, *claim_notices(row, after)]


def _requested_cleanup(after: SessionState, fact: Transitioned) -> CleanupRequest | None:
    """Return the clean-up that a transition asks for, or None. `after` holds it already."""
    if not requested_actions(after, fact):
        return None
    return cleanup_request(after, after.cleanups[-1], fact.reason)


def _report_rejection(
    session: SessionKey,
    row: SessionRow | Remains | None,
    after: SessionRow | Remains | None,
    fact: Rejected,
    arrival: Arrival,
    cause: OutputCause,
) -> list[Any]:
    rejected = rejected_record(arrival, fact.reason, fact.detail)
    if not fact.audited:
        return [rejected]
    record = session_record(session, after, arrival, cause, "rejection")
    security = fact.reason in SECURITY_REASONS
    return [record._replace(reason_code=fact.reason, reason=fact.detail, security=security), rejected]


def _report_gap(
    session: SessionKey,
    row: SessionRow | Remains | None,
    after: SessionRow,
    fact: GapFound,
    arrival: Arrival,
    cause: OutputCause,
) -> list[AuditRecord]:
    record = session_record(session, after, arrival, cause, "gap")
    first, last = fact.gap
    reason = f"{_envelope_of(arrival).producer_id} jumped over {first} to {last}"
    return [record._replace(reason_code="gap", reason=reason, gap_first=first, gap_last=last)]


def _report_filled_gap(
    session: SessionKey, row: SessionState, after: SessionState, fact: GapFilled, arrival: Arrival, cause: OutputCause
) -> list[AuditRecord]:
    record = session_record(session, after, arrival, cause, "gap_filled")
    reason = f"a replayed record is {fact.seq} of {_envelope_of(arrival).producer_id}, which was missing"
    return [record._replace(reason_code="gap_filled", reason=reason, gap_first=fact.seq, gap_last=fact.seq)]


def _report_release(
    session: SessionKey,
    row: SessionState,
    after: SessionState,
    fact: CleanupReleased,
    arrival: Arrival,
    cause: OutputCause,
) -> list[AuditRecord]:
    """Report a confirmed clean-up; only actions that were done count."""
    assert arrival.event is not None
    released = arrival.event.payload
    assert isinstance(released, ResourcesReleased)
    record = session_record(session, after, arrival, cause, "release")
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


def _report_asked(
    session: SessionKey,
    row: SessionState,
    after: SessionState,
    fact: RequestsAsked,
    arrival: Arrival,
    cause: OutputCause,
) -> list[Any]:
    """Report how many requests of each kind are sent again, and send them."""
    counts = Counter(_STREAMS[type(request)] for request in fact.requests)
    what = ", ".join(f"{stream} {number}" for stream, number in sorted(counts.items())) or "nothing was open"
    record = session_record(session, after, arrival, cause, "repeat")
    reason = what if fact.reason is None else f"{what}: {fact.reason}"
    return [record._replace(reason_code="asked_again", reason=reason), *fact.requests]


def _report_override(
    session: SessionKey,
    row: SessionState,
    after: SessionState,
    fact: LimitsOverridden,
    arrival: Arrival,
    cause: OutputCause,
) -> list[AuditRecord]:
    record = session_record(session, after, arrival, cause, "limits_override")
    return [record._replace(reason_code="limits_override", reason=fact.reason)]


def _report_context(
    session: SessionKey,
    row: SessionState,
    after: SessionState,
    fact: ContextExceeded,
    arrival: Arrival,
    cause: OutputCause,
) -> list[AuditRecord]:
    record = session_record(session, after, arrival, cause, "context_limit")
    reason = f"context of {fact.size_bytes} bytes is above the limit of {fact.limit_bytes}"
    return [record._replace(reason_code="context_limit", reason=reason)]


def _report_hash(
    session: SessionKey, row: SessionState, after: SessionState, fact: StateHashed, arrival: Arrival, cause: OutputCause
) -> list[AuditRecord]:
    record = session_record(session, after, arrival, cause, "state_hash")
    return [record._replace(reason_code="state_hash", reason="the row's hash", row_hash=hash_row(after))]


def _report_take_over(
    session: SessionKey, row: SessionState, after: SessionState, fact: TakenOver, arrival: Arrival, cause: OutputCause
) -> list[AuditRecord]:
    record = session_record(session, after, arrival, cause, "take_over")
    former = f"{row.agent_id} of {row.owner_service}"
    if row.holder:
        former += f" (process {row.holder})"
    reason = f"{fact.agent_id} of {fact.service_id} (process {fact.producer_id}) took over from {former}"
    if fact.reason:
        reason += f": {fact.reason}"
    return [record._replace(reason_code="taken_over", reason=reason)]


def _report_rollback(
    session: SessionKey,
    row: SessionState,
    after: SessionState,
    fact: ContentRestored,
    arrival: Arrival,
    cause: OutputCause,
) -> list[AuditRecord]:
    record = session_record(session, after, arrival, cause, "rollback")
    return [record._replace(reason_code="rolled_back", reason=fact.reason, snapshot_id=fact.snapshot_id)]


def _report_transaction(
    session: SessionKey,
    row: SessionState,
    after: SessionState,
    fact: TransactionMoved,
    arrival: Arrival | None,
    cause: OutputCause,
) -> list[AuditRecord]:
    """Report a transaction's step; the event type is that of the step, whatever caused it."""
    record = session_record(session, after, arrival, cause, "transaction")
    record = record._replace(
        event_type=f"txn_{fact.step}",
        reason_code=fact.reason_code,
        reason=fact.reason,
        transaction_id=fact.transaction.transaction_id,
    )
    return [record if fact.by_event else record._replace(user_id=after.user_id)]


def _report_migration(
    session: SessionKey,
    row: SessionState,
    after: SessionState,
    fact: ReportedFact,
    arrival: Arrival | None,
    cause: OutputCause,
) -> list[Any]:
    return migration_records(session_record(session, after, arrival, cause, "migration"), row, after, fact)


def _report_opened_run(
    session: SessionKey, row: SessionState, after: SessionState, fact: RunOpened, arrival: Arrival, cause: OutputCause
) -> list[TaskRequest]:
    """Ask for the work of a detached run that was queued; others are their clients' own."""
    assert arrival.event is not None
    envelope, queued = arrival.event
    if fact.asks_quota or not fact.run.detached or not isinstance(queued, RunQueued):
        return []
    user_id = after.user_id if envelope.user_id is None else envelope.user_id
    return [task_request(after, fact.run.run_id, user_id, queued.task_type, queued.input_json, arrival.now_ms)]


def _envelope_of(arrival: Arrival) -> Envelope:
    assert arrival.event is not None
    return arrival.event.envelope


_REPORTS: Final[dict[type[Any], Callable[..., list[Any]]]] = {
    CleanupReleased: _report_release,
    ContentRestored: _report_rollback,
    ContextExceeded: _report_context,
    Created: _report_creation,
    GapFilled: _report_filled_gap,
    GapFound: _report_gap,
    LimitsOverridden: _report_override,
    MigrationAborted: _report_migration,
    MigrationCompleted: _report_migration,
    MigrationMoved: _report_migration,
    Rejected: _report_rejection,
    RequestsAsked: _report_asked,
    RunOpened: _report_opened_run,
    SessionAdmitted: report_admission,
    StateHashed: _report_hash,
    TakenOver: _report_take_over,
    TokensUsed: report_tokens,
    TransactionMoved: _report_transaction,
    Transitioned: _report_transition,
}
REPORTED_FACTS: Final = frozenset({*_REPORTS, ClaimAnswered, ClaimMoved, RunChanged, RunRejected, TaskAdmitted})
_STREAMS: Final[dict[type[Any], Stream]] = {
    AuditRecord: "audit",
    CleanupRequest: "cleanup",
    MigrationRequest: "migrations",
    QuotaNotice: "quotas",
    RejectedEvent: "rejected",
    TaskRequest: "tasks",
}


def report_fact(
    key: bytes,
    row: SessionRow | Remains | None,
    after: SessionRow | Remains | None,
    fact: Any,
    arrival: Arrival | None,
    cause: OutputCause,
) -> list[Emitted]:
    """Return the records of a fact, each with its topic and key.

    `fact` is a `SessionFact`, or a fact that reports itself (`family.ReportedFact`).
    """
    if arrival is not None:
        session = arrival.session
    else:
        session = NO_SESSION if row is None or isinstance(row, Remains) else SessionKey(row.tenant_id, row.session_id)
    emitted: list[Emitted] = []
    report = _REPORTS.get(type(fact))
    if report is None:
        records = fact.report(session, row, after, arrival, cause)
    else:
        records = report(session, row, after, fact, arrival, cause)
    for record in records:
        stream = _STREAMS[type(record)]
        if stream == "quotas":
            emitted.append(Emitted(stream, quota_key(record.tenant_id, record.quota), record))
            continue
        emitted.append(Emitted(stream, record.key if stream == "rejected" else key, record))
    return emitted
