"""The trace context in a record's header `traceparent`, as W3C Trace Context has it.

This module needs `opentelemetry-api`, which the extra `otel` brings.
"""

import re
from collections.abc import Iterable
from typing import Final

from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from sessionary.schemas.headers import TRACEPARENT

_FIELDS: Final = re.compile(rb"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


def parse_traceparent(value: bytes) -> SpanContext | None:
    """Return the context that a header's value names; None if it is malformed or not valid."""
    found = _FIELDS.fullmatch(value)
    if found is None:
        return None
    trace_id, span_id, flags = (int(part, 16) for part in found.groups())
    context = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags))
    return context if context.is_valid else None


def format_traceparent(context: SpanContext) -> str:
    """Return the header's value for a valid context."""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def sampled_context(headers: Iterable[tuple[str, bytes]]) -> SpanContext | None:
    """Return the context that a record's headers name, if its trace is sampled; else None."""
    for name, value in headers:
        if name == TRACEPARENT:
            context = parse_traceparent(value)
            return context if context is not None and context.trace_flags.sampled else None
    return None


def as_parent(context: SpanContext) -> Context:
    """Return the context with which a span starts as a child of `context`."""
    return set_span_in_context(NonRecordingSpan(context), Context())
