"""Types that schemas of migrations share (`avro/common/*.avsc`)."""

from typing import NamedTuple

from sessionary.schemas.enums import MigrationStep, SessionStateName


class Migration(NamedTuple):
    """A session's last migration to another service.

    Attributes:
        migration_id: UUID, chosen by the sender of the offer.
        target_service: The service that is to own the session.
        step: `offered`, `prepared` once the target has loaded the session, and then how it ended.
        offered_at: When it was offered; log time in ms.
        ttl_ms: Aborted after so long.
        from_state: The session's state before it was prepared.
        mismatches: How often the target accepted another state than the session's.
        reason_code: Why it was aborted; else empty.
    """

    migration_id: str
    target_service: str
    step: MigrationStep
    offered_at: int
    ttl_ms: int
    from_state: SessionStateName
    mismatches: int = 0
    reason_code: str = ""

    @property
    def is_open(self) -> bool:
        """Whether it is neither completed nor aborted."""
        return self.step in ("offered", "prepared")

    @property
    def is_prepared(self) -> bool:
        """Whether the target has loaded the session, and proves that it has the same state."""
        return self.step == "prepared"

    @property
    def holds_session(self) -> bool:
        """Whether the session is Paused for it alone: it was Active before."""
        return self.is_prepared and self.from_state == "Active"

    @property
    def expires_at(self) -> int:
        """When it is aborted, ms of log time."""
        return self.offered_at + self.ttl_ms


__all__ = ["Migration", "MigrationStep"]
