"""The audit trail's records, built from a session and what happened to it.

Each record has the session's next `audit_seq` (gap-free from 1; 0 where no session is known) and the place in the log
of the record that caused it: partition, offset, and which of that record's outcomes it is. Clean-up actions on a
transition are those requested; a confirmation lists them as done or failed.
"""

from typing import NamedTuple

from sessionary.schemas.events import ResourcesReleased
from sessionary.schemas.ids import SessionKey, derived_id
from sessionary.schemas.records import AuditRecord, CleanupRequest, Gravestone, SessionState
from sessionary.schemas.retention import compliance_tags, retention_of
from sessionary.schemas.types import AuditKind, DataClass, Envelope, RefusalReason, SeqRange
from sessionary.stream_processors.core.session.machine import Transitioned
from sessionary.stream_processors.core.session.transitions import cleanup_actions

# Refusals that tell of somebody at the wrong door.
SECURITY_REASONS: frozenset[RefusalReason] = frozenset({"foreign_tenant", "key_mismatch", "not_owner", "stale_epoch"})


class Source(NamedTuple):
    """The place in the log that caused a record, the log's time there (ms), and the transaction that writes it."""

    partition: int
    offset: int
    n: int
    now_ms: int
    batch_number: int


def _record(
    key: SessionKey,
    session: SessionState | Gravestone | None,
    envelope: Envelope | None,
    source: Source,
    kind: AuditKind,
) -> AuditRecord:
    """Return what every record has in common; the session is as it stands after the event."""
    classes: tuple[DataClass, ...] = tuple(session.data_classes) if isinstance(session, SessionState) else ()
    kept = retention_of(classes, source.now_ms * 1000)
    live = session if isinstance(session, SessionState) else None
    state = live.state if live else "UNKNOWN" if session is None else "Archived"
    audit_seq = session.audit_seq if session else 0
    return AuditRecord(
        audit_id=derived_id(*key, audit_seq, source.partition, source.offset, source.n),
        tenant_id=key.tenant_id,
        session_id=key.session_id,
        audit_seq=audit_seq,
        kind=kind,
        transition=None,
        event_id=envelope.event_id if envelope else None,
        event_type=envelope.event_type if envelope else "",
        from_state=state,
        to_state=state,
        reason_code="",
        reason="",
        security=False,
        cleanup_id=None,
        cleanup_actions=(),
        actions_done=(),
        actions_failed=(),
        bytes_released=None,
        host_lost=False,
        compliance_tags=compliance_tags(classes),
        user_id=envelope.user_id if envelope else None,
        agent_id=envelope.agent_id if envelope else None,
        agent_role=envelope.agent_role if envelope else None,
        service_id=envelope.service_id if envelope else None,
        owner_service=live.owner_service if live else None,
        actor=envelope.actor if envelope else None,
        epoch=session.epoch if session else 0,
        version=live.version if live else 0,
        producer_id=envelope.producer_id if envelope else None,
        producer_seq=envelope.producer_seq if envelope else None,
        gap_first=None,
        gap_last=None,
        context_bytes=envelope.context_bytes if envelope else None,
        occurred_at=envelope.occurred_at if envelope else source.now_ms * 1000,
        appended_at=source.now_ms * 1000,
        due_at=None,
        fired_at=None,
        source_partition=source.partition,
        source_offset=source.offset,
        source_n=source.n,
        batch_number=source.batch_number,
        retention_class=kept.retention_class,
        retain_until=kept.retain_until,
        personal_until=kept.personal_until,
    )


def transition_record(
    key: SessionKey,
    before: SessionState | None,
    after: SessionState,
    fact: Transitioned,
    envelope: Envelope | None,
    source: Source,
    cleanup: CleanupRequest | None,
) -> AuditRecord:
    """Report a change of state. A timer's (`fact.due_ms` given) occurred when it was due."""
    record = _record(key, after, envelope, source, "transition")
    record = record._replace(
        transition=fact.transition.id,
        event_type=fact.transition.event_type,
        from_state=before.state if before else "UNKNOWN",
        to_state=fact.transition.target,
        reason_code=fact.reason_code,
        reason=fact.reason,
        cleanup_id=cleanup.cleanup_id if cleanup else None,
        cleanup_actions=cleanup.actions if cleanup else (),
    )
    if fact.due_ms is None:
        return record
    due_at = fact.due_ms * 1000
    return record._replace(occurred_at=due_at, due_at=due_at, fired_at=fact.at_ms * 1000, user_id=after.user_id)


def refusal_record(
    key: SessionKey,
    session: SessionState | Gravestone | None,
    envelope: Envelope | None,
    reason: RefusalReason,
    detail: str,
    source: Source,
) -> AuditRecord:
    """Report a refused event."""
    record = _record(key, session, envelope, source, "refusal")
    return record._replace(reason_code=reason, reason=detail, security=reason in SECURITY_REASONS)


def gap_record(
    key: SessionKey, session: SessionState | Gravestone, envelope: Envelope, gap: SeqRange, source: Source
) -> AuditRecord:
    """Report numbers that a producer jumped over."""
    record = _record(key, session, envelope, source, "gap")
    return record._replace(
        reason_code="gap",
        reason=f"{envelope.producer_id} jumped over {gap.first} to {gap.last}",
        gap_first=gap.first,
        gap_last=gap.last,
    )


def release_record(
    key: SessionKey, session: SessionState, envelope: Envelope, released: ResourcesReleased, source: Source
) -> AuditRecord:
    """Report a confirmed clean-up; only actions that were done count."""
    record = _record(key, session, envelope, source, "release")
    return record._replace(
        reason_code="host_lost" if released.host_lost else "released",
        reason=f"clean-up {released.cleanup_id} confirmed",
        cleanup_id=released.cleanup_id,
        actions_done=tuple(action.action for action in released.actions if action.done),
        actions_failed=tuple(action.action for action in released.actions if not action.done),
        bytes_released=released.bytes_released,
        host_lost=released.host_lost,
    )


def limit_record(
    key: SessionKey, session: SessionState, envelope: Envelope, kind: AuditKind, reason: str, source: Source
) -> AuditRecord:
    """Report an exceeded context limit or limits outside their recommended ranges."""
    return _record(key, session, envelope, source, kind)._replace(reason_code=kind, reason=reason)


def cleanup_request(key: SessionKey, session: SessionState, fact: Transitioned) -> CleanupRequest | None:
    """Return the clean-up that a transition asks for, or None; `session` is as it stands after, its audit_seq included.

    What was released in Timeout is not asked for again at its end.
    """
    actions = cleanup_actions(fact.transition.id, fact.reason_code)
    if not actions or (fact.transition.id == "T08" and session.released_at is not None):
        return None
    return CleanupRequest(
        cleanup_id=derived_id(*key, session.audit_seq),
        tenant_id=key.tenant_id,
        session_id=key.session_id,
        service_id=session.owner_service,
        epoch=session.epoch,
        reason_code=fact.reason_code,
        reason=fact.reason,
        actions=actions,
        requested_at=fact.at_ms * 1000,
        context_bytes=session.context_bytes,
    )


__all__ = [
    "SECURITY_REASONS",
    "Source",
    "cleanup_request",
    "gap_record",
    "limit_record",
    "refusal_record",
    "release_record",
    "transition_record",
]
