"""A partition's owner on a real broker: what it skips, fetches again, is fenced by and halts at."""

import asyncio
import itertools
import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient

from sessionary.infra.local.kafka.cluster import LocalBroker
from sessionary.schemas.ids import partition_of
from sessionary.schemas.records import AuditRecord, RejectedEvent
from sessionary.schemas.settings import KafkaSettings
from sessionary.schemas.topics import CHANGELOG_BYTES_MAX
from sessionary.stream_processors.core.families import SESSION_JUDGE
from sessionary.stream_processors.core.model import LogRecord
from sessionary.stream_processors.errors import Halted, Lost
from sessionary.stream_processors.metrics import Metrics
from sessionary.stream_processors.runtime import assignment as assignment_module
from sessionary.stream_processors.runtime import partition_owner, worker_context
from sessionary.stream_processors.runtime.assignment import Assignment
from sessionary.stream_processors.runtime.executor import UnboundedExecutor
from sessionary.stream_processors.runtime.job import PlainProduced, processor_job
from sessionary.stream_processors.runtime.partition_owner import PartitionOwner
from sessionary.stream_processors.runtime.pending_records import PENDING_BYTES_MAX
from sessionary.stream_processors.runtime.transaction import TransactionWriter
from sessionary.stream_processors.runtime.worker_context import WorkerContext
from sessionary.stream_processors.settings import ProcessorSettings
from sessionary.stream_processors.store.packed_rows import FamilyCodec
from sessionary.stream_processors.store.stores import MemoryStore, PartitionStores
from tests.integration.processor_load import Agent, Sender
from tests.support import read_batches, read_records, read_topic, wait_until
from tests.support.failing_worker import FailingJudge
from tests.support.pipelines import alter_topic, new_pipeline, refuse_records

WAIT_S = 120.0


