"""Snapshots of a session: their checks, their ids, and the processor's own ones.

The row has the whole content of the chain's head. So a delta is resolved against the row alone.

The row knows all ids of the session before the head, as ranges of numbers: a client counts its ids
on from a random number, so a range has those of one object of a client, however many these are.
Of more than `ID_RANGES_MAX` ranges the two become one that are nearest to each other. The numbers
between them were never used and count as used from then on, so no id ever comes twice.
"""

from typing import Final

from sessionary.schemas.events import SessionCreated
from sessionary.schemas.ids import SNAPSHOT_NUMBERS, snapshot_hash, snapshot_id_of, snapshot_number
from sessionary.schemas.records import SessionState
from sessionary.schemas.snapshots import SnapshotCorrupt, find_state_fault, whole_snapshot
from sessionary.schemas.types import Snapshot
from sessionary.stream_processors.core.family import object_to_snapshot_id
from sessionary.stream_processors.core.judge import Objection
from sessionary.stream_processors.core.session.facts import SessionFact, SnapshotTaken, Transitioned

ID_RANGES_MAX: Final = 1_024  # 12 kB of a row; a session of one process has one range
_NUMBER_BYTES: Final = 6
_RANGE_BYTES: Final = 2 * _NUMBER_BYTES  # the first and the last number, in ascending order
_LEFT_OUT: Final = "; its snapshot is left out: "
_WRONG_HASH: Final = "is not that of its content"


def checked_snapshot(row: SessionState, fact: SessionFact | Objection) -> SessionFact | Objection:
    """Return the fact with its whole snapshot, or an objection to that.

    A snapshot follows the head of the session's chain, has an id that is new in the session, the
    hash of its content, and a JSON object as its state. The end of a session applies without a
    snapshot that is wrong: otherwise no event could end it.
    """
    if not isinstance(fact, (SnapshotTaken, Transitioned)) or fact.snapshot is None:
        return fact
    head = row.snapshot
    objection = _object_to_chain(fact.snapshot, head.snapshot_id) or _object_to_id(fact.snapshot, row)
    if objection is None:
        whole = _whole_snapshot(fact.snapshot, head)
        if isinstance(whole, Snapshot):
            return fact if whole is fact.snapshot else fact._replace(snapshot=whole)
        objection = whole
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
    if (objection := object_to_snapshot_id(snapshot.snapshot_id)) is not None:
        return objection
    if parent is not None and parent != payload.restored_from_snapshot_id:
        return _chain_objection(snapshot, payload.restored_from_snapshot_id)
    return _whole_snapshot(snapshot, None)


def _whole_snapshot(snapshot: Snapshot, head: Snapshot | None) -> Snapshot | Objection:
    """Return a snapshot with its whole content, which is a state, or the objection to it."""
    try:
        whole = whole_snapshot(snapshot, head)
    except SnapshotCorrupt as corrupt:
        return Objection(corrupt.reason, corrupt.detail)
    if fault := find_state_fault(whole.state_json):
        return Objection("invalid_value", f"the state of snapshot {whole.snapshot_id} {fault}")
    return whole


def _object_to_chain(snapshot: Snapshot, head: str | None) -> Objection | None:
    return None if snapshot.parent_snapshot_id == head else _chain_objection(snapshot, head)


def _chain_objection(snapshot: Snapshot, head: str | None) -> Objection:
    parent = snapshot.parent_snapshot_id
    detail = f"snapshot {snapshot.snapshot_id} follows {parent}, but the head of the chain is {head}"
    return Objection("broken_chain", detail)


def _object_to_id(snapshot: Snapshot, row: SessionState) -> Objection | None:
    if (objection := object_to_snapshot_id(snapshot.snapshot_id)) is not None:
        return objection
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
    """Return the id of the snapshot that follows the head: of the greatest unused number below it.

    Clients count upwards, so it is none of theirs. It makes the head's range longer.
    """
    head = _number_of(row.snapshot.snapshot_id)
    ranges = _with_number(row.snapshot_ids, head)
    first = _first_of(ranges, _place_after(ranges, head) - _RANGE_BYTES)
    if first == 0:  # then from the greatest number on
        last = len(ranges) - _RANGE_BYTES
        first = _first_of(ranges, last) if _last_of(ranges, last) == SNAPSHOT_NUMBERS - 1 else SNAPSHOT_NUMBERS
    return snapshot_id_of(first - 1)


def is_snapshot_known(row: SessionState, snapshot_id: str) -> bool:
    """Return whether the session has, or had, a snapshot of this id."""
    if snapshot_id == row.snapshot.snapshot_id:
        return True
    number, ranges = snapshot_number(snapshot_id), row.snapshot_ids
    if number is None:
        return False
    place = _place_after(ranges, number) - _RANGE_BYTES
    return place >= 0 and number <= _last_of(ranges, place)


def kept_ids(row: SessionState) -> bytes:
    """Return the ids of a session's snapshots, once its head is followed by another one."""
    return _with_number(row.snapshot_ids, _number_of(row.snapshot.snapshot_id))


def _number_of(snapshot_id: str) -> int:
    """Return the number of an id that was checked."""
    number = snapshot_number(snapshot_id)
    assert number is not None
    return number


def _with_number(ranges: bytes, number: int) -> bytes:
    """Return ranges with one more number, which is in none of them."""
    start = end = _place_after(ranges, number)
    first = last = number
    if start > 0 and _last_of(ranges, start - _RANGE_BYTES) == number - 1:
        start -= _RANGE_BYTES
        first = _first_of(ranges, start)
    if end < len(ranges) and _first_of(ranges, end) == number + 1:
        last = _last_of(ranges, end)
        end += _RANGE_BYTES
    made = first.to_bytes(_NUMBER_BYTES, "big") + last.to_bytes(_NUMBER_BYTES, "big")
    longer = ranges[:start] + made + ranges[end:]
    return longer if len(longer) <= ID_RANGES_MAX * _RANGE_BYTES else _join_nearest(longer)


def _join_nearest(ranges: bytes) -> bytes:
    """Return ranges of which the two that are nearest to each other have become one."""
    nearest, least = 0, SNAPSHOT_NUMBERS
    for place in range(0, len(ranges) - _RANGE_BYTES, _RANGE_BYTES):
        gap = _first_of(ranges, place + _RANGE_BYTES) - _last_of(ranges, place)
        if gap < least:
            nearest, least = place, gap
    return ranges[: nearest + _NUMBER_BYTES] + ranges[nearest + _RANGE_BYTES + _NUMBER_BYTES :]


def _place_after(ranges: bytes, number: int) -> int:
    """Return the place in the bytes of the first range that begins above a number."""
    low, high = 0, len(ranges) // _RANGE_BYTES
    while low < high:
        middle = (low + high) // 2
        if _first_of(ranges, middle * _RANGE_BYTES) > number:
            high = middle
        else:
            low = middle + 1
    return low * _RANGE_BYTES


def _first_of(ranges: bytes, place: int) -> int:
    return int.from_bytes(ranges[place : place + _NUMBER_BYTES], "big")


def _last_of(ranges: bytes, place: int) -> int:
    return _first_of(ranges, place + _NUMBER_BYTES)


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
