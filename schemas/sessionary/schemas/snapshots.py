"""Snapshots as deltas against their parents, compressed ones, and chains of them; pure.

A delta is a JSON Patch (RFC 6902) with the operations `add`, `remove` and `replace`, for the
document `{"context": [lines] | null, "messages": [[role, content_hash, tokens]], "state": {…}}`. It
is exact for every JSON value: a merge patch (RFC 7396) could not set a null. A delta that does not
give back the very text of the state is never made.

    find_state_fault why a text is no state
    whole_snapshot   the whole content of a stored snapshot, once its hash is checked
    stored_snapshot  a snapshot as an event has it: a delta if that is small, and compressed
    read_snapshot    one of them, from the last whole one before it on
    read_chain       the snapshots from the first one to a given one
    examine_chain    the good ones of them, and the faults
"""

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

from sessionary.schemas.errors import Invalid
from sessionary.schemas.ids import snapshot_hash
from sessionary.schemas.limits import ITEMS_MAX, STATE_LEVELS_MAX
from sessionary.schemas.types import RejectionReason, Snapshot, SnapshotMessage

WHOLE_EVERY: Final = 10
"""One of so many snapshots in a row is whole, so that a reader applies at most nine deltas."""
COMPRESSED_ABOVE: Final = 4 << 10
"""State and context of more characters are compressed."""
CONTENT_BYTES_MAX: Final = 8 << 20
"""State and context of more bytes are not read: a compressed event could hold any number."""
_OPERATIONS_MAX: Final = 4_096
_GZIP: Final = 16 + zlib.MAX_WBITS
_BROKEN: Final = (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError, zlib.error)
# Texts, one that has no end too, and what is between them.
_NO_BRACKETS: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[^"\[\]{}]++', re.DOTALL)
_LEVELS: Final = {"{": 1, "[": 1, "}": -1, "]": -1}
_NO_OBJECT: Final = "is not a JSON object, such as {}"


def _refuse_constant(name: str) -> None:
    raise ValueError(f"JSON has no {name}")


_STATES: Final = json.JSONDecoder(parse_constant=_refuse_constant)


def find_state_fault(text: str) -> str:
    """Return why a text is no state, for people, after the text's name; '' if it is one.

    A state is a JSON object. The whole text is read: 25 µs for 4 kB. The fault does not depend on
    the version of Python, nor on the stack, because the judge tells it.
    """
    if text.count("{") + text.count("[") > STATE_LEVELS_MAX and _is_too_deep(text):
        return f"is nested more than {STATE_LEVELS_MAX} levels deep"
    try:
        state = _STATES.decode(text)
    except (ValueError, RecursionError):
        return _NO_OBJECT
    return "" if type(state) is dict else _NO_OBJECT


def _is_too_deep(text: str) -> bool:
    """Return whether a text is nested too deep; takes linear time for any text."""
    brackets = _NO_BRACKETS.sub("", text)
    return max(accumulate(map(_LEVELS.__getitem__, brackets)), default=0) > STATE_LEVELS_MAX


class SnapshotCorrupt(Invalid):
    """A snapshot cannot be read, or a chain of snapshots is broken.

    Attributes:
        snapshot_id: The snapshot that is damaged, missing, or comes twice.
    """

    def __init__(self, reason: RejectionReason, detail: str, snapshot_id: str) -> None:
        super().__init__(reason, detail)
        self.snapshot_id = snapshot_id


def whole_snapshot(snapshot: Snapshot, parent: Snapshot | None) -> Snapshot:
    """Return a stored snapshot with its whole content: `full`, and not compressed.

    `parent`: the whole snapshot before it; only a delta needs it. Raises `SnapshotCorrupt`:
    `hash_mismatch` if the content is damaged, `broken_chain` if the parent is missing,
    `invalid_value` for a form that this release does not know.
    """
    if snapshot.encoding not in ("full", "delta") or snapshot.compression not in ("none", "gzip"):
        form = f"{snapshot.encoding} and {snapshot.compression}"
        detail = f"snapshot {snapshot.snapshot_id} is {form}: this release reads full, delta, none and gzip"
        raise SnapshotCorrupt("invalid_value", detail, snapshot.snapshot_id)
    whole = snapshot
    if snapshot.encoding != "full" or snapshot.compression != "none":
        if snapshot.encoding == "delta" and (parent is None or parent.snapshot_id != snapshot.parent_snapshot_id):
            detail = (
                f"snapshot {snapshot.snapshot_id} is a delta, and its parent {snapshot.parent_snapshot_id} is missing"
            )
            raise SnapshotCorrupt("broken_chain", detail, snapshot.snapshot_id)
        try:
            whole = _read_content(snapshot, parent)
        except _BROKEN:
            raise _mismatch(snapshot) from None
    try:
        is_right = snapshot_hash(whole) == snapshot.content_hash
    except UnicodeEncodeError:  # a lone surrogate that a patch brings
        is_right = False
    if not is_right:
        raise _mismatch(snapshot)
    return whole


def stored_snapshot(snapshot: Snapshot, parent: Snapshot | None) -> Snapshot:
    """Return a whole snapshot as an event has it, without its hash being checked.

    `parent`: the whole snapshot before it; None: no delta is made.
    """
    text, context, stored = snapshot.state_json, snapshot.context, snapshot
    size = len(text) + len(context or "")
    patch = None if parent is None else _make_patch(parent, snapshot)
    if patch is not None and len(patch) < (size + _messages_size(snapshot)) // 2:
        text, context = patch, None
        stored = snapshot._replace(encoding="delta", state_json=text, context=None, messages=())
    if len(text) + len(context or "") <= COMPRESSED_ABOVE:
        return stored
    packer = zlib.compressobj(6, zlib.DEFLATED, _GZIP)
    body = packer.compress(_json_text([text, context]).encode()) + packer.flush()
    return stored._replace(compression="gzip", state_json="", context=None, body=body)


def content_size(snapshot: Snapshot) -> int:
    """Return the size of a whole snapshot's state, context and messages, in bytes."""
    return len(snapshot.state_json.encode()) + len((snapshot.context or "").encode()) + _messages_size(snapshot)


def read_snapshot(snapshots: Mapping[str, Snapshot], name: str) -> Snapshot:
    """Return one whole snapshot: `WHOLE_EVERY` stored ones are read at most, one of them whole.

    `snapshots`: stored ones by their ids; those before the last whole one need not be there. Raises
    `SnapshotCorrupt` as `read_chain` does, for these only.
    """
    ids, faults = _walk_parents(snapshots, name, to_whole=True)
    if faults:
        raise faults[0]
    whole: Snapshot | None = None
    for each in reversed(ids):
        whole = whole_snapshot(snapshots[each], whole)
    assert whole is not None
    return whole


class ExaminedChain(NamedTuple):
    """What can be read of a chain.

    Attributes:
        good: The whole snapshots that have their hash, the first one first.
        faults: What is damaged or missing, in the same order. A delta whose parent cannot be read
            is in neither.
    """

    good: Sequence[Snapshot]
    faults: Sequence[SnapshotCorrupt]


def read_chain(snapshots: Mapping[str, Snapshot], last: str) -> Sequence[Snapshot]:
    """Return the whole snapshots from the first one to `last`, in this order.

    `snapshots`: stored ones by their ids. Raises `SnapshotCorrupt` for a parent that is missing, a
    chain that comes back to itself, and a damaged snapshot.
    """
    good, faults = examine_chain(snapshots, last)
    if faults:
        raise faults[0]
    return good


def examine_chain(snapshots: Mapping[str, Snapshot], last: str) -> ExaminedChain:
    """Return what is good and what is not from the first snapshot to `last`. Ends always.

    The last good one is the one to go on with.
    """
    ids, faults = _walk_parents(snapshots, last)
    good: list[Snapshot] = []
    parent: Snapshot | None = None
    for place, name in enumerate(reversed(ids)):
        stored = snapshots[name]
        if stored.encoding == "delta" and parent is None and (place or faults):
            continue  # for the fault before it
        try:
            parent = whole_snapshot(stored, parent)
            good.append(parent)
        except SnapshotCorrupt as fault:
            parent = None
            faults.append(fault)
    return ExaminedChain(good, faults)


def _walk_parents(
    snapshots: Mapping[str, Snapshot], last: str, *, to_whole: bool = False
) -> tuple[list[str], list[SnapshotCorrupt]]:
    """Return the ids from `last` to the first snapshot, and the fault that ended the walk.

    `to_whole`: to the first whole one on the way instead.
    """
    ids: list[str] = []
    seen = set[str]()
    name: str | None = last
    while name is not None:
        if name in seen:
            fault = SnapshotCorrupt("broken_chain", f"the chain of {last} comes back to snapshot {name}", name)
            return ids, [fault]
        found = snapshots.get(name)
        if found is None:
            where = f"the parent of {ids[-1]}" if ids else "the snapshot asked for"
            return ids, [SnapshotCorrupt("broken_chain", f"snapshot {name}, {where}, is missing", name)]
        seen.add(name)
        ids.append(name)
        name = None if to_whole and found.encoding != "delta" else found.parent_snapshot_id
    return ids, []


def snapshot_document(snapshot: Snapshot) -> dict[str, Any]:
    """Return a whole snapshot as JSON can hold it."""
    document = snapshot._asdict()
    del document["body"]
    return {
        **document,
        "messages": [message._asdict() for message in snapshot.messages],
        "tool": None if snapshot.tool is None else snapshot.tool._asdict(),
        "resources": [resource._asdict() for resource in snapshot.resources],
        "metadata": dict(snapshot.metadata),
    }


def _mismatch(snapshot: Snapshot) -> SnapshotCorrupt:
    detail = f"the hash of snapshot {snapshot.snapshot_id} is not that of its content"
    return SnapshotCorrupt("hash_mismatch", detail, snapshot.snapshot_id)


def _messages_size(snapshot: Snapshot) -> int:
    return sum(len(message.role) + len(message.content_hash) for message in snapshot.messages)


def _json_text(value: Any) -> str:
    """Return JSON as clients write a state: keys sorted, without spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _read_content(snapshot: Snapshot, parent: Snapshot | None) -> Snapshot:
    """Return the whole snapshot. Raises the errors of `_BROKEN`."""
    text, context = snapshot.state_json, snapshot.context
    if snapshot.compression == "gzip":
        text, context = _unpack(snapshot.body or b"")
    whole = snapshot._replace(state_json=text, context=context, encoding="full", compression="none", body=None)
    if snapshot.encoding == "full":
        return whole
    assert parent is not None
    patched = _apply_patch(_document(parent), json.loads(text))
    lines, messages = patched["context"], patched["messages"]
    if len(messages) > ITEMS_MAX:
        raise ValueError("too many messages")
    context = None if lines is None else "".join(lines)
    state_json = _json_text(patched["state"])
    if len(state_json) + len(context or "") > CONTENT_BYTES_MAX:
        raise ValueError("the content is too large")
    return whole._replace(
        state_json=state_json, context=context, messages=tuple(_checked_message(*message) for message in messages)
    )


def _checked_message(role: Any, content_hash: Any, tokens: Any) -> SnapshotMessage:
    if type(role) is not str or type(content_hash) is not str or type(tokens) not in (int, type(None)):
        raise TypeError("a message is role, hash and tokens")
    return SnapshotMessage(role, content_hash, tokens)


def _unpack(body: bytes) -> tuple[str, str | None]:
    unpacker = zlib.decompressobj(_GZIP)
    data = unpacker.decompress(body, CONTENT_BYTES_MAX)
    if not unpacker.eof:
        raise ValueError("the body is cut, or too large")
    text, context = json.loads(data)
    if type(text) is not str or type(context) not in (str, type(None)):
        raise TypeError("a body has two texts")
    return text, context


# JSON Patch.


def _document(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "context": None if snapshot.context is None else snapshot.context.splitlines(keepends=True),
        "messages": [list(message) for message in snapshot.messages],
        "state": json.loads(snapshot.state_json),
    }


def _make_patch(parent: Snapshot, snapshot: Snapshot) -> str | None:
    """Return the patch from `parent` to `snapshot`; None if there is none that is exact."""
    operations: list[dict[str, Any]] = []
    try:
        _diff("", _document(parent), _document(snapshot), operations)
        if len(operations) > _OPERATIONS_MAX:
            return None
        patch = _json_text(operations)
        delta = snapshot._replace(encoding="delta", state_json=patch, context=None, messages=())
        made = _read_content(delta, parent)
    except _BROKEN:
        return None
    # 1, 1.0 and True are equal to Python: then the texts differ, and no delta is made.
    return patch if made[3:5] == snapshot[3:5] and made.messages == tuple(snapshot.messages) else None


def _diff(path: str, old: Any, new: Any, operations: list[dict[str, Any]]) -> None:
    if old == new:
        return
    if type(old) is dict and type(new) is dict:
        operations += [{"op": "remove", "path": f"{path}/{_escape_key(key)}"} for key in old if key not in new]
        for key, value in new.items():
            if key in old:
                _diff(f"{path}/{_escape_key(key)}", old[key], value, operations)
            else:
                operations.append({"op": "add", "path": f"{path}/{_escape_key(key)}", "value": value})
    elif type(old) is list and type(new) is list:
        _diff_lists(path, old, new, operations)
    else:
        operations.append({"op": "replace", "path": path, "value": new})


def _diff_lists(path: str, old: list[Any], new: list[Any], operations: list[dict[str, Any]]) -> None:
    if new and new[0] in old:  # a window that has moved on: its first items went
        gone = old.index(new[0])
        operations += [{"op": "remove", "path": f"{path}/0"}] * gone
        old = old[gone:]
    first, least = 0, min(len(old), len(new))
    while first < least and old[first] == new[first]:
        first += 1
    last = 0
    while last < least - first and old[-1 - last] == new[-1 - last]:
        last += 1
    old_end, new_end = len(old) - last, len(new) - last
    both = min(old_end, new_end)
    for place in range(first, both):
        _diff(f"{path}/{place}", old[place], new[place], operations)
    operations += [{"op": "remove", "path": f"{path}/{both}"}] * (old_end - both)
    operations += [{"op": "add", "path": f"{path}/{place}", "value": new[place]} for place in range(both, new_end)]


def _escape_key(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _apply_patch(document: Any, operations: Any) -> Any:
    """Return a document with a patch applied, which changes it. Raises the errors of `_BROKEN`."""
    if type(operations) is not list or len(operations) > _OPERATIONS_MAX:
        raise TypeError("a patch is a list of operations")
    for operation in operations:
        kind, path = operation["op"], operation["path"]
        if kind not in ("add", "remove", "replace"):
            raise ValueError(f"no delta has the operation {kind}")
        if path == "":
            document = operation["value"]
            continue
        root, *keys, last = [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")]
        if root:
            raise ValueError("a path begins with a slash")
        target = document
        for key in keys:
            target = target[_index(key, len(target) - 1)] if type(target) is list else target[key]
        if type(target) is list:
            _change_list(target, kind, last, operation)
        elif type(target) is not dict or (kind != "add" and last not in target):
            raise KeyError(path)
        elif kind == "remove":
            del target[last]
        else:
            target[last] = operation["value"]
    return document


def _change_list(target: list[Any], kind: str, last: str, operation: Mapping[str, Any]) -> None:
    if kind == "add":
        target.insert(len(target) if last == "-" else _index(last, len(target)), operation["value"])
    elif kind == "remove":
        del target[_index(last, len(target) - 1)]
    else:
        target[_index(last, len(target) - 1)] = operation["value"]


def _index(text: str, most: int) -> int:
    index = int(text) if text.isascii() and text.isdigit() else -1
    if not 0 <= index <= most or str(index) != text:
        raise IndexError(text)
    return index
