"""Snapshots of a session: their checks, their ids, and the processor's own ones.

The row has the whole content of the chain's head. So a delta is resolved against the row alone.
"""

import hashlib
import re
from typing import Final

from sessionary.schemas.events import SessionCreated
from sessionary.schemas.ids import derived_id, snapshot_hash
from sessionary.schemas.records import SessionState
from sessionary.schemas.snapshots import SnapshotCorrupt, whole_snapshot
from sessionary.schemas.types import Snapshot
from sessionary.stream_processors.core.judge import Objection
from sessionary.stream_processors.core.session.facts import SessionFact, SnapshotTaken, Transitioned

SNAPSHOT_IDS_KEPT: Final = 1_024  # of a session's last snapshots; a random id equals an older one never in practice
_ID_BYTES: Final = 6
_ID: Final = re.compile("snap_[0-9a-f]{12}")
_LEFT_OUT: Final = "; its snapshot is left out: "
_WRONG_HASH: Final = "is not that of its content"


def checked_snapshot(row: SessionState, fact: SessionFact | Objection) -> SessionFact | Objection:
    """Return the fact with its whole snapshot, or an objection to that.

    A snapshot follows the head of the session's chain, has an id that is new in the session, and
    has the hash of its content. The end of a session applies without a snapshot that is wrong:
    otherwise no event could end it.
    """
    if not isinstance(fact, (SnapshotTaken, Transitioned)) or fact.snapshot is None:
        return fact
    head = row.snapshot
    objection = _object_to_chain(fact.snapshot, head.snapshot_id) or _object_to_id(fact.snapshot, row)
    if objection is None:
        try:
            whole = whole_snapshot(fact.snapshot, head)
        except SnapshotCorrupt as corrupt:
            objection = Objection(corrupt.reason, corrupt.detail)
        else:
            return fact if whole is fact.snapshot else fact._replace(snapshot=whole)
    if isinstance(fact, Transitioned) and fact.transition.target == "Terminated":
        reason = f"{fact.reason}{_LEFT_OUT}{objection.detail}"
        return fact._replace(snapshot=None, reason=reason)
    return objection


def names_wrong_hash(reason: str) -> bool:
    """Return whether the reason of a session's end says that its snapshot had a wrong hash."""
    return reason.endswith(_WRONG_HASH) and _LEFT_OUT in reason


def first_snapshot(payload: SessionCreated) -> Snapshot | Objection:
    """Return the whole first snapshot of a session, or the objection to it.

    It follows no snapshot, or the one from which the session was restored.
    """
    snapshot = payload.snapshot
    parent = snapshot.parent_snapshot_id
    if parent is not None and parent != payload.restored_from_snapshot_id:
        return _chain_objection(snapshot, payload.restored_from_snapshot_id)
    try:
        return whole_snapshot(snapshot, None)
    except SnapshotCorrupt as corrupt:
        return Objection(corrupt.reason, corrupt.detail)


def _object_to_chain(snapshot: Snapshot, head: str | None) -> Objection | None:
    return None if snapshot.parent_snapshot_id == head else _chain_objection(snapshot, head)


def _chain_objection(snapshot: Snapshot, head: str | None) -> Objection:
    parent = snapshot.parent_snapshot_id
    detail = f"snapshot {snapshot.snapshot_id} follows {parent}, but the head of the chain is {head}"
    return Objection("broken_chain", detail)


def _object_to_id(snapshot: Snapshot, row: SessionState) -> Objection | None:
    if not is_snapshot_known(row, snapshot.snapshot_id):
        return None
    detail = f"snapshot {snapshot.snapshot_id} exists in the session: take it again under a new id"
    return Objection("snapshot_exists", detail)


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
    snapshot = head._replace(
        snapshot_id=_unused_id(row),
        parent_snapshot_id=head.snapshot_id,
        schema_version=row.state_schema_version,
        state_json=row.state_json,
        encoding="full",
        tool=None,
        resources=(),
        content_bytes=0,
    )
    return snapshot._replace(content_hash=snapshot_hash(snapshot))


def _unused_id(row: SessionState) -> str:
    """Return the id of the snapshot that follows the head: the first derived one that is new."""
    number = 0
    while True:
        parts = row.tenant_id, row.session_id, "snapshot", row.snapshot.snapshot_id, row.version
        derived = derived_id(*parts) if number == 0 else derived_id(*parts, number)
        snapshot_id = f"snap_{derived[-12:]}"
        if not is_snapshot_known(row, snapshot_id):
            return snapshot_id
        number += 1


def is_snapshot_known(row: SessionState, snapshot_id: str) -> bool:
    """Return whether the session has a snapshot of this id among its last `SNAPSHOT_IDS_KEPT`."""
    if snapshot_id == row.snapshot.snapshot_id:
        return True
    packed, ids = _packed_id(snapshot_id), row.snapshot_ids
    place = ids.find(packed)
    while place % _ID_BYTES and place >= 0:
        place = ids.find(packed, place + 1)
    return place >= 0


def kept_ids(row: SessionState) -> bytes:
    """Return the ids of a session's last snapshots, once its head is followed by another one."""
    return (row.snapshot_ids + _packed_id(row.snapshot.snapshot_id))[-SNAPSHOT_IDS_KEPT * _ID_BYTES :]


def _packed_id(snapshot_id: str) -> bytes:
    if _ID.fullmatch(snapshot_id):
        return bytes.fromhex(snapshot_id[5:])
    return hashlib.sha256(snapshot_id.encode()).digest()[:_ID_BYTES]


def snapshot_texts(snapshot: Snapshot) -> list[str]:
    """Return the texts of a whole snapshot."""
    texts = [
        snapshot.snapshot_id,
        snapshot.parent_snapshot_id or "",
        snapshot.content_hash,
        snapshot.state_json,
        snapshot.context or "",
    ]
    if snapshot.conversation_id is not None:
        texts.append(snapshot.conversation_id)
    for message in snapshot.messages:
        texts += (message.role, message.content_hash)
    if (tool := snapshot.tool) is not None:
        texts += (tool.tool_call_id, tool.tool_name, tool.parameters_json, tool.status or "", tool.data_json or "")
    for resource in snapshot.resources:
        texts += (resource.uri, resource.operation)
    for name, value in snapshot.metadata.items():
        texts += (name, value)
    return texts
