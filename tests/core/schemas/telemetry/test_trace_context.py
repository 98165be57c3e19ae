"""The trace context in a record's header."""

import pytest
from opentelemetry.trace import SpanContext

from sessionary.schemas.headers import TRACEPARENT
from sessionary.schemas.telemetry.trace_context import (
    format_traceparent,
    parse_traceparent,
    sampled_context,
)
from tests.recorded.actors import TRACEPARENT as SAMPLED


def test_a_context_is_read_and_written_as_it_was() -> None:
    context = parse_traceparent(SAMPLED.encode())
    assert isinstance(context, SpanContext)
    assert (context.is_remote, context.trace_flags.sampled) == (True, True)
    assert format_traceparent(context) == SAMPLED


@pytest.mark.parametrize(
    "value",
    [b"", b"\xff", SAMPLED.encode()[:-1], b"00-" + b"0" * 32 + b"-00f067aa0ba902b7-01", SAMPLED.upper().encode()],
)
def test_a_malformed_context_is_none(value: bytes) -> None:
    assert parse_traceparent(value) is None
    assert sampled_context([(TRACEPARENT, value)]) is None


def test_only_a_sampled_context_counts() -> None:
    other = ("ce_id", b"x")
    assert sampled_context([other, (TRACEPARENT, SAMPLED.encode())]) is not None
    assert sampled_context([other, (TRACEPARENT, SAMPLED[:-2].encode() + b"00")]) is None
    assert sampled_context([other]) is None
