"""A partition's owner and the fetcher on a real broker: offsets without a record, lost batches."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from sessionary.schemas.ids import partition_of
from sessionary.schemas.settings import KafkaSettings
from sessionary.stream_processors.core.model import LogRecord
from sessionary.stream_processors.metrics import Metrics
from sessionary.stream_processors.runtime import assignment as assignment_module
from sessionary.stream_processors.runtime import partition_owner
from sessionary.stream_processors.runtime.assignment import Assignment
from sessionary.stream_processors.runtime.executor import UnboundedExecutor
from sessionary.stream_processors.runtime.fetcher import Fetcher
from sessionary.stream_processors.runtime.job import processor_job
from sessionary.stream_processors.runtime.log_probe import LogProbe, probe_log
from sessionary.stream_processors.runtime.partition_owner import PartitionOwner
from sessionary.stream_processors.runtime.worker_context import WorkerContext
from sessionary.stream_processors.settings import ProcessorSettings
from sessionary.stream_processors.store.stores import PartitionStores
from tests.integration.processor_load import Agent, OutgoingRecord
from tests.support import read_batches

WAIT_S = 120.0


class Bench:
    """An assignment of one partition, and a fetcher; `deliver` is between the two."""

    def __init__(self, kafka: KafkaSettings, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kafka, self.agent, self.metrics, self.probes = kafka, Agent(), Metrics(), 0
        self.partition = partition_of(self.agent.key.encoded(), kafka.partitions)
        settings = ProcessorSettings(**kafka.model_dump(), instance="bench", outage_ms=60_000, commit_interval_ms=0)
        self.wall_clock_s: Callable[[], float] = time.time
        self.fetcher = Fetcher(settings, lambda: self.wall_clock_s())
        job = processor_job(settings)
        context = WorkerContext(settings, job, self.metrics, UnboundedExecutor(), self.fetcher)
        self.assignment = Assignment(context, PartitionStores(settings, None, job.row_codec))
        self.deliver: Callable[[int, Sequence[LogRecord]], None] = self.offer
        monkeypatch.setattr(partition_owner, "probe_log", self.probe_log)

    def probe_log(self, settings: ProcessorSettings, partition: int, offset: int) -> LogProbe:
        self.probes += 1
        return probe_log(settings, partition, offset)

    def offer(self, begin_offset: int, records: Sequence[LogRecord]) -> None:
        self.owner.offer_records(begin_offset, records)

    @property
    def owner(self) -> PartitionOwner:
        return self.assignment.owners[self.partition]

    def run(self, story: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Play a story with an open partition, then close it."""

        async def play() -> None:
            self.fetcher.start(
                lambda _, begin, records, size: self.deliver(begin, records), self.assignment.halt_partition
            )
            self.assignment.take_assignment([self.partition])
            await self.seen(lambda: self.assignment.is_ready)
            self.probes = 0
            await story()
            await self.assignment.close()
            self.fetcher.close()

        asyncio.run(play())

    async def seen(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                await asyncio.sleep(0.01)

    def send_in_transactions(self, records: Sequence[OutgoingRecord], size: int) -> int:
        """Commit records, `size` in each transaction; return the last one's offset."""
        producer = Producer({**self.kafka.client_config(), "transactional.id": self.kafka.topic_prefix, "linger.ms": 0})
        offsets: list[int] = []
        producer.init_transactions(WAIT_S)
        for begin in range(0, len(records), size):
            producer.begin_transaction()
            for record in records[begin : begin + size]:
                producer.produce(
                    self.kafka.topics.events,
                    record.value,
                    record.key,
                    self.partition,
                    on_delivery=lambda _, message: offsets.append(message.offset() or 0),
                    headers=list(record.headers),
                )
            producer.commit_transaction(WAIT_S)
        return offsets[-1]

    def folded(self) -> tuple[int, int]:
        """Return how many records the partition's batches have judged, and how many as applied."""
        counts = [
            (batch.applied + batch.duplicate + batch.rejected, batch.applied) for batch in read_batches(self.kafka)
        ]
        return sum(judged for judged, _ in counts), sum(applied for _, applied in counts)


def test_markers_of_transactions_between_the_events_cost_no_look_into_the_log(
    kafka: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(kafka, monkeypatch)
    events = [*bench.agent.start(), *(bench.agent.work() for _ in range(1_996))]

    async def story() -> None:
        # The owner folds some before more is written, so that it gets the events in many batches.
        for begin in range(0, len(events), 80):
            last = await asyncio.to_thread(bench.send_in_transactions, events[begin : begin + 80], 10)
            assert await bench.owner.wait_until_committed(last, WAIT_S)
        assert last == len(events) + len(events) // 10 - 2  # before the last marker
        assert bench.owner.commits >= len(events) / 80
        assert bench.probes <= 1
        assert bench.metrics.errors.labels("sought")._value.get() == 0

    bench.run(story)
    assert bench.folded() == (2_000, 2_000)


def test_a_batch_that_is_lost_on_the_way_is_fetched_again(
    kafka: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(kafka, monkeypatch)
    events = [*bench.agent.start(), *(bench.agent.work() for _ in range(496))]
    lost: list[int] = []

    def lose_one(begin_offset: int, records: Sequence[LogRecord]) -> None:
        if lost:
            bench.offer(begin_offset, records)
        else:
            lost.extend(record.offset for record in records)

    async def story() -> None:
        first = await asyncio.to_thread(bench.send_in_transactions, events[:100], 5)
        assert await bench.owner.wait_until_committed(first, WAIT_S)
        bench.deliver = lose_one
        await asyncio.to_thread(bench.send_in_transactions, events[100:200], 5)
        await bench.seen(lambda: lost)
        # A lost batch is noticed by the next one, so more is written only after the loss.
        last = await asyncio.to_thread(bench.send_in_transactions, events[200:], 5)
        assert await bench.owner.wait_until_committed(last, WAIT_S)
        assert bench.metrics.errors.labels("sought")._value.get() >= 1

    bench.run(story)
    assert bench.folded() == (500, 500)


def test_records_that_are_deleted_before_they_are_fetched_halt_the_partition(
    kafka: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(kafka, monkeypatch)
    events = [*bench.agent.start(), *(bench.agent.work() for _ in range(96))]

    async def story() -> None:
        first = await asyncio.to_thread(bench.send_in_transactions, events[:50], 50)
        assert await bench.owner.wait_until_committed(first, WAIT_S)
        bench.fetcher.pause_partition(bench.partition)
        last = await asyncio.to_thread(bench.send_in_transactions, events[50:], 10)
        place = TopicPartition(kafka.topics.events, bench.partition, last - 10)
        admin = AdminClient(kafka.client_config())  # the results die with it
        for deleted in admin.delete_records([place]).values():
            await asyncio.to_thread(deleted.result, WAIT_S)
        bench.fetcher.resume_partition(bench.partition)
        await bench.seen(lambda: bench.assignment.halted_partitions)
        assert bench.assignment.halted_partitions[bench.partition].reason == "log_gap"

    bench.run(story)
    assert bench.folded() == (50, 50)


def test_a_record_ahead_of_the_workers_clock_waits_until_that_clock_has_caught_up(
    kafka: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assignment_module, "HALT_RETRY_S", 0.3)
    bench = Bench(kafka, monkeypatch)
    events = [*bench.agent.start(), *(bench.agent.work() for _ in range(96))]

    async def story() -> None:
        before = await asyncio.to_thread(bench.send_in_transactions, events[:50], 50)
        boundary_s = time.time() + 0.01
        bench.wall_clock_s = lambda: boundary_s - 60.0
        await bench.seen(lambda: time.time() > boundary_s + 0.01)
        last = await asyncio.to_thread(bench.send_in_transactions, events[50:], 50)
        await bench.seen(lambda: bench.assignment.halted_partitions)
        fault, halted = bench.assignment.halted_partitions[bench.partition], bench.owner
        assert fault.reason == "clock_ahead"
        assert f"the record at offset {before + 2} " in fault.detail  # behind the transaction's marker
        assert bench.owner.state.position.next_offset == before + 1
        assert bench.owner.state.position.clock_ms <= boundary_s * 1_000
        await bench.seen(lambda: bench.owner is not halted and bench.owner.halted)
        bench.wall_clock_s = time.time
        await bench.seen(lambda: bench.owner.state.position.next_offset == last + 1)

    bench.run(story)
    assert bench.folded() == (100, 100)
