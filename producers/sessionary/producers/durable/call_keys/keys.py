"""Idempotency keys of tool calls: the same action has the same key, on every attempt. Pure."""

import hashlib
from collections.abc import Mapping

from sessionary.producers.durable.call_keys.canonical_json import canonical_text
from sessionary.producers.errors import Invalid
from sessionary.producers.ports import Json
from sessionary.schemas.limits import NAME_CHARACTERS_MAX


def idempotency_key(
    tenant_id: str, run_id: str | None, step_name: str | None, tool_name: str, arguments: Mapping[str, Json]
) -> str:
    """Return the key of a tool call: SHA-256, as 64 hex digits, over canonical JSON (RFC 8785).

    Neither the attempt nor the epoch is a part of it, so that a repeated call has the same key.

    Args:
        tenant_id: The tenant.
        run_id: The run that the call belongs to; None outside of runs.
        step_name: The step that the call belongs to; None outside of steps.
        tool_name: The tool.
        arguments: What the tool is called with, by name.

    Raises:
        Invalid: JSON cannot hold the arguments, or not exactly.
    """
    parts = {
        "tenant_id": tenant_id,
        "run_id": run_id,
        "step_name": step_name,
        "tool_name": tool_name,
        "args": dict(arguments),
    }
    return hashlib.sha256(canonical_text(parts).encode()).hexdigest()


def checked_key(key: object, tool_name: str) -> str:
    """Return a key of the business. Raises `Invalid` if it is no text, empty or too long."""
    if isinstance(key, str) and 0 < len(key) <= NAME_CHARACTERS_MAX:
        return key
    raise Invalid(
        "invalid_value",
        f"the key of the tool {tool_name} is {key!r:.80}: use a text of 1 to {NAME_CHARACTERS_MAX} characters",
    )
