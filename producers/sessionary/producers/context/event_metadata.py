"""The envelope fields that verbs take, and those that come from the context."""

import sys
from datetime import UTC, datetime, timedelta
from typing import Final, TypedDict

from sessionary.producers.context.scope import current_scope, join_fields
from sessionary.producers.delivery.emitter import NO_FIELDS, EnvelopeFields
from sessionary.producers.errors import Invalid

# The trace context of the current OpenTelemetry span, without a need for OpenTelemetry.
#
# A program with spans has imported the API of OpenTelemetry. So the API is looked up among the
# loaded modules: it is never imported, and where it is absent a look-up costs well under 1 µs.


OPENTELEMETRY: Final = "opentelemetry.trace"  # the module of the API


def current_traceparent() -> str | None:
    """Return the W3C `traceparent` of the current span; None if there is none."""
    api = sys.modules.get(OPENTELEMETRY)
    if api is None:
        return None
    context = api.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    from sessionary.schemas.telemetry.trace_context import format_traceparent

    return format_traceparent(context)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class BlockMetadata(TypedDict, total=False):
    """The fields that `Session.metadata` adds to each event of a block.

    Attributes:
        run_id: The run that the event belongs to.
        step_id: The step that the event belongs to.
        causation_id: Id of the event that caused this one.
        actor: The principal that asked for it, instead of the client's `actor`.
        traceparent: W3C trace context, sent as a record header. Default: that of the current
            OpenTelemetry span, if there is one.
    """

    run_id: str | None
    step_id: str | None
    causation_id: str | None
    actor: str | None
    traceparent: str | None


class EventMetadata(BlockMetadata, total=False):
    """The keyword arguments that every verb takes in addition to its own.

    Attributes:
        run_id: The run that the event belongs to.
        run_seq: The event's number within the run.
        step_id: The step that the event belongs to.
        causation_id: Id of the event that caused this one.
        actor: The principal that asked for it, instead of the client's `actor`.
        traceparent: W3C trace context, sent as a record header. Default: that of the current
            OpenTelemetry span, if there is one.
    """

    run_seq: int | None


def envelope_fields(metadata: EventMetadata, occurred_us: int | None = None) -> EnvelopeFields:
    """Return metadata as envelope fields. Raises `TypeError` for an unknown name."""
    if not metadata and occurred_us is None:
        return NO_FIELDS
    return EnvelopeFields(**metadata, occurred_at=occurred_us)


def epoch_us(occurred_at: datetime) -> int:
    """Return a moment in µs since the epoch. Raises `Invalid` if it has no timezone."""
    if not isinstance(occurred_at, datetime) or occurred_at.utcoffset() is None:
        raise Invalid(
            "invalid_value",
            f"occurred_at is {occurred_at!r}: pass a datetime with a timezone, such as datetime.now(UTC)",
        )
    return (occurred_at - _EPOCH) // _MICROSECOND


def block_fields(metadata: BlockMetadata) -> EnvelopeFields:
    """Return a block's metadata as envelope fields. Raises `TypeError` for an unknown name."""
    return EnvelopeFields(**metadata)


def complete_fields(session_id: str, fields: EnvelopeFields) -> EnvelopeFields:
    """Return `fields`, with what they lack from the context: a block's metadata, the current
    span.
    """
    metadata = current_scope().metadata.get(session_id)
    if metadata is not None:
        fields = join_fields(fields, metadata)
    if fields.traceparent is None and (traceparent := current_traceparent()) is not None:
        fields = fields._replace(traceparent=traceparent)
    return fields


__all__ = [
    "NO_FIELDS",
    "BlockMetadata",
    "EventMetadata",
    "block_fields",
    "complete_fields",
    "envelope_fields",
    "epoch_us",
]
