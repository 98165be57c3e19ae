"""The record to be sent of a frame in the spool, whichever process and release wrote it."""

from sessionary.producers.delivery.spool.frames import Frame
from sessionary.producers.errors import Invalid
from sessionary.producers.ports import OutRecord
from sessionary.schemas.codec import Decoder, Event, read_identity
from sessionary.schemas.headers import EventIdentity, event_headers
from sessionary.schemas.types import Envelope


def record_from_frame(frame: Frame, decoder: Decoder) -> OutRecord:
    """Return the record that was written as `frame`. Raises `Invalid` if it cannot be read."""
    envelope: Envelope | EventIdentity | None = read_identity(frame.value)
    if envelope is None:
        event = decoder.decode_event(frame.value)
        if not isinstance(event, Event):
            raise Invalid("unknown_event_type", "the spool holds a tick, not an event")
        envelope = event.envelope
    try:
        headers = event_headers(envelope, frame.traceparent)
    except (ValueError, OverflowError, OSError) as error:
        what = f"event {envelope.event_id} occurred at {envelope.occurred_at} us"
        raise Invalid("invalid_value", f"{what}, which no header can hold: {error}") from error
    return OutRecord(
        frame.key,
        frame.value,
        headers,
        envelope.event_id,
        envelope.event_type,
        envelope.tenant_id,
        envelope.session_id,
        envelope.producer_id,
        envelope.producer_seq,
        frame.traceparent,
    )
