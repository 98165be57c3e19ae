"""The error of a session that does not migrate.

SessionaryError
└── ProducerError
    └── MigrationAborted(reason_code)    a migration of the session did not come about

The bases, and the client's other errors, are in `sessionary.producers.errors`.
"""

from sessionary.producers.errors import ProducerError


class MigrationAborted(ProducerError):
    """A migration did not come about: the session stays where it is, and goes on there.

    Attributes:
        session_id: The session.
        migration_id: The migration.
        target_service: The service that was to own the session.
        reason_code: `target_silent` if the target did not load the session in time, `expired` if it
            did not accept it in time, `called_off`, `declined` by the target, `state_differs` if
            the target had another state three times, `taken_over` or `session_ended`; `UNKNOWN`.
    """

    def __init__(self, session_id: str, migration_id: str, target_service: str, reason_code: str) -> None:
        super().__init__(f"session {session_id} did not migrate to {target_service}: {reason_code}")
        self.session_id = session_id
        self.migration_id = migration_id
        self.target_service = target_service
        self.reason_code = reason_code
