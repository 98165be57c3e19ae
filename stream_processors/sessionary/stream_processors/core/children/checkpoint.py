"""Checkpoints with data, and snapshots: a row has the last ones of an operation, or of a session.

A checkpoint belongs to the run that its envelope names, or to the session. A later one of the same
operation goes into the same row; the oldest ones leave it. A row has no clock, and vanishes with
its run or session. A checkpoint without data has no row, nor has a snapshot around a tool call.
"""

from collections.abc import Sequence
from typing import Final

from sessionary.schemas.codec import Event, encode_record, record_headers
from sessionary.schemas.events import CheckpointSaved, SessionRolledBack, SnapshotCreated
from sessionary.schemas.ids import checkpoint_key, snapshots_key
from sessionary.schemas.limits import CHECKPOINT_CHARACTERS_MAX, CHECKPOINTS_KEPT
from sessionary.schemas.records import CheckpointState, SessionState
from sessionary.schemas.types import SavedCheckpoint
from sessionary.stream_processors.core.family import (
    ChildFamily,
    Judged,
    SessionArrival,
    UnclockedRows,
    object_to_row_size,
)
from sessionary.stream_processors.core.judge import Objection
from sessionary.stream_processors.core.rows import RowKind

CHECKPOINT_PAYLOADS: Final = (CheckpointSaved, SnapshotCreated, SessionRolledBack)


def judge_checkpoint(session: SessionState, event: Event, arrival: SessionArrival) -> Judged | Objection:
    """Judge a checkpoint or a snapshot, which is the last one of its row: size.

    The session has accepted the snapshot, and made it whole.
    """
    payload, row = event.payload, arrival.child
    assert row is None or isinstance(row, CheckpointState)
    if isinstance(payload, SnapshotCreated):
        snapshot = payload.snapshot
        saved = SavedCheckpoint(snapshot.snapshot_id, arrival.now_ms, snapshot.state_json)
        run_id, operation = None, ""
    else:
        assert isinstance(payload, CheckpointSaved)
        assert payload.data_json is not None  # else it has no row
        place = payload.kind, payload.stage, payload.processed_count, payload.last_item_id, payload.bytes_written
        saved = SavedCheckpoint(payload.checkpoint_id, arrival.now_ms, payload.data_json, *place)
        run_id, operation = event.envelope.run_id or None, payload.operation
    former = () if row is None else row.saved
    after = CheckpointState(session.tenant_id, session.session_id, run_id, operation, _last_ones((*former, saved)))
    return object_to_row_size("checkpoint", arrival.child_key or b"", after, arrival) or Judged(after)


def _last_ones(saved: Sequence[SavedCheckpoint]) -> Sequence[SavedCheckpoint]:
    """Return the last checkpoints, as many as are kept, and always the last one."""
    kept = list(saved[-CHECKPOINTS_KEPT:])
    size = sum(len(each.data_json) for each in kept)
    while size > CHECKPOINT_CHARACTERS_MAX and len(kept) > 1:
        size -= len(kept.pop(0).data_json)
    return tuple(kept)


def find_snapshot(session: SessionState, row: CheckpointState | None, snapshot_id: str) -> str | None:
    """Return the content of a snapshot, as JSON; None if it is not kept.

    `row` has the session's last snapshots. The head of the chain is always known.
    """
    for saved in () if row is None else reversed(row.saved):
        if saved.checkpoint_id == snapshot_id:
            return saved.data_json
    return session.snapshot.state_json if session.snapshot.snapshot_id == snapshot_id else None


def _key_of(event: Event, session: bytes, run: bytes, row: object) -> bytes | None:
    payload = event.payload
    if isinstance(payload, SnapshotCreated) and payload.snapshot.tool is not None:
        return None  # taken before or after a tool call: a session has two of each
    if not isinstance(payload, CheckpointSaved):
        return snapshots_key(session)
    return None if payload.data_json is None else checkpoint_key(run or session, payload.operation)


_KIND: Final = RowKind(
    CheckpointState, live=False, prefixes=record_headers(CheckpointState), encode=encode_record, is_child=True
)
CHECKPOINTS: Final = ChildFamily(UnclockedRows("checkpoint", (_KIND,)), CHECKPOINT_PAYLOADS, _key_of, judge_checkpoint)
