"""A session's content as JSON text, and snapshots of it. Pure, except for random snapshot ids."""

import json
import secrets
from collections.abc import Mapping

from sessionary.producers.errors import Invalid
from sessionary.producers.ports import Json
from sessionary.producers.process.safe_text import replace_surrogates
from sessionary.schemas.ids import content_hash
from sessionary.schemas.topics import VALUE_BYTES_MAX
from sessionary.schemas.types import Snapshot

STATE_BYTES_MAX = VALUE_BYTES_MAX - (16 << 10)  # Leaves room for the envelope around it
_CONTAINERS = (dict, list, tuple)
_ONLY_TEXT = frozenset({str})
_LEAVES = frozenset({str, int, float, bool, type(None)})


def canonical_json(state: Mapping[str, Json]) -> str:
    """Return `state` as JSON with sorted keys and without spaces.

    Raises `Invalid` if it is not a dict, if a key is not a text (JSON would change it), if JSON
    cannot hold it, or if it has more than `STATE_BYTES_MAX` bytes.
    """
    if not isinstance(state, dict):
        kind = type(state).__name__
        raise Invalid("invalid_value", f"state is a {kind}, not a JSON object: use a dict")
    try:
        if not _has_text_keys(state):  # `json.dumps` would make texts of them
            raise Invalid("invalid_value", _describe_foreign_key(state, "state"))
        text = json.dumps(state, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            text = replace_surrogates(text)
            size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid("invalid_value", f"state cannot be written as JSON: {error}") from None
    if size > STATE_BYTES_MAX:
        raise Invalid(
            "state_too_large",
            f"state has {size} bytes, more than {STATE_BYTES_MAX}: keep large content elsewhere and a reference here",
        )
    return text


def _has_text_keys(value: Json) -> bool:
    """Return whether all keys of a dict or list, and of those in it, are texts.

    Looks at the types of many values at once: every update of a state passes it.
    """
    if isinstance(value, dict):
        if not _ONLY_TEXT.issuperset(map(type, value)) and not all(isinstance(key, str) for key in value):
            return False
        value = value.values()
    if _LEAVES.issuperset(map(type, value)):
        return True
    return all(_has_text_keys(item) for item in value if isinstance(item, _CONTAINERS))


def _describe_foreign_key(value: Json, path: str) -> str:
    """Return where the first key is that is not a text, and what it is; '' if there is none."""
    if not isinstance(value, _CONTAINERS):
        return ""
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                return f"{path} has the key {key!r} of type {type(key).__name__}: keys must be texts"
    items = value.items() if isinstance(value, dict) else enumerate(value)
    form = "{}.{}" if isinstance(value, dict) else "{}[{}]"
    return next(filter(None, (_describe_foreign_key(item, form.format(path, key)) for key, item in items)), "")


def parsed_state(text: str) -> dict[str, Json]:
    """Return the state in `text`. Raises `Invalid` if it is not a JSON object."""
    try:
        state = json.loads(text)
    except ValueError as error:
        raise Invalid("invalid_value", f"state is not valid JSON: {error}") from None
    if not isinstance(state, dict):
        raise Invalid("invalid_value", f"state is a JSON {type(state).__name__}, not an object")
    return state


def full_snapshot(state_json: str, schema_version: int, parent: str | None) -> Snapshot:
    """Return a full snapshot with a new id; `parent` is the id of the one before it."""
    return Snapshot(
        snapshot_id=f"snap_{secrets.token_hex(6)}",
        parent_snapshot_id=parent,
        schema_version=schema_version,
        state_json=state_json,
        context=None,
        content_hash=content_hash(state_json),
        encoding="full",
        compression="none",
    )


__all__ = ["STATE_BYTES_MAX", "canonical_json", "full_snapshot", "parsed_state"]
