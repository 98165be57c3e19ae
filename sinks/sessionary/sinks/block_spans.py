"""An OpenTelemetry span for each block that holds records of sampled traces.

This module needs `opentelemetry-api`, which the extra `otel` brings.
"""

from itertools import islice
from typing import Final

from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanKind, Status, StatusCode, Tracer

from sessionary.schemas.telemetry import role_traces
from sessionary.schemas.telemetry.trace_context import as_parent, sampled_context
from sessionary.sinks.core.intent import RecordBlock
from sessionary.sinks.core.sink_kinds import SinkDefinition
from sessionary.sinks.runtime.ports import BlockTarget
from sessionary.sinks.settings import SinkSettings

LINKS_MAX: Final = 100


class TracedBlocks:
    """Writes blocks by another target, each within a span.

    The span links to the senders' spans of the block's first 100 sampled records. If all of them
    are of one trace, it is a part of that trace, a child of the first one; else it begins a trace.
    A block without sampled records has no span.
    """

    def __init__(self, target: BlockTarget, tracer: Tracer, definition: SinkDefinition, settings: SinkSettings) -> None:
        self._target = target
        self._tracer = tracer
        self._topic: str = getattr(settings.topics, definition.topic)
        self._group = settings.group_id(definition.kind)
        self._table = definition.table.name

    def write_block(self, partition: int, block: RecordBlock) -> None:
        """Store a block. Reads the headers of its records. Raises what the target raises."""
        sampled = (sampled_context(record.headers) for record in block.records)
        contexts = list(islice((context for context in sampled if context is not None), LINKS_MAX))
        if not contexts:
            self._target.write_block(partition, block)
            return
        is_one_trace = len({context.trace_id for context in contexts}) == 1
        with self._tracer.start_as_current_span(
            f"{role_traces.STORE} {self._topic}",
            context=as_parent(contexts[0]) if is_one_trace else Context(),
            kind=SpanKind.CONSUMER,
            links=[Link(context) for context in contexts],
            attributes={
                role_traces.MESSAGING_SYSTEM: "kafka",
                role_traces.MESSAGING_OPERATION_NAME: role_traces.STORE,
                role_traces.MESSAGING_OPERATION_TYPE: "process",
                role_traces.MESSAGING_DESTINATION_NAME: self._topic,
                role_traces.MESSAGING_DESTINATION_PARTITION_ID: str(partition),
                role_traces.MESSAGING_CONSUMER_GROUP_NAME: self._group,
                role_traces.MESSAGING_KAFKA_OFFSET: block.first,
                role_traces.MESSAGING_BATCH_MESSAGE_COUNT: len(block.records),
                role_traces.DB_SYSTEM_NAME: "clickhouse",
                role_traces.DB_COLLECTION_NAME: self._table,
            },
            record_exception=False,  # its text may repeat a record
            set_status_on_exception=False,
        ) as span:
            try:
                self._target.write_block(partition, block)
            except Exception as error:  # of any kind: the caller decides what it means
                span.set_attribute(role_traces.ERROR_TYPE, type(error).__name__)
                span.set_status(Status(StatusCode.ERROR))
                raise

    def find_skip(self, partition: int, offset: int) -> int | None:
        """Ask the other target."""
        return self._target.find_skip(partition, offset)

    def check_writable(self) -> None:
        """Ask the other target."""
        self._target.check_writable()

    def read_next_offsets(self, topic_id: str) -> dict[int, int]:
        """As the wrapped target does."""
        return self._target.read_next_offsets(topic_id)

    def read_topic_ids(self) -> set[str]:
        """Ask the other target."""
        return self._target.read_topic_ids()

    def close(self) -> None:
        """Close the other target."""
        self._target.close()
