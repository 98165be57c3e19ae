"""One sink's loop, with a consumer, a clock, a log and a block target that tests hand in."""

import threading
from collections.abc import Callable, Mapping

from sessionary.sinks.core.intent import RecordBlock
from sessionary.sinks.core.rows.shared import RawRecord
from sessionary.sinks.core.sink_kinds import SINKS
from sessionary.sinks.metrics import SinkMetrics
from sessionary.sinks.runtime.consumer import SinkConsumer
from sessionary.sinks.runtime.hung_calls import CallWatchdog
from sessionary.sinks.runtime.kafka_client import records_from_messages
from sessionary.sinks.runtime.log_watch import LogWatch
from sessionary.sinks.runtime.ports import ErrorCallback
from sessionary.sinks.settings import SinkSettings
from tests.support.fake_kafka import FakeConsumer, make_message

SETTINGS = SinkSettings()
TOPIC = SETTINGS.topics.events
NO_BLOCK = '{"v":1,"topic":null}'  # the metadata of a commit without a block, of a topic without an id
Step = Callable[[], None]


class FakeClock:
    """Time that tests move."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return round(self.now_s * 1_000)


class FakeTarget:
    """Keeps the blocks that were written, or fails."""

    def __init__(self) -> None:
        self.blocks: list[tuple[int, RecordBlock]] = []
        self.error: Exception | None = None
        self.is_closed = False
        self.skips: dict[tuple[int, int], int] = {}
        self.skip_error: Exception | None = None
        self.topic_ids: set[str] = set()
        self.open_error: Exception | None = None
        self.next_offsets: dict[str, dict[int, int]] = {}

    def check_writable(self) -> None:
        if self.open_error is not None:
            raise self.open_error

    def find_skip(self, partition: int, offset: int) -> int | None:
        if self.skip_error is not None:
            raise self.skip_error
        return self.skips.get((partition, offset))

    def read_next_offsets(self, topic_id: str) -> dict[int, int]:
        return self.next_offsets.get(topic_id, {})

    def read_topic_ids(self) -> set[str]:
        return self.topic_ids

    def write_block(self, partition: int, block: RecordBlock) -> None:
        if self.error is not None:
            raise self.error
        self.blocks.append((partition, block))

    def close(self) -> None:
        self.is_closed = True

    @property
    def offsets(self) -> list[list[int]]:
        return [[record.offset for record in block.records] for _, block in self.blocks]


class SinkRig:
    """One sink and everything around it. `run_steps` takes one step for each call of `consume`."""

    def __init__(self, watchdog: CallWatchdog | None = None, accept_gaps: str = "", *, copies: str = "") -> None:
        self.kafka, self.clock, self.target = FakeConsumer(TOPIC), FakeClock(), FakeTarget()
        self.metrics = SinkMetrics("history", "g")
        self.consumers: list[FakeConsumer] = []  # that were opened
        self.next_consumer = FakeConsumer(TOPIC)  # that replaces the first one
        self.log_ends: dict[int, int] = {}  # that another client is notified
        self.topic_id: str | None = None
        self.ranges_read: list[dict[int, tuple[int, int]]] = []
        self.log_watch = LogWatch(lambda: self.log_ends, self.clock, lambda: self.topic_id)
        self.sink = SinkConsumer(
            SINKS["history"],
            SETTINGS.model_copy(update={"sink_accept_gaps": accept_gaps, "sink_accept_topics": copies}),
            self.metrics,
            target=self.target,
            open_consumer=self._open_consumer,
            clock=self.clock,
            watchdog=watchdog or CallWatchdog(30.0),
            log_watch=self.log_watch,
            ask_topic_id=lambda: self.topic_id,
            read_ranges=self._read_ranges,
        )

    def _read_ranges(self, topic: str, ranges: Mapping[int, tuple[int, int]]) -> dict[int, list[RawRecord]]:
        self.ranges_read.append(dict(ranges))
        return {
            partition: records_from_messages(
                topic, partition, [make_message(topic, partition, offset) for offset in range(first, last + 1)]
            )
            for partition, (first, last) in ranges.items()
        }

    def _open_consumer(self, on_error: ErrorCallback) -> FakeConsumer:
        if self.consumers:
            self.next_consumer.when_out_of_steps = self.kafka.when_out_of_steps
            self.kafka = self.next_consumer
        self.kafka.on_error = on_error
        self.consumers.append(self.kafka)
        return self.kafka

    def run_steps(self, *steps: Step) -> None:
        """Run the sink until every step was taken, then stop it."""
        stop = threading.Event()
        self.kafka.steps = list(steps)
        self.kafka.when_out_of_steps = stop.set
        self.sink.run(stop)

    def labels(self, partition: int) -> dict[str, str]:
        """Return the labels of a partition's metrics."""
        return {"sink": "history", "group": "g", "partition": str(partition)}

    def advance(self, seconds: float) -> None:
        self.clock.now_s += seconds

    def ask_log(self) -> None:
        """Ask another client for the log's ends, five seconds after the last time."""
        self.advance(5.0)
        self.log_watch.ask_once()