class FakeFetchControl:
    """Records what a partition asks of the fetching."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    def pause_partition(self, partition: int) -> None:
        self.asked.append(("pause", partition))

    def resume_partition(self, partition: int) -> None:
        self.asked.append(("resume", partition))

    def fetch_from(self, partition: int, offset: int, believed_from: int) -> None:
        self.asked.append(("fetch", offset))

    def drop_partition(self, partition: int) -> None:
        self.asked.append(("drop", partition))

    def add_pending_bytes(self, size: int) -> None:
        """Nothing is fetched here."""


class Bench:
    """One partition with events, and what an owner of it needs."""

    def __init__(self, kafka: KafkaSettings, events: int = 40, commit_interval_ms: int = 0) -> None:
        self.settings = ProcessorSettings(
            bootstrap_servers=kafka.bootstrap_servers,
            topic_prefix=kafka.topic_prefix,
            partitions=kafka.partitions,
            instance="bench",
            outage_ms=60_000,
            commit_interval_ms=commit_interval_ms,
        )
        agent, sender = Agent(), Sender(kafka)
        self.partition = partition_of(agent.key.encoded(), kafka.partitions)
        sender.send(*agent.start(), *(agent.work() for _ in range(events - 4)))
        sender.flush()
        self.fetch_control, self.metrics = FakeFetchControl(), Metrics()
        self.context = WorkerContext(
            self.settings,
            processor_job(self.settings),
            self.metrics,
            UnboundedExecutor(),
            self.fetch_control,
        )
        self.log = [
            LogRecord(stored.offset, stored.timestamp_ms, stored.key, stored.value, stored.headers)
            for stored in read_topic(kafka, kafka.topics.events)
            if stored.partition == self.partition
        ]

    def refuse_rows(self, kafka: KafkaSettings) -> None:
        """Let the changelog reject the rows of this partition, and wait until it does."""
        other, code = (self.partition + 1) % kafka.partitions, KafkaError.MSG_SIZE_TOO_LARGE
        refuse_records(kafka, kafka.topics.changelog, {"max.message.bytes": "300"}, other, random.randbytes(300), code)

    def own(self, former: PartitionOwner | None = None) -> PartitionOwner:
        return PartitionOwner(self.context, self.partition, new_store, former)

    async def seen(self, condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline_s, self.fetch_control.asked
            await asyncio.sleep(0.02)

    async def close(self, *owners: PartitionOwner) -> None:
        for owner in owners:
            owner.request_end()
            with suppress(Lost, Halted):
                await owner.task
        self.context.executor.shutdown()


def new_store() -> MemoryStore:
    return MemoryStore(FamilyCodec(SESSION_JUDGE.families))


def offer(owner: PartitionOwner, records: Sequence[LogRecord]) -> None:
    """Offer records as the first fetch from a place does: nothing is known of offsets before."""
    owner.offer_records(records[0].offset, records)


def position(owner: PartitionOwner) -> int:
    return owner.state.position.next_offset


def test_records_before_the_position_are_skipped_and_a_gap_is_fetched_again(kafka: KafkaSettings) -> None:
    async def story() -> None:
        bench = Bench(kafka)
        owner = bench.own()
        await bench.seen(lambda: owner.is_open)
        assert bench.fetch_control.asked == [("fetch", 0)]
        offer(owner, bench.log[:10])
        assert await owner.wait_until_committed(9, WAIT_S)
        offer(owner, bench.log[5:15])  # fetched twice
        assert await owner.wait_until_committed(14, WAIT_S)
        offer(owner, bench.log[20:30])  # the fetch stands past the position
        await bench.seen(lambda: len(bench.fetch_control.asked) == 2)
        assert bench.fetch_control.asked[-1] == ("fetch", 15)
        offer(owner, bench.log[15:40])
        assert await owner.wait_until_committed(39, WAIT_S)
        assert bench.metrics.errors.labels("sought")._value.get() == 1
        await bench.close(owner)

    asyncio.run(story())
    audits = read_records(kafka, kafka.topics.audit)
    assert len(audits) == 2  # created, started: nothing was folded twice, no gap was seen


def test_records_that_arrive_within_the_interval_share_a_transaction(kafka: KafkaSettings) -> None:
    interval_ms = 300

    async def story() -> None:
        bench = Bench(kafka, commit_interval_ms=interval_ms)
        owner = bench.own()
        await bench.seen(lambda: owner.is_open)
        begun_s = time.monotonic()
        for record in bench.log:
            offer(owner, [record])
            await asyncio.sleep(0)
        offered_ms.append((time.monotonic() - begun_s) * 1_000)
        assert await owner.wait_until_committed(39, WAIT_S)
        await bench.close(owner)

    offered_ms: list[float] = []
    asyncio.run(story())
    batches = read_batches(kafka)
    assert (batches[0].first_offset, batches[-1].last_offset) == (0, 39)
    pauses_us = [second.started_at - first.started_at for first, second in itertools.pairwise(batches)]
    assert min(pauses_us) >= interval_ms * 1_000
    # Two, unless the machine paused this loop for longer than the interval.
    assert len(batches) <= 2 + offered_ms[0] // interval_ms


def test_records_from_before_a_seek_cause_no_second_one(kafka: KafkaSettings) -> None:
    async def story() -> None:
        bench = Bench(kafka)
        owner = bench.own()
        await bench.seen(lambda: owner.is_open)
        offer(owner, bench.log[20:30])  # was on its way when the opening sought to the position
        offer(owner, bench.log[:40])
        assert await owner.wait_until_committed(39, WAIT_S)
        assert bench.fetch_control.asked == [("fetch", 0)]
        await bench.close(owner)

    asyncio.run(story())


def test_a_log_that_begins_after_the_position_halts_the_partition(kafka: KafkaSettings) -> None:
    async def story() -> None:
        bench = Bench(kafka)
        admin = AdminClient(kafka.client_config())
        begin = TopicPartition(kafka.topics.events, bench.partition, 7)
        for deleted in admin.delete_records([begin]).values():
            deleted.result(120)
        begun_s = time.time() - 0.001  # the owner's time is in whole ms
        owner = bench.own()
        with pytest.raises(Halted) as caught:
            await owner.task
        assert caught.value.reason == "log_gap"
        assert owner.halted is caught.value
        assert owner.halted_at_ms is not None
        assert begun_s <= owner.halted_at_ms / 1_000 <= time.time()
        assert not owner.is_open
        await bench.close()

    asyncio.run(story())


def test_a_new_owner_fences_a_former_one_that_goes_on(kafka: KafkaSettings) -> None:
    async def story() -> None:
        bench = Bench(kafka)
        first = bench.own()
        await bench.seen(lambda: first.is_open)
        offer(first, bench.log[:10])
        assert await first.wait_until_committed(9, WAIT_S)
        second = bench.own()
        await bench.seen(lambda: second.is_open)
        assert position(second) == 10
        offer(first, bench.log[10:20])  # though it is fenced
        with pytest.raises(Lost):
            await first.task
        offer(second, bench.log[10:40])
        assert await second.wait_until_committed(39, WAIT_S)
        await bench.close(second)

    asyncio.run(story())
    assert len(read_records(kafka, kafka.topics.audit)) == 2


def test_a_returning_partition_reads_only_what_is_new_in_the_changelog(
    kafka: KafkaSettings, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        bench = Bench(kafka)
        store = new_store()
        first = PartitionOwner(bench.context, bench.partition, lambda: store, None)
        await bench.seen(lambda: first.is_open)
        offer(first, bench.log[:10])
        assert await first.wait_until_committed(9, WAIT_S)
        first.request_end()
        elsewhere = bench.own(first)  # another worker has it for a while
        await bench.seen(lambda: elsewhere.is_open)
        offer(elsewhere, bench.log[10:20])
        assert await elsewhere.wait_until_committed(19, WAIT_S)
        elsewhere.request_end()
        assert store.saved_position is not None
        known = store.saved_position.changelog_next
        again = PartitionOwner(bench.context, bench.partition, lambda: store, elsewhere)
        await bench.seen(lambda: again.is_open)
        assert store.saved_position.changelog_next > known
        assert position(again) == 20
        offer(again, bench.log[20:40])
        assert await again.wait_until_committed(39, WAIT_S)
        await bench.close(again)

    with caplog.at_level(logging.INFO):
        asyncio.run(story())
    assert len(read_records(kafka, kafka.topics.audit)) == 2


class WaitingWriter(TransactionWriter):
    """Waits for the broker's answer to all records before it produces the position."""

    def _produce(self, records: Iterable[PlainProduced], *rest: Any, **named: Any) -> None:
        super()._produce(records, *rest, **named)
        wait_until(lambda: not (self._producer.poll(0.01) or len(self._producer)), WAIT_S, "the broker's answers")


