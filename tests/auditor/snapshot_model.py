"""Snapshots as the rules have them, for the oracle: whole ones, deltas and compressed ones."""

import gzip
import hashlib
import json
import re
from typing import Any

from tests.auditor.decoding import Rejection, Row

_LEVELS_MAX = 500
_TOLD = ("context", "conversation_id", "turn", "messages", "total_tokens", "tool", "resources", "metadata")


def accept_snapshot(row: Row, snapshot: Row) -> None:
    """Let the session's head be a snapshot that an event brings. Raises `Rejection`."""
    head = row["head"]
    if snapshot["parent_snapshot_id"] != head:
        raise Rejection("broken_chain")
    check_id(snapshot["snapshot_id"])
    if snapshot["snapshot_id"] in (head, *row["snapshot_ids"]):
        raise Rejection("snapshot_exists")
    follow_head(row, unfold(snapshot, row["whole"]))


def check_id(snapshot_id: str) -> None:
    """Raise `Rejection` unless an id is one of a snapshot."""
    if re.fullmatch("snap_[0-9a-f]{12}", snapshot_id) is None:
        raise Rejection("invalid_value")


def follow_head(row: Row, whole: Row) -> None:
    """Let a whole snapshot follow the head."""
    row["snapshot_ids"] = [*row["snapshot_ids"], row["head"]]
    row["head"], row["whole"] = whole["snapshot_id"], whole


def unfold(snapshot: Row, head: Row | None) -> Row:
    """Return a snapshot with its whole content. Raises `Rejection`."""
    if snapshot["encoding"] not in ("full", "delta") or snapshot["compression"] not in ("none", "gzip"):
        raise Rejection("invalid_value")
    if snapshot["encoding"] == "delta" and head is None:
        raise Rejection("broken_chain")
    try:
        whole = _whole(snapshot, head)
        if digest(whole) != snapshot["content_hash"]:
            raise Rejection("hash_mismatch")
    except (ValueError, LookupError, TypeError, OSError, EOFError):
        raise Rejection("hash_mismatch") from None
    check_state(whole["state_json"])
    return whole


def check_state(text: str) -> None:
    """Raise `Rejection` unless a text is a JSON object, nested no deeper than the rules allow."""
    try:
        state = json.loads(text, parse_constant=_no_json)
    except (ValueError, RecursionError):
        raise Rejection("invalid_value") from None
    level, depth = [state], 0
    while level := [each for each in level if isinstance(each, dict | list)]:
        depth += 1
        level = [part for each in level for part in (each.values() if isinstance(each, dict) else each)]
    if not isinstance(state, dict) or depth > _LEVELS_MAX:
        raise Rejection("invalid_value")


def _no_json(name: str) -> None:
    raise ValueError(name)


def digest(snapshot: Row) -> str:
    """Return the hash of a whole snapshot's content."""
    told = [snapshot[name] for name in _TOLD]
    text: str = snapshot["state_json"]
    if any(value not in (None, [], {}) for value in told):
        told[3] = [list(message.values()) for message in told[3]]
        told[5] = None if told[5] is None else list(told[5].values())
        told[6] = [list(resource.values()) for resource in told[6]]
        text += f"\n{_dump(told)}"
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _dump(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _whole(snapshot: Row, head: Row | None) -> Row:
    text, context = snapshot["state_json"], snapshot["context"]
    if snapshot["compression"] == "gzip":
        text, context = json.loads(gzip.decompress(snapshot["body"] or b""))
    whole = {
        **snapshot,
        "state_json": text,
        "context": context,
        "encoding": "full",
        "compression": "none",
        "body": None,
    }
    if snapshot["encoding"] == "full" or head is None:
        return whole
    lines = None if head["context"] is None else head["context"].splitlines(keepends=True)
    before = {
        "context": lines,
        "messages": [list(message.values()) for message in head["messages"]],
        "state": json.loads(head["state_json"]),
    }
    after: Any = before
    for step in json.loads(text):
        after = _patched(
            after, [part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:]], step
        )
    whole["state_json"] = _dump(after["state"])
    whole["context"] = None if after["context"] is None else "".join(after["context"])
    names = ("role", "content_hash", "tokens")
    whole["messages"] = [dict(zip(names, message, strict=True)) for message in after["messages"]]
    return whole


def _patched(value: Any, path: list[str], step: Row) -> Any:
    """Return a value after one operation of a patch, as a new value."""
    if not path:
        return step["value"]
    key, *rest = path
    if isinstance(value, list):
        place = len(value) if key == "-" else int(key)
        if rest:
            return [*value[:place], _patched(value[place], rest, step), *value[place + 1 :]]
        new = [] if step["op"] == "remove" else [step["value"]]
        return [*value[:place], *new, *value[place + (step["op"] != "add") :]]
    if rest:
        return {**value, key: _patched(value[key], rest, step)}
    others = {name: each for name, each in value.items() if name != key}
    return others if step["op"] == "remove" else {**others, key: step["value"]}
