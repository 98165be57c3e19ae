"""One partition's ownership on a real broker: what it drops, seeks back for, is fenced by and stands still at."""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from sessionary.infra.local.kafka.broker import LocalBroker
from sessionary.schemas.errors import SettingsError
from sessionary.schemas.ids import partition_of
from sessionary.schemas.records import BatchRecord
from sessionary.schemas.settings import KafkaSettings
from sessionary.stream_processors.core.partition import LogRecord
from sessionary.stream_processors.errors import Halted, Lost
from sessionary.stream_processors.metrics import Metrics
from sessionary.stream_processors.runtime.executor import OwnThreads
from sessionary.stream_processors.runtime.job import sessions
from sessionary.stream_processors.runtime.partition_owner import PENDING_BYTES_MAX, Means, Ownership
from sessionary.stream_processors.settings import ProcessorSettings
from sessionary.stream_processors.store.stores import MemoryStore
from sessionary.stream_processors.worker import wait_for_topics
from tests.integration.processor_load import Agent, Sender
from tests.support import read_records, read_topic
from tests.support.pipelines import new_pipeline

WAIT_S = 15.0


class FakeFetching:
    """Notes what a partition asks of the fetching."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    def pause(self, partition: int) -> None:
        self.asked.append(("pause", partition))

    def resume(self, partition: int) -> None:
        self.asked.append(("resume", partition))

    def fetch(self, partition: int, offset: int) -> None:
        self.asked.append(("fetch", offset))

    def drop(self, partition: int) -> None:
        self.asked.append(("drop", partition))

    def took(self, size: int) -> None:
        """Of no interest here: nothing is fetched."""


class Bench:
    """One partition with events, and what an ownership of it needs."""

    def __init__(self, kafka: KafkaSettings, events: int = 40, commit_interval_ms: int = 0) -> None:
        self.settings = ProcessorSettings(
            bootstrap_servers=kafka.bootstrap_servers,
            topic_prefix=kafka.topic_prefix,
            partitions=kafka.partitions,
            instance="bench",
            hole_ms=60_000,
            commit_interval_ms=commit_interval_ms,
        )
        agent, sender = Agent(), Sender(kafka)
        self.partition = partition_of(agent.key.encoded(), kafka.partitions)
        sender.send(*agent.start(), *(agent.work() for _ in range(events - 4)))
        sender.flush()
        self.fetching, self.metrics = FakeFetching(), Metrics()
        self.means = Means(
            self.settings,
            sessions(self.settings),
            self.metrics,
            OwnThreads(),
            self.fetching,
        )
        self.log = [
            LogRecord(stored.offset, stored.timestamp_ms, stored.key, stored.value, stored.headers)
            for stored in read_topic(kafka, kafka.topics.events)
            if stored.partition == self.partition
        ]

    def own(self, former: Ownership | None = None) -> Ownership:
        return Ownership(self.means, self.partition, 1, MemoryStore, former)

    async def seen(self, condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline_s, self.fetching.asked
            await asyncio.sleep(0.02)

    async def close(self, *owners: Ownership) -> None:
        for owner in owners:
            owner.end()
            with suppress(Lost, Halted):
                await owner.task
        self.means.executor.shutdown()


def position(owner: Ownership) -> int:
    return owner.fold.position.next_offset


def test_below_the_position_is_skipped_and_ahead_of_it_is_sought_back(kafka: KafkaSettings) -> None:
    async def story() -> None:
        bench = Bench(kafka)
        owner = bench.own()
        await bench.seen(lambda: owner.is_open)
        assert bench.fetching.asked == [("fetch", 0)]
        owner.offer(bench.log[:10])
        assert await owner.caught_up(9, WAIT_S)
        owner.offer(bench.log[5:15])  # fetched twice
        assert await owner.caught_up(14, WAIT_S)
        owner.offer(bench.log[20:30])  # the fetch stands past the position
        await bench.seen(lambda: len(bench.fetching.asked) == 2)
        assert bench.fetching.asked[-1] == ("fetch", 15)
        owner.offer(bench.log[15:40])
        assert await owner.caught_up(39, WAIT_S)
        assert bench.metrics.errors.labels("sought")._value.get() == 1
        await bench.close(owner)

    asyncio.run(story())
    audits = read_records(kafka, kafka.topics.audit)
    assert len(audits) == 2  # created, started: nothing was folded twice, no gap was seen


def test_what_arrives_within_the_interval_shares_a_transaction(kafka: KafkaSettings) -> None:
    interval_ms = 300

    async def story() -> None:
        bench = Bench(kafka, commit_interval_ms=interval_ms)
        owner = bench.own()
        await bench.seen(lambda: owner.is_open)
        for record in bench.log:
            owner.offer([record])
            await asyncio.sleep(0)
        assert await owner.caught_up(39, WAIT_S)
        await bench.close(owner)

    asyncio.run(story())
    first, second = (record for record in read_records(kafka, kafka.topics.batches) if isinstance(record, BatchRecord))
    assert (first.first_offset, second.last_offset) == (0, 39)
    assert second.started_at - first.started_at >= interval_ms * 1_000


def test_what_was_fetched_before_a_seek_costs_no_second_one(kafka: KafkaSettings) -> None:
    async def story() -> None:
        bench = Bench(kafka)
        owner = bench.own()
        await bench.seen(lambda: owner.is_open)
        owner.offer(bench.log[20:30])  # was on its way when the opening sought to the position
        owner.offer(bench.log[:40])
        assert await owner.caught_up(39, 0.9)  # before the pause between two seeks is over
        assert bench.fetching.asked == [("fetch", 0)]
        await bench.close(owner)

    asyncio.run(story())


def test_a_log_that_begins_later_stops_the_partition(kafka: KafkaSettings) -> None:
    async def story() -> None:
        bench = Bench(kafka)
        admin = AdminClient({**kafka.librdkafka(), "log_level": 0})
        begin = TopicPartition(kafka.topics.events, bench.partition, 7)
        for deleted in admin.delete_records([begin]).values():
            deleted.result(10)
        owner = bench.own()
        with pytest.raises(Halted) as caught:
            await owner.task
        assert caught.value.reason == "log_gap"
        assert owner.halted is caught.value
        assert not owner.is_open
        await bench.close()

    asyncio.run(story())


def test_a_new_owner_fences_the_one_that_believes_in_itself(kafka: KafkaSettings) -> None:
    async def story() -> None:
        bench = Bench(kafka)
        first = bench.own()
        await bench.seen(lambda: first.is_open)
        first.offer(bench.log[:10])
        assert await first.caught_up(9, WAIT_S)
        second = bench.own()
        await bench.seen(lambda: second.is_open)
        assert position(second) == 10
        first.offer(bench.log[10:20])  # a zombie goes on
        with pytest.raises(Lost):
            await first.task
        second.offer(bench.log[10:40])
        assert await second.caught_up(39, WAIT_S)
        await bench.close(second)

    asyncio.run(story())
    assert len(read_records(kafka, kafka.topics.audit)) == 2


def test_a_returning_partition_reads_only_what_is_new_in_the_changelog(
    kafka: KafkaSettings, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        bench = Bench(kafka)
        store = MemoryStore()
        first = Ownership(bench.means, bench.partition, 1, lambda: store, None)
        await bench.seen(lambda: first.is_open)
        first.offer(bench.log[:10])
        assert await first.caught_up(9, WAIT_S)
        first.end()
        elsewhere = bench.own(first)  # another worker has it for a while
        await bench.seen(lambda: elsewhere.is_open)
        elsewhere.offer(bench.log[10:20])
        assert await elsewhere.caught_up(19, WAIT_S)
        elsewhere.end()
        assert store.saved is not None
        known = store.saved.changelog_next
        again = Ownership(bench.means, bench.partition, 3, lambda: store, elsewhere)
        await bench.seen(lambda: again.is_open)
        assert store.saved.changelog_next > known
        assert position(again) == 20
        again.offer(bench.log[20:40])
        assert await again.caught_up(39, WAIT_S)
        await bench.close(again)

    with caplog.at_level(logging.INFO):
        asyncio.run(story())
    assert len(read_records(kafka, kafka.topics.audit)) == 2


def test_a_record_that_the_broker_refuses_stops_the_partition_with_its_name(kafka: KafkaSettings) -> None:
    async def story() -> None:
        bench = Bench(kafka)
        admin = AdminClient({**kafka.librdkafka(), "log_level": 0})
        small = ConfigEntry("max.message.bytes", "300", incremental_operation=AlterConfigOpType.SET)
        topic = ConfigResource(ResourceType.TOPIC, kafka.topics.changelog, incremental_configs=[small])
        for altered in admin.incremental_alter_configs([topic]).values():
            altered.result(10)
        owner = bench.own()
        await bench.seen(lambda: owner.is_open)
        owner.offer(bench.log)
        with pytest.raises(Halted) as caught:
            await owner.task
        assert caught.value.reason == "record_too_large"
        assert position(owner) == 0
        await bench.close()

    asyncio.run(story())
    assert read_records(kafka, kafka.topics.audit) == []


def test_too_much_that_waits_holds_the_fetching(kafka: KafkaSettings) -> None:
    async def story() -> None:
        bench = Bench(kafka)
        owner = bench.own()
        huge = bench.log[0]._replace(value=b"x" * (PENDING_BYTES_MAX + 1))
        owner.offer([huge])
        assert bench.fetching.asked == [("pause", bench.partition)]
        await bench.seen(lambda: owner.is_open)
        assert bench.fetching.asked == [("pause", bench.partition), ("resume", bench.partition), ("fetch", 0)]
        await bench.close(owner)

    asyncio.run(story())


@pytest.mark.long
def test_a_broker_that_was_away_finds_the_same_owner_again(broker: LocalBroker) -> None:
    kafka = new_pipeline(broker.bootstrap_servers)

    async def story() -> None:
        bench = Bench(kafka)
        owner = bench.own()
        await bench.seen(lambda: owner.is_open)
        owner.offer(bench.log[:10])
        assert await owner.caught_up(9, WAIT_S)  # from here on the producer knows its group's coordinator
        await asyncio.to_thread(broker.kill)
        owner.offer(bench.log[10:20])
        await asyncio.to_thread(broker.start)
        await asyncio.to_thread(broker.wait_ready)
        if not await owner.caught_up(19, WAIT_S):
            # A broker that was away for longer than the transaction's time-out has ended it: as the ledger does then.
            assert isinstance(owner.task.exception(), Lost)
            again = owner = bench.own(owner)
            await bench.seen(lambda: again.is_open)
            owner.offer(bench.log[:20])
            assert await owner.caught_up(19, WAIT_S)
        assert bench.metrics.errors.labels("hung")._value.get() == 0
        owner.offer(bench.log[20:])
        assert await owner.caught_up(39, WAIT_S)
        await bench.close(owner)

    asyncio.run(story())
    assert len(read_records(kafka, kafka.topics.audit)) == 2


def test_a_worker_says_which_topic_is_missing_or_cut_otherwise(kafka: KafkaSettings) -> None:
    settings = Bench(kafka).settings
    wait_for_topics(settings, lambda: False)
    with pytest.raises(SettingsError, match="does not exist: run `sessionary topics apply`"):
        wait_for_topics(settings.model_copy(update={"topic_prefix": "nobody"}), lambda: False)
    with pytest.raises(SettingsError, match="SESSIONARY_PARTITIONS"):
        wait_for_topics(settings.model_copy(update={"partitions": 5}), lambda: False)
