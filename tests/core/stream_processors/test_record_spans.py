"""The spans of judged records."""

from opentelemetry.trace import SpanKind, StatusCode

from sessionary.schemas.ids import SessionKey, new_session_id
from sessionary.schemas.telemetry import role_traces
from sessionary.schemas.telemetry.trace_context import format_traceparent
from sessionary.stream_processors.core.model import JudgedRecords, LogRecord
from sessionary.stream_processors.record_spans import RecordSpans
from sessionary.stream_processors.settings import ProcessorSettings
from tests.recorded.actors import TRACEPARENT
from tests.support.spans import SpanRig

KEY = SessionKey("acme", new_session_id())
SAMPLED = (("traceparent", TRACEPARENT.encode()),)
UNSAMPLED = (("traceparent", TRACEPARENT[:-2].encode() + b"00"),)


def test_each_sampled_record_that_was_judged_has_a_span_with_its_outcome() -> None:
    spans, judged = SpanRig(), JudgedRecords()
    keys = {5: KEY.encoded(), 6: KEY.encoded(), 7: b"no key of ours", 8: KEY.encoded(), 10: KEY.encoded()}
    records = [LogRecord(offset, 0, key, b"v", SAMPLED) for offset, key in keys.items()]
    records[3] = records[3]._replace(headers=UNSAMPLED)
    records.insert(4, LogRecord(9, 0, None, b"tick", SAMPLED))
    judged.offsets.extend((5, 6, 7, 8))
    judged.add_duplicate(6, "an id")
    judged.rejections[7] = "bad_key"
    RecordSpans(spans.tracer, ProcessorSettings()).trace_batch(3, records, judged, 1_000_000, 1_250_000)

    outcomes = {}
    for span in spans.ended:
        assert (span.name, span.kind) == ("process sessionary.events", SpanKind.CONSUMER)
        assert (span.start_time, span.end_time) == (1_000_000_000, 1_250_000_000)
        assert span.parent is not None
        assert format_traceparent(span.parent) == TRACEPARENT
        attributes = dict(span.attributes or {})
        assert attributes[role_traces.MESSAGING_DESTINATION_PARTITION_ID] == "3"
        outcomes[attributes[role_traces.MESSAGING_KAFKA_OFFSET]] = attributes[role_traces.OUTCOME]
    assert outcomes == {5: "applied", 6: "duplicate", 7: "rejected"}
    first, rejected = spans.ended[0], spans.ended[2]
    assert dict(first.attributes or {})[role_traces.CONVERSATION_ID] == KEY.session_id
    assert (rejected.status.status_code, first.status.status_code) == (StatusCode.ERROR, StatusCode.UNSET)
    assert dict(rejected.attributes or {})[role_traces.REJECTION_REASON] == "bad_key"
