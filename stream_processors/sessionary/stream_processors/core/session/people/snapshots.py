"""The committed state of a row as a snapshot: what a pause holds if no client says it."""

from sessionary.schemas.ids import content_hash, derived_id
from sessionary.schemas.records import SessionState
from sessionary.schemas.types import Snapshot


def committed_snapshot(row: SessionState) -> Snapshot:
    """Return a snapshot of a session's committed state: its head, or one that follows the head.

    Head and version decide the id, so that a replay, and a second call, give the same one.
    """
    head = row.snapshot
    is_committed = (head.state_json, head.schema_version, head.encoding) == (
        row.state_json,
        row.state_schema_version,
        "full",
    )
    if is_committed:
        return head
    return Snapshot(
        derived_id(row.tenant_id, row.session_id, "snapshot", head.snapshot_id, row.version),
        parent_snapshot_id=head.snapshot_id,
        schema_version=row.state_schema_version,
        state_json=row.state_json,
        context=head.context,
        content_hash=content_hash(row.state_json),
        encoding="full",
        compression="none",
    )
