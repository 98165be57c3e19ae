"""What each fact of a migration leaves: audit records, and requests to target and former owner."""

from sessionary.schemas.records import AuditRecord, CleanupRequest, MigrationRequest, SessionState
from sessionary.stream_processors.core.session.facts import MigrationAborted, MigrationCompleted, MigrationMoved
from sessionary.stream_processors.core.session.migration.transitions import CLEANUP_ACTIONS, CLEANUP_REASON
from sessionary.stream_processors.core.trail import at_due_time

ReportedFact = MigrationMoved | MigrationCompleted | MigrationAborted


def migration_records(
    record: AuditRecord, row: SessionState, after: SessionState, fact: ReportedFact
) -> list[AuditRecord | CleanupRequest | MigrationRequest]:
    """Return the records of a fact. `record` has what all audit records of the session have."""
    migration = fact.migration
    record = record._replace(
        migration_id=migration.migration_id,
        from_service=row.owner_service,
        to_service=migration.target_service,
        user_id=after.user_id if record.event_id is None else record.user_id,
    )
    if isinstance(fact, MigrationMoved):
        told = _told(record, migration.step, migration.step, fact.reason)
        return [told, _migration_request(after, fact)]
    if isinstance(fact, MigrationAborted):
        told = _told(record, "aborted", fact.reason_code, fact.reason)
        return [told if fact.due_ms is None else at_due_time(told, fact.due_ms, fact.at_ms)]
    reason = f"{migration.target_service} owns the session, after {row.owner_service}"
    cleanup = CleanupRequest(
        cleanup_id=after.cleanups[-1].cleanup_id,
        tenant_id=after.tenant_id,
        session_id=after.session_id,
        service_id=row.owner_service,
        epoch=row.epoch,
        reason_code=CLEANUP_REASON,
        reason=reason,
        actions=CLEANUP_ACTIONS,
        requested_at=fact.at_ms * 1000,
        context_bytes=after.context_bytes,
    )
    told = _told(record, "completed", CLEANUP_REASON, reason)
    return [told._replace(cleanup_id=cleanup.cleanup_id, cleanup_actions=cleanup.actions), cleanup]


def _told(record: AuditRecord, step: str, reason_code: str, reason: str) -> AuditRecord:
    event_type = f"session_migration_{step}"
    return record._replace(event_type=event_type, migration_step=step, reason_code=reason_code, reason=reason)


def _migration_request(after: SessionState, fact: MigrationMoved) -> MigrationRequest:
    migration = fact.migration
    return MigrationRequest(
        migration_id=migration.migration_id,
        tenant_id=after.tenant_id,
        session_id=after.session_id,
        service_id=migration.target_service,
        from_service=after.owner_service,
        step=migration.step,
        user_id=after.user_id,
        epoch=after.epoch,
        version=after.version,
        data_classes=after.data_classes,
        expires_at=migration.expires_at * 1000,
        requested_at=fact.at_ms * 1000,
    )
