"""What each fact of a migration does to its session's row."""

from sessionary.schemas.records import SessionState
from sessionary.stream_processors.core.session.facts import (
    MigrationAborted,
    MigrationCompleted,
    MigrationMoved,
    StateDiffered,
)
from sessionary.stream_processors.core.session.migration.ownership import add_cleanup, change_owner
from sessionary.stream_processors.core.trail import next_number


def move_migration(row: SessionState, fact: MigrationMoved) -> SessionState:
    """Enter a step of the migration. It is no sign of the agent's life: it restarts no clock."""
    return next_number(row._replace(migration=fact.migration))


def count_difference(row: SessionState, fact: StateDiffered) -> SessionState:
    """Count that the target had another state."""
    return row._replace(migration=fact.migration)


def complete_migration(row: SessionState, fact: MigrationCompleted) -> SessionState:
    """Let the target own the session, and the sender hold it; the former owner is to clean up."""
    target = fact.migration.target_service
    owned = change_owner(row, target, fact.agent_id, fact.producer_id, fact.at_ms)
    completed = next_number(owned._replace(migration=fact.migration._replace(step="completed")))
    return add_cleanup(completed, fact.at_ms)


def abort_migration(row: SessionState, fact: MigrationAborted) -> SessionState:
    """End the migration; the row says why until there is another one."""
    ended = fact.migration._replace(step="aborted", reason_code=fact.reason_code)
    return next_number(row._replace(migration=ended))
