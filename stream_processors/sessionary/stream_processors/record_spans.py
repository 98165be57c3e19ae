"""An OpenTelemetry span for each judged record whose sender's trace is sampled.

Spans are made after the commit, with explicit times, so the fold knows nothing of them. This module
needs `opentelemetry-api`, which the extra `otel` brings.
"""

from collections.abc import Sequence

from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, Tracer

from sessionary.schemas.errors import Invalid
from sessionary.schemas.ids import parse_key
from sessionary.schemas.telemetry import role_traces
from sessionary.schemas.telemetry.trace_context import as_parent, sampled_context
from sessionary.stream_processors.core.model import JudgedRecords, LogRecord
from sessionary.stream_processors.settings import ProcessorSettings


class RecordSpans:
    """Makes the spans of committed batches."""

    def __init__(self, tracer: Tracer, settings: ProcessorSettings) -> None:
        self._tracer = tracer
        self._topic = settings.topics.events
        self._group = settings.group_id

    def trace_batch(
        self, partition: int, records: Sequence[LogRecord], judged: JudgedRecords, begun_at: int, acknowledged_at: int
    ) -> None:
        """Make a span for each sampled record of a committed batch.

        Each span is a child of the sender's span, and lasts from the batch's beginning to the
        acknowledgement of its transaction (µs since the epoch). Reads the records' headers.
        """
        judged_offsets = set(judged.offsets)
        for record in records:
            if record.offset in judged_offsets and (sender := sampled_context(record.headers)) is not None:
                self._trace_record(partition, record, judged, sender, (begun_at, acknowledged_at))

    def _trace_record(
        self, partition: int, record: LogRecord, judged: JudgedRecords, sender: SpanContext, times: tuple[int, int]
    ) -> None:
        offset = record.offset
        rejection = judged.rejections.get(offset)
        span = self._tracer.start_span(
            f"{role_traces.PROCESS} {self._topic}",
            context=as_parent(sender),
            kind=SpanKind.CONSUMER,
            start_time=times[0] * 1_000,
            attributes={
                role_traces.MESSAGING_SYSTEM: "kafka",
                role_traces.MESSAGING_OPERATION_NAME: role_traces.PROCESS,
                role_traces.MESSAGING_OPERATION_TYPE: "process",
                role_traces.MESSAGING_DESTINATION_NAME: self._topic,
                role_traces.MESSAGING_DESTINATION_PARTITION_ID: str(partition),
                role_traces.MESSAGING_CONSUMER_GROUP_NAME: self._group,
                role_traces.MESSAGING_KAFKA_OFFSET: offset,
                role_traces.OUTCOME: "rejected"
                if rejection
                else "duplicate"
                if offset in judged.duplicates
                else "applied",
                **_session_attributes(record.key),
            },
        )
        if rejection is not None:
            span.set_attribute(role_traces.REJECTION_REASON, rejection)
            span.set_attribute(role_traces.ERROR_TYPE, rejection)
            span.set_status(Status(StatusCode.ERROR))
        span.end(times[1] * 1_000)


def _session_attributes(key: bytes | None) -> dict[str, str]:
    try:
        tenant_id, session_id = parse_key(key)
    except Invalid:
        return {}
    return {role_traces.TENANT_ID: tenant_id, role_traces.CONVERSATION_ID: session_id}
