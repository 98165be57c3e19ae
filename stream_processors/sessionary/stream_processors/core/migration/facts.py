"""What can happen to a migration."""

from typing import Literal, NamedTuple

from sessionary.schemas.migration_types import Migration


class MigrationMoved(NamedTuple):
    """A migration is offered or prepared; `migration` is as it is from now on."""

    at_ms: int
    migration: Migration
    reason: str


class StateDiffered(NamedTuple):
    """The target accepted another state than the session's; the event is refused."""

    migration: Migration


class MigrationCompleted(NamedTuple):
    """The target owns the session from now on. The sender of the event holds it."""

    at_ms: int
    migration: Migration
    agent_id: str
    producer_id: str


AbortReason = Literal[
    "target_silent", "expired", "called_off", "declined", "state_differs", "taken_over", "session_ended"
]


class MigrationAborted(NamedTuple):
    """The migration is over; the owner stays. `due_ms` is set if its time was over."""

    at_ms: int
    migration: Migration
    reason_code: AbortReason
    reason: str
    due_ms: int | None = None


MigrationFact = MigrationMoved | StateDiffered | MigrationCompleted | MigrationAborted

__all__ = [
    "AbortReason",
    "MigrationAborted",
    "MigrationCompleted",
    "MigrationFact",
    "MigrationMoved",
    "StateDiffered",
]
