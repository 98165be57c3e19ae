"""The spans of a sink's blocks."""

import pytest
from opentelemetry.trace import StatusCode

from sessionary.schemas.telemetry import role_traces
from sessionary.schemas.telemetry.trace_context import format_traceparent
from sessionary.sinks.block_spans import LINKS_MAX, TracedBlocks
from sessionary.sinks.core.intent import RecordBlock
from sessionary.sinks.core.rows.shared import RawRecord
from sessionary.sinks.core.sink_kinds import SINKS
from sessionary.sinks.errors import Transient
from sessionary.sinks.settings import SinkSettings
from tests.core.sinks.samples import message_with
from tests.support.spans import SpanRig


class BlockList:
    """Keeps blocks; fails if it is asked to."""

    def __init__(self) -> None:
        self.blocks: list[RecordBlock] = []
        self.fails = False

    def write_block(self, partition: int, block: RecordBlock) -> None:
        if self.fails:
            raise Transient("network", "s3cret of a record")
        self.blocks.append(block)

    def find_skip(self, partition: int, offset: int) -> int | None:
        return offset

    def check_writable(self) -> None:
        if self.fails:
            raise Transient("network", "away")

    def read_next_offsets(self, topic_id: str) -> dict[int, int]:
        return {}

    def read_topic_ids(self) -> set[str]:
        return {"t"}

    def close(self) -> None:
        self.blocks.clear()


def traceparent(trace: int, span: int, flags: str = "01") -> str:
    return f"00-{trace:032x}-{span:016x}-{flags}"


def block_of(*contexts: str | None) -> RecordBlock:
    records = [
        RawRecord("events", 3, n, 0, b"k", b"v", message_with(*([("traceparent", context)] if context else [])))
        for n, context in enumerate(contexts)
    ]
    return RecordBlock(0, len(records) - 1, records, None)


@pytest.fixture
def spans() -> SpanRig:
    return SpanRig()


@pytest.fixture
def target() -> BlockList:
    return BlockList()


@pytest.fixture
def traced(spans: SpanRig, target: BlockList) -> TracedBlocks:
    return TracedBlocks(target, spans.tracer, SINKS["history"], SinkSettings())


def test_a_block_without_sampled_records_has_no_span(spans: SpanRig, target: BlockList, traced: TracedBlocks) -> None:
    traced.write_block(3, block_of(None, traceparent(1, 2, "00")))
    assert (len(target.blocks), len(spans.ended)) == (1, 0)
    assert (traced.find_skip(3, 7), traced.read_topic_ids()) == (7, {"t"})
    traced.check_writable()
    target.fails = True
    with pytest.raises(Transient):
        traced.check_writable()
    traced.close()
    assert target.blocks == []


def test_a_block_of_one_trace_is_a_part_of_it(spans: SpanRig, traced: TracedBlocks) -> None:
    senders = [traceparent(1, 2), traceparent(1, 3)]
    traced.write_block(3, block_of(senders[0], None, senders[1]))
    [span] = spans.ended
    assert span.name == "store sessionary.events"
    assert span.parent is not None
    assert format_traceparent(span.parent) == senders[0]
    assert [format_traceparent(link.context) for link in span.links] == senders
    assert dict(span.attributes or {})[role_traces.MESSAGING_BATCH_MESSAGE_COUNT] == 3


def test_a_block_of_several_traces_begins_its_own_and_links_to_a_bounded_number(
    spans: SpanRig, traced: TracedBlocks
) -> None:
    traced.write_block(3, block_of(*(traceparent(n, n) for n in range(1, LINKS_MAX + 11))))
    [span] = spans.ended
    assert span.parent is None
    assert len(span.links) == LINKS_MAX


def test_a_block_that_fails_ends_its_span_without_the_error_s_text(
    spans: SpanRig, target: BlockList, traced: TracedBlocks
) -> None:
    target.fails = True
    with pytest.raises(Transient):
        traced.write_block(3, block_of(traceparent(1, 2)))
    [span] = spans.ended
    assert span.status.status_code is StatusCode.ERROR
    assert "s3cret" not in span.to_json()
