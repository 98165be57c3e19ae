"""What each fact of a migration does to its session's row."""

from sessionary.schemas.ids import derived_id
from sessionary.schemas.records import SessionState
from sessionary.schemas.types import Cleanup
from sessionary.stream_processors.core.session.facts import (
    MigrationAborted,
    MigrationCompleted,
    MigrationMoved,
    StateDiffered,
)
from sessionary.stream_processors.core.trail import next_number

CLEANUPS_KEPT = 8


def move_migration(row: SessionState, fact: MigrationMoved) -> SessionState:
    """Enter a step of the migration. It is no sign of the agent's life: it restarts no clock."""
    return next_number(row._replace(migration=fact.migration))


def count_difference(row: SessionState, fact: StateDiffered) -> SessionState:
    """Count that the target had another state."""
    return row._replace(migration=fact.migration)


def complete_migration(row: SessionState, fact: MigrationCompleted) -> SessionState:
    """Let the target own the session, and the sender hold it; the former owner is to clean up."""
    after = next_number(
        row._replace(
            epoch=row.epoch + 1,
            owner_service=fact.migration.target_service,
            agent_id=fact.agent_id,
            holder=fact.producer_id,
            holder_epoch=row.epoch + 1,
            owner_heard_at=fact.at_ms,
            migration=fact.migration._replace(step="completed"),
            last_event_at=fact.at_ms,
            last_work_at=fact.at_ms,
        )
    )
    cleanup = Cleanup(derived_id(after.tenant_id, after.session_id, after.audit_seq), fact.at_ms, released=False)
    return after._replace(cleanups=(*after.cleanups, cleanup)[-CLEANUPS_KEPT:])


def abort_migration(row: SessionState, fact: MigrationAborted) -> SessionState:
    """End the migration; the row says why until there is another one."""
    ended = fact.migration._replace(step="aborted", reason_code=fact.reason_code)
    return next_number(row._replace(migration=ended))


__all__ = ["CLEANUPS_KEPT", "abort_migration", "complete_migration", "count_difference", "move_migration"]
