"""What the loop of a sink does with messages that an assignment has overtaken."""

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Message, TopicPartition

from sessionary.schemas.codec import Decoder
from sessionary.sinks.core.sink_kinds import SINKS
from sessionary.sinks.metrics import SinkMetrics
from sessionary.sinks.runtime import consumer as module
from sessionary.sinks.runtime.block_writer import Flusher
from sessionary.sinks.runtime.consumer import SinkConsumer
from sessionary.sinks.settings import SinkSettings


class _Kafka:
    """A consumer whose calls are scripted: each returns the messages from an offset on, or is overtaken first."""

    def __init__(self, _config: object, **_: object) -> None:
        self.assigned: list[list[int]] = []
        self.script: list[Callable[[], list[Message]]] = []
        self.on_assign: Callable[[Any, list[TopicPartition]], None] = lambda _consumer, _partitions: None

    def consume(self, _count: int, _timeout: float) -> list[Message]:
        return self.script.pop(0)()

    def committed(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        return [TopicPartition(found.topic, found.partition, 100) for found in partitions]

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.assigned.append([found.offset for found in partitions])

    def get_watermark_offsets(self, _partition: TopicPartition, cached: bool) -> tuple[int, int]:
        return 0, 0

    def resume(self, partitions: list[TopicPartition]) -> None:
        """Nothing is paused here."""


def messages(first: int, count: int) -> list[Message]:
    return [
        Message(topic="sessionary.audit", partition=0, offset=offset, value=b"v", timestamp=(1, 1_000))
        for offset in range(first, first + count)
    ]


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> tuple[SinkConsumer, _Kafka]:
    made: list[_Kafka] = []

    def make(config: object, **more: object) -> _Kafka:
        made.append(_Kafka(config, **more))
        return made[-1]

    monkeypatch.setattr(module, "Consumer", make)
    settings, definition = SinkSettings(), SINKS["audit"]
    metrics = SinkMetrics("audit", "g")
    found = SinkConsumer(definition, settings, Flusher(definition, settings, metrics, Decoder()), metrics)
    made[0].on_assign = found._on_assign
    return found, made[0]


def test_messages_that_an_assignment_overtook_are_dropped_and_fetched_again(sink: tuple[SinkConsumer, _Kafka]) -> None:
    found, kafka = sink

    def overtaken() -> list[Message]:
        # Offsets 100 to 149 are not in ClickHouse: were 150 taken first, they would be taken for repetitions.
        kafka.on_assign(kafka, [TopicPartition("sessionary.audit", 0)])
        return messages(150, 10)

    kafka.script = [overtaken, lambda: messages(100, 60)]
    found._gather()
    assert found._plans[0].waiting == 0
    assert kafka.assigned == [[100], [100]]
    found._gather()
    assert [record.offset for record in found._plans[0].take(0.0, 0).records] == list(range(100, 160))
