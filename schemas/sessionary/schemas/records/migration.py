"""What processors write to the target service of a migration; times are µs since the epoch."""

from collections.abc import Sequence
from typing import NamedTuple

from sessionary.schemas.enums import DataClass, MigrationStep


class MigrationRequest(NamedTuple):
    """Asks the target of a migration for its next step: to load the session, or to accept it.

    A request may be delivered again.

    Attributes:
        migration_id: UUID of the migration.
        tenant_id: The tenant.
        session_id: The session.
        service_id: The service that is asked: the target.
        from_service: The session's owner.
        step: `offered`: load the session; `prepared`: accept it.
        user_id: The session's user.
        epoch: The session's epoch at the request.
        version: Version of its content at the request.
        data_classes: Classes of the data that the session handles.
        expires_at: Log time at which the migration is aborted.
        requested_at: Log time of the request.
    """

    migration_id: str
    tenant_id: str
    session_id: str
    service_id: str
    from_service: str
    step: MigrationStep
    user_id: str | None
    epoch: int
    version: int
    data_classes: Sequence[DataClass]
    expires_at: int
    requested_at: int
