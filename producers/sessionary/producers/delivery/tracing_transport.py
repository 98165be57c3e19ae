"""A transport that makes an OpenTelemetry span for each event. Without it, tracing costs nothing.

This module needs `opentelemetry-api`, which the extra `otel` brings.
"""

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from sessionary.producers.ports import Backlog, Counters, OnReceipt, OutRecord, Receipt, Transport
from sessionary.schemas.headers import TRACEPARENT
from sessionary.schemas.telemetry import role_traces
from sessionary.schemas.telemetry.trace_context import (
    as_parent,
    format_traceparent,
    parse_traceparent,
)


class TracingTransport:
    """Delivers by another transport. A span lasts until Kafka has acknowledged its event.

    It is a child of the context that the event names (`traceparent`), else of the current span.
    The program's SDK decides what is sampled. Heartbeats have no spans.
    """

    def __init__(self, transport: Transport, topic: str, tracer: Tracer | None = None) -> None:
        """`topic`: of the events. `tracer`: by default one of the program's tracer provider."""
        self._transport = transport
        self._topic = topic
        self._tracer = tracer or trace.get_tracer(role_traces.SCOPE)

    @property
    def may_block(self) -> bool:
        """As the other transport's."""
        return self._transport.may_block

    @property
    def counters(self) -> Counters:
        """As the other transport's."""
        return self._transport.counters

    @property
    def backlog(self) -> Backlog:
        """As the other transport's."""
        return self._transport.backlog

    def send(self, record: OutRecord, on_receipt: OnReceipt | None = None) -> None:
        """Take one record, with the context of a new span in its header.

        Raises `QueueFull`, `ClientClosed`.
        """
        given = None if record.traceparent is None else parse_traceparent(record.traceparent.encode())
        current = trace.get_current_span().get_span_context()
        if given is not None and (given.trace_id, given.span_id) == (current.trace_id, current.span_id):
            given = None  # the span itself is a better parent than its header: it is local, and has its state
        span = self._tracer.start_span(
            f"{role_traces.SEND} {self._topic}",
            context=None if given is None else as_parent(given),
            kind=SpanKind.PRODUCER,
            attributes={
                role_traces.MESSAGING_SYSTEM: "kafka",
                role_traces.MESSAGING_OPERATION_NAME: role_traces.SEND,
                role_traces.MESSAGING_OPERATION_TYPE: "send",
                role_traces.MESSAGING_DESTINATION_NAME: self._topic,
                role_traces.MESSAGING_MESSAGE_ID: record.event_id,
                role_traces.MESSAGING_MESSAGE_BODY_SIZE: len(record.value),
                role_traces.CONVERSATION_ID: record.session_id,
                role_traces.TENANT_ID: record.tenant_id,
                role_traces.EVENT_TYPE: record.event_type,
            },
        )
        context = span.get_span_context()
        if not context.is_valid:  # no SDK, and no parent
            self._transport.send(record, on_receipt)
            return
        try:
            self._transport.send(_with_context(record, format_traceparent(context)), _end_with(span, on_receipt))
        except Exception as error:  # of any kind: the caller is notified
            _end_failed(span, type(error).__name__)
            raise

    def send_heartbeat(self, record: OutRecord) -> None:
        """Send a heartbeat now or drop it. Never blocks."""
        self._transport.send_heartbeat(record)

    def wait_taken_over(self, key: bytes, timeout_s: float) -> bool:
        """Wait as the other transport does."""
        return self._transport.wait_taken_over(key, timeout_s)

    def flush(self, timeout_s: float) -> int:
        """Wait as the other transport does."""
        return self._transport.flush(timeout_s)

    def close(self, timeout_s: float) -> int:
        """Close the other transport."""
        return self._transport.close(timeout_s)


def _with_context(record: OutRecord, traceparent: str) -> OutRecord:
    others = [header for header in record.headers if header[0] != TRACEPARENT]
    headers = [*others, (TRACEPARENT, traceparent.encode())]
    return record._replace(given_headers=headers, traceparent=traceparent, stamp_us=None)


def _end_with(span: Span, on_receipt: OnReceipt | None) -> OnReceipt:
    def end_span(receipt: Receipt) -> None:
        if receipt.error is not None:
            _end_failed(span, receipt.error)
        else:
            if receipt.partition is not None and receipt.offset is not None:
                span.set_attribute(role_traces.MESSAGING_DESTINATION_PARTITION_ID, str(receipt.partition))
                span.set_attribute(role_traces.MESSAGING_KAFKA_OFFSET, receipt.offset)
            span.end()
        if on_receipt is not None:
            on_receipt(receipt)

    return end_span


def _end_failed(span: Span, error_type: str) -> None:
    span.set_attribute(role_traces.ERROR_TYPE, error_type)
    span.set_status(Status(StatusCode.ERROR))
    span.end()