@pytest.mark.parametrize("writer", [TransactionWriter, WaitingWriter])
def test_a_record_that_the_broker_rejects_halts_the_partition_with_its_reason(
    kafka: KafkaSettings, monkeypatch: pytest.MonkeyPatch, writer: type[TransactionWriter]
) -> None:
    monkeypatch.setattr(partition_owner, "TransactionWriter", writer)

    async def story() -> None:
        bench = Bench(kafka)
        bench.refuse_rows(kafka)
        owner = bench.own()
        await bench.seen(lambda: owner.is_open)
        offer(owner, bench.log)
        await bench.seen(owner.task.done)
        assert str(owner.halted).startswith("record_too_large: ")
        assert position(owner) == 0
        await bench.close()

    asyncio.run(story())
    assert read_records(kafka, kafka.topics.audit) == []


def test_a_record_on_which_the_judge_fails_is_rejected_and_its_partition_goes_on(kafka: KafkaSettings) -> None:
    async def story() -> None:
        bench = Bench(kafka)
        job = processor_job(bench.settings, FailingJudge())
        context = WorkerContext(bench.settings, job, bench.metrics, bench.context.executor, bench.fetch_control)
        stores = PartitionStores(bench.settings, None, job.row_codec)
        assignment = Assignment(context, stores)
        assignment.take_assignment([bench.partition])
        owner = assignment.owners[bench.partition]
        await bench.seen(lambda: owner.is_open)
        owner.offer_records(bench.log[0].offset, bench.log)
        assert await owner.wait_until_committed(39, WAIT_S), owner.halted
        assert assignment.halted_partitions == {}
        assert bench.metrics.errors.labels("judge")._value.get() == 36
        assert bench.metrics.errors.labels("reopened")._value.get() == 0
        assert assignment.owners[bench.partition] is owner
        await assignment.close()
        context.executor.shutdown()

    asyncio.run(story())
    letters = [record for record in read_records(kafka, kafka.topics.rejected) if isinstance(record, RejectedEvent)]
    assert [(letter.source_offset, letter.reason) for letter in letters] == [
        (offset, "internal_error") for offset in range(4, 40)
    ]
    audits = [record for record in read_records(kafka, kafka.topics.audit) if isinstance(record, AuditRecord)]
    failures = [line for line in audits if line.reason_code == "internal_error"]
    assert [line.source_offset for line in failures] == list(range(4, 40))
    for reported in [*(line.reason for line in failures), *(letter.detail for letter in letters)]:
        assert reported.startswith("ZeroDivisionError at")
        assert "the record's text" not in reported


