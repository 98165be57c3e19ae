"""What a new owner of a session means for the session's row, however it came to own it."""

from sessionary.schemas.ids import derived_id
from sessionary.schemas.records import SessionState
from sessionary.schemas.types import Cleanup

CLEANUPS_KEPT = 8


def change_owner(row: SessionState, service_id: str, agent_id: str, producer_id: str, at_ms: int) -> SessionState:
    """Return the row as its next epoch begins: owned by a service, held by one of its clients.

    That client is a sign of life at `at_ms` (log time), so the clocks of activity begin again.
    """
    return row._replace(
        epoch=row.epoch + 1,
        owner_service=service_id,
        agent_id=agent_id,
        holder=producer_id,
        holder_epoch=row.epoch + 1,
        owner_heard_at=at_ms,
        last_event_at=at_ms,
        last_work_at=at_ms,
    )


def add_cleanup(row: SessionState, at_ms: int) -> SessionState:
    """Return the row with one more clean-up; its id follows from the row's last audit number."""
    cleanup = Cleanup(derived_id(row.tenant_id, row.session_id, row.audit_seq), at_ms, released=False)
    return row._replace(cleanups=(*row.cleanups, cleanup)[-CLEANUPS_KEPT:])
