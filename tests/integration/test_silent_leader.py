"""A partition's leader falls silent, another broker leads it: who goes on, and how soon.

Beyond `outage_grace_ms` without an agent's heartbeats, a live session would be timed out.
"""

import asyncio
import time
from collections.abc import Sequence

from confluent_kafka import KafkaError, Message, Producer

from sessionary.producers.delivery.kafka_producer import producer_config
from sessionary.producers.settings import ProducerSettings
from sessionary.stream_processors.core.model import LogRecord
from sessionary.stream_processors.errors import Halted
from sessionary.stream_processors.metrics import Metrics
from sessionary.stream_processors.runtime.fetcher import Fetcher
from sessionary.stream_processors.runtime.ticker import Ticker
from sessionary.stream_processors.settings import ProcessorSettings
from tests.support.mock_cluster import mock_cluster

_BEAT_S, _TURN_S = 0.5, 0.1


class _Agent:
    """Sends a record to partition 0 twice a second, like an agent's heartbeats."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self.acknowledged = 0
        self._topic = topic
        self._producer = Producer(producer_config(ProducerSettings(bootstrap_servers=bootstrap_servers)))
        self._next_s = 0.0

    def send_due(self) -> None:
        if time.monotonic() >= self._next_s:
            self._producer.produce(self._topic, b"beat", b"key", 0, on_delivery=self._on_delivery)
            self._next_s = time.monotonic() + _BEAT_S
        self._producer.poll(0)

    def _on_delivery(self, error: KafkaError | None, _: Message) -> None:
        self.acknowledged += error is None


def test_agent_ticker_and_fetcher_find_the_new_leader_before_the_outage_grace_ends() -> None:
    """With librdkafka's default of 60 s the fetcher stood still for 61 s, the agent for 70 s."""
    with mock_cluster() as cluster:
        settings = ProcessorSettings(bootstrap_servers=cluster.bootstrap_servers)
        topic, metrics = settings.topics.events, Metrics()
        cluster.create_topic(topic, leaders=[1, 2])
        agent, ticker = _Agent(cluster.bootstrap_servers, topic), Ticker(settings, metrics)
        fetched: list[int] = []

        def take_records(partition: int, begin_offset: int, records: Sequence[LogRecord], size: int) -> None:
            raise AssertionError("the mock cluster stamps no records")

        def take_fault(partition: int, fault: Halted, offset: int) -> None:
            # So each fetch comes as this fault. That it comes at all is what the test is about.
            assert (partition, fault.reason) == (0, "wrong_timestamp_type")
            fetched.append(offset)

        def counts() -> tuple[int, float, int]:
            """Return beats acknowledged, ticks acknowledged, fetches."""
            return agent.acknowledged, metrics.ticks_sent._value.get(), len(fetched)

        async def wait_for_more(than: tuple[int, float, int], timeout_s: float) -> bool:
            deadline_s, turned_s = time.monotonic() + timeout_s, time.monotonic()
            while time.monotonic() < deadline_s:
                # For as long as a busy machine held this loop up, it held up all that is tried.
                deadline_s += max(0.0, time.monotonic() - turned_s - _TURN_S)
                turned_s = time.monotonic()
                agent.send_due()
                ticker.send_due_ticks(time.time() * 1_000, {0: int(time.time() * 1_000) + 60_000})
                if all(now > before for now, before in zip(counts(), than, strict=True)):
                    return True
                await asyncio.sleep(0.02)
            return False

        async def story() -> None:
            fetcher = Fetcher(settings)
            fetcher.start(take_records, take_fault)
            fetcher.fetch_from(0, 0)
            assert await wait_for_more((2, 0, 2), 120), counts()
            before = counts()
            cluster.silence_broker(1)
            cluster.move_leader(topic, 0, 2)
            # What was acknowledged on the way may still be counted.
            goes_on = await wait_for_more(
                (before[0] + 2, before[1] + 2, before[2] + 2), settings.outage_grace_ms / 1_000
            )
            await asyncio.to_thread(fetcher.close)
            assert goes_on, (before, counts())

        asyncio.run(story())
