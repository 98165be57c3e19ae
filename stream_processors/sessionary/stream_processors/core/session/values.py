"""Checks of what an event says of itself, before anything is derived from it."""

from sessionary.schemas.codec import Event
from sessionary.schemas.codec.value_bounds import find_invalid_value
from sessionary.schemas.ids import valid_name
from sessionary.schemas.limits import NUMBER_MAX
from sessionary.schemas.records import SessionState
from sessionary.schemas.types import Envelope, RuleSet


def invalid_envelope(envelope: Envelope, rules: RuleSet, row: SessionState | None = None) -> str:
    """Return what is wrong with an envelope's values, or ''.

    Names that the row already has are valid.
    """
    if envelope.event_type != "heartbeat" and envelope.producer_seq < 1:
        return f"producer_seq is {envelope.producer_seq}; it counts from 1"
    if rules.version >= 2 and envelope.producer_seq > NUMBER_MAX:
        return f"producer_seq is {envelope.producer_seq}; it must be at most {NUMBER_MAX}"
    if envelope.epoch < 0:
        return f"epoch is {envelope.epoch}"
    if not (row is not None and envelope.service_id == row.owner_service) and not valid_name(envelope.service_id):
        return f"service_id {envelope.service_id!r} is no name"
    if not (row is not None and envelope.agent_id == row.agent_id) and not valid_name(envelope.agent_id):
        return f"agent_id {envelope.agent_id!r} is no name"
    if not valid_name(envelope.producer_id):
        return f"producer_id {envelope.producer_id!r} is no name"
    if envelope.event_type == "session_created" and not envelope.user_id:
        return "session_created names no user"
    return ""


def invalid_payload(event: Event, rules: RuleSet) -> str:
    """Return which value of a payload is out of its bounds, or ''. Rules 1 have no bounds."""
    return find_invalid_value(event) if rules.version >= 2 else ""


__all__ = ["invalid_envelope", "invalid_payload"]
