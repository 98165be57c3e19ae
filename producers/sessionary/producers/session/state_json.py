"""A session's content as JSON text, and snapshots of it. Pure, except for random snapshot ids."""

import json
import secrets
from collections.abc import Mapping

from sessionary.producers.errors import Invalid
from sessionary.producers.ports import Json
from sessionary.producers.process.json_text import to_json_text
from sessionary.schemas.ids import content_hash
from sessionary.schemas.types import Snapshot


def canonical_json(state: Mapping[str, Json]) -> str:
    """Return `state` as JSON text. Raises `Invalid` as `to_json_text`, and if it is no dict."""
    if not isinstance(state, dict):
        kind = type(state).__name__
        raise Invalid("invalid_value", f"state is a {kind}, not a JSON object: use a dict")
    return to_json_text(state, "state", "state_too_large")


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
