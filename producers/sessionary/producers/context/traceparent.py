"""The trace context of the current OpenTelemetry span, without a need for OpenTelemetry.

A program that has spans has imported its API. So the API is looked for among the modules that are
loaded: it is never imported, and where it is absent a look-up costs well under 1 µs.
"""

import sys
from typing import Final

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
