"""Events of a session that moves to another service.

Its owner, or an operator, offers it to a target. The target loads it while the owner still works,
and says so. Then the processor holds the session, and the target accepts the state that it has.
"""

from typing import NamedTuple


class SessionMigrationOffered(NamedTuple):
    """The session is to move to another service; the owner does not change yet.

    Attributes:
        migration_id: UUID, chosen by the sender.
        target_service: The service that is to own the session.
        ttl_ms: Time in ms after which the migration is aborted if it is not completed.
        reason: Why, for people.
        as_operator: The control API sends it for an operator, whom the envelope's `actor` names.
    """

    migration_id: str
    target_service: str
    ttl_ms: int
    reason: str | None = None
    as_operator: bool = False


class SessionMigrationLoaded(NamedTuple):
    """The target has loaded the session; the processor may hold it until the target accepts it.

    Attributes:
        migration_id: The migration.
    """

    migration_id: str


class SessionMigrationAccepted(NamedTuple):
    """The target takes the session over, if it has the state that the session has.

    Attributes:
        target_service: The sender's service.
        migration_id: The migration.
        version: Version of the state that the target has.
        content_hash: SHA-256 of that state as the target computed it, in hex.
    """

    target_service: str
    migration_id: str | None = None
    version: int | None = None
    content_hash: str | None = None


class SessionMigrationCompleted(NamedTuple):
    """The session has a new owner.

    Only a processor may say so, and it does by an audit record.
    """

    from_service: str
    to_service: str


class SessionMigrationAborted(NamedTuple):
    """The migration is called off; the owner does not change.

    Attributes:
        reason: Why, for people.
        migration_id: The migration.
        as_operator: The control API sends it for an operator, whom the envelope's `actor` names.
    """

    reason: str | None = None
    migration_id: str | None = None
    as_operator: bool = False
