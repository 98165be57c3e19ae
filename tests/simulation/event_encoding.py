"""Encodes events fast: example payloads are built once, and only differing fields are replaced."""

from functools import cache
from typing import Any

from sessionary.schemas.codec import Event, encode_event
from sessionary.schemas.events import Payload
from sessionary.schemas.types import Envelope
from tests.support.event_factory import payload_of
from tests.support.values import example

_ENVELOPE: Envelope = example(Envelope)._replace(
    user_id="u1", agent_id="agent-1", data_classes=("personal",), context_bytes=None, run_id=None, actor=None
)


@cache
def _default_payload(event_type: str) -> Payload:
    return payload_of(event_type)


def event_bytes(event_type: str, fields: dict[str, Any], **envelope: Any) -> bytes:
    """Return a valid event's bytes with these payload and envelope fields."""
    payload = _default_payload(event_type)
    if fields:
        payload = payload._replace(**fields)
    return encode_event(Event(_ENVELOPE._replace(event_type=event_type, **envelope), payload))