def test_a_halted_partition_goes_on_by_itself_once_its_cause_is_gone(
    kafka: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assignment_module, "HALT_RETRY_S", 0.5)

    async def story() -> None:
        bench = Bench(kafka)
        bench.refuse_rows(kafka)
        assignment = Assignment(bench.context, PartitionStores(bench.settings, None, bench.context.job.row_codec))
        assignment.take_assignment([bench.partition])
        fed: set[PartitionOwner] = set()

        def feed() -> PartitionOwner:
            owner = assignment.owners[bench.partition]
            if owner.is_open and owner not in fed:
                fed.add(owner)
                owner.offer_records(bench.log[0].offset, bench.log)
            return owner

        await bench.seen(lambda: feed().halted is not None)
        assert assignment.halted_partitions[bench.partition].reason == "record_too_large"
        alter_topic(kafka, kafka.topics.changelog, {"max.message.bytes": str(CHANGELOG_BYTES_MAX)})
        await bench.seen(lambda: feed().state.position.next_offset == 40)
        await assignment.close()
        await bench.close()

    asyncio.run(story())


def test_too_many_pending_records_interrupt_the_fetching(kafka: KafkaSettings) -> None:
    async def story() -> None:
        bench = Bench(kafka)
        owner = bench.own()
        huge = bench.log[0]._replace(value=b"x" * (PENDING_BYTES_MAX + 1))
        offer(owner, [huge])
        assert bench.fetch_control.asked == [("pause", bench.partition)]
        await bench.seen(lambda: owner.is_open)
        assert bench.fetch_control.asked == [("pause", bench.partition), ("resume", bench.partition), ("fetch", 0)]
        await bench.close(owner)

    asyncio.run(story())


def test_a_broker_that_was_away_finds_the_same_owner_again(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A call into librdkafka ends after 10 s; a busy machine may tell of that much later.
    monkeypatch.setattr(worker_context, "CALL_S_MAX", 60.0)
    kafka = new_pipeline(broker.bootstrap_servers)

    async def story() -> None:
        bench = Bench(kafka)
        owner = bench.own()
        await bench.seen(lambda: owner.is_open)
        offer(owner, bench.log[:10])
        assert await owner.wait_until_committed(9, WAIT_S)  # from here on the producer knows its group's coordinator
        await asyncio.to_thread(broker.kill)
        offer(owner, bench.log[10:20])
        await asyncio.to_thread(broker.start)
        await asyncio.to_thread(broker.wait_ready)
        if not await owner.wait_until_committed(19, WAIT_S):
            # The broker ended the transaction if it was away for longer than its time-out.
            assert isinstance(owner.task.exception(), Lost)
            again = owner = bench.own(owner)
            await bench.seen(lambda: again.is_open)
            offer(owner, bench.log[:20])
            assert await owner.wait_until_committed(19, WAIT_S)
        assert bench.metrics.errors.labels("hung")._value.get() == 0
        offer(owner, bench.log[20:])
        assert await owner.wait_until_committed(39, WAIT_S)
        await bench.close(owner)

    asyncio.run(story())
    assert len(read_records(kafka, kafka.topics.audit)) == 2
