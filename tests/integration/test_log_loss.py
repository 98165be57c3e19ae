"""A broker that loses records which were folded already: the partition halts, silent is nothing.

The broker is killed, a part of a partition's file is cut off, and it starts again: what a machine
without power leaves of records that were in memory only.
"""

import asyncio
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from sessionary.infra.local.kafka.cluster import LocalBroker
from sessionary.infra.local.ports import free_port
from sessionary.schemas.kafka.clients import AdminConnection
from sessionary.schemas.kafka.log_progress import LogEnd, LogEndClient
from sessionary.schemas.records import AuditRecord, RejectedEvent
from sessionary.schemas.settings import KafkaSettings
from sessionary.stream_processors.errors import Halted
from sessionary.stream_processors.runtime.assignment import Assignment
from sessionary.stream_processors.runtime.decisions import TruncationAcceptance
from sessionary.stream_processors.runtime.log_probe import probe_log
from sessionary.stream_processors.runtime.partition_owner import PartitionOwner
from sessionary.stream_processors.runtime.watchdog import TruncationWatchdog
from sessionary.stream_processors.store.stores import PartitionStores
from tests.integration.processor_load import Agent, Sender, start_processor, wait_judged
from tests.integration.test_processor_partition import WAIT_S, Bench, new_store
from tests.support import Processes, read_records, wait_until
from tests.support.metrics_page import metric_value
from tests.support.pipelines import new_pipeline

HALTED = 'sessionary_processor_partitions_halted{reason="log_truncated"}'


def lose_half(broker: LocalBroker, data: Path, topic: str, partition: int) -> None:
    """Kill the broker, cut a partition's file to the half, start the broker again."""
    broker.kill()
    segment = data / "log" / f"{topic}-{partition}" / f"{0:020}.log"
    with segment.open("r+b") as file:
        file.truncate(segment.stat().st_size // 2)
    broker.start()
    broker.wait_ready()


def append_records(kafka: KafkaSettings, partition: int, count: int) -> None:
    producer = Producer(kafka.client_config())
    for _ in range(count):
        producer.produce(kafka.topics.events, b"v", b"acme:x", partition)
    assert producer.flush(120) == 0


def test_a_worker_halts_a_partition_whose_log_lost_its_end(
    broker: LocalBroker, processes: Processes, tmp_path: Path
) -> None:
    kafka, port = new_pipeline(broker.bootstrap_servers, partitions=1), free_port()
    start_processor(processes, kafka, "w1", api_port=str(port))
    agent, sender = Agent(), Sender(kafka)
    sender.send(*agent.start(), *(agent.work() for _ in range(400)))
    sender.flush()
    wait_judged(kafka, 404)
    lose_half(broker, tmp_path / "kafka", kafka.topics.events, 0)
    wait_until(lambda: metric_value(port, HALTED) == 1.0, 60, "the partition to halt")


class LossBench(Bench):
    """One partition of 40 folded records, held by an assignment that a watchdog watches."""

    def __init__(self, kafka: KafkaSettings) -> None:
        super().__init__(kafka)
        self.assignment = Assignment(self.context, PartitionStores(self.settings, None, self.context.job.row_codec))
        self.ends = LogEndClient(AdminConnection(self.settings), committed_only=True)
        self.watchdog = TruncationWatchdog(self.assignment)

    async def fold_all(self) -> PartitionOwner:
        self.assignment.take_assignment([self.partition])
        owner = self.assignment.owners[self.partition]
        await self.seen(lambda: owner.is_open)
        owner.offer_records(self.log[0].offset, self.log)
        assert await owner.wait_until_committed(39, WAIT_S)
        return owner

    async def watch_once(self) -> None:
        """One round of what a worker does every few seconds, with an answer of the broker."""
        ends: dict[int, LogEnd] = {}
        async with asyncio.timeout(WAIT_S):
            while not ends:  # a broker that has just started may not know yet what it leads
                positions = self.assignment.open_positions
                ends = await asyncio.to_thread(self.ends.ask_ends, self.settings.topics.events, [self.partition], 30.0)
        for partition in self.watchdog.check_ends(positions, ends):
            position = positions[partition]
            log = await asyncio.to_thread(probe_log, self.settings, partition, position.next_offset)
            self.watchdog.check_log(partition, position, log)


def test_a_log_that_was_cut_and_grew_past_the_position_halts_the_open_partition(
    broker: LocalBroker, tmp_path: Path
) -> None:
    kafka = new_pipeline(broker.bootstrap_servers)

    async def story() -> None:
        bench = LossBench(kafka)
        owner = await bench.fold_all()
        await bench.watch_once()
        await asyncio.to_thread(lose_half, broker, tmp_path / "kafka", kafka.topics.events, bench.partition)
        await asyncio.to_thread(append_records, kafka, bench.partition, 60)
        await bench.watch_once()
        with pytest.raises(Halted) as caught:
            await owner.task
        assert caught.value.reason == "log_truncated"
        assert "offset 39 now has" in caught.value.detail
        assert owner.state.position.next_offset == 40
        assert bench.metrics.halted.labels("log_truncated")._value.get() == 1
        await bench.close()

    asyncio.run(story())


def test_a_broker_that_only_restarts_halts_nothing(broker: LocalBroker) -> None:
    kafka = new_pipeline(broker.bootstrap_servers)

    async def story() -> None:
        bench = LossBench(kafka)
        owner = await bench.fold_all()
        await bench.watch_once()
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(broker.start)
        await asyncio.to_thread(broker.wait_ready)
        await asyncio.to_thread(append_records, kafka, bench.partition, 60)
        for _ in range(3):
            await bench.watch_once()
        assert owner.is_open
        await bench.close(owner)

    asyncio.run(story())


def test_a_partition_does_not_open_on_a_log_that_was_cut(broker: LocalBroker, tmp_path: Path) -> None:
    kafka = new_pipeline(broker.bootstrap_servers)

    async def story() -> None:
        bench = LossBench(kafka)
        former = await bench.fold_all()
        former.request_end()
        await former.task
        await asyncio.to_thread(lose_half, broker, tmp_path / "kafka", kafka.topics.events, bench.partition)
        for records in (0, 60):  # first the log ends below the position, then it has grown past it
            await asyncio.to_thread(append_records, kafka, bench.partition, records)
            with pytest.raises(Halted) as caught:
                await asyncio.wait_for(bench.own().task, WAIT_S)
            assert caught.value.reason == "log_truncated"
        await bench.close()

    asyncio.run(story())


def decision_lines(kafka: KafkaSettings) -> list[AuditRecord]:
    audits = [record for record in read_records(kafka, kafka.topics.audit) if isinstance(record, AuditRecord)]
    return [line for line in audits if line.event_type == "log_truncation_accepted"]


@pytest.mark.parametrize("grown", [0, 60])
def test_an_accepted_truncation_folds_no_offset_twice_and_goes_on(
    broker: LocalBroker, tmp_path: Path, grown: int
) -> None:
    kafka = new_pipeline(broker.bootstrap_servers)

    async def story() -> None:
        bench = LossBench(kafka)
        owner = await bench.fold_all()
        row = next(iter(owner.state.rows.values()))
        owner.request_end()
        await owner.task
        await asyncio.to_thread(lose_half, broker, tmp_path / "kafka", kafka.topics.events, bench.partition)
        await asyncio.to_thread(append_records, kafka, bench.partition, max(2, grown))
        cut = (await asyncio.to_thread(log_range, kafka, bench.partition))[1] - max(2, grown)
        assert cut < 38
        with pytest.raises(Halted, match="log_truncated"):
            await asyncio.wait_for(bench.own().task, WAIT_S)
        decision = TruncationAcceptance("power loss", "alice")
        accepting = PartitionOwner(bench.context, bench.partition, new_store, None, decision)
        await bench.seen(lambda: accepting.is_open)
        assert accepting.state.position.next_offset == 40
        assert list(accepting.state.rows.values()) == [row]
        start, end = await asyncio.to_thread(log_range, kafka, bench.partition)
        assert (start, end) == (0, max(40, cut + grown))
        await bench.close(accepting)
        again = bench.own()
        await bench.seen(lambda: again.is_open)  # no loss is reported any more
        await bench.close(again)
        (line,) = decision_lines(kafka)
        assert (line.kind, line.actor) == ("decision", "alice")
        assert (line.source_offset, line.gap_first, line.gap_last) == (40, cut, 39)
        letters = [one for one in read_records(kafka, kafka.topics.rejected) if isinstance(one, RejectedEvent)]
        replaced = range(cut, min(40, cut + max(2, grown)))
        assert [(letter.source_offset, letter.reason) for letter in letters] == [(n, "skipped") for n in replaced]

    asyncio.run(story())


def log_range(kafka: KafkaSettings, partition: int) -> tuple[int, int]:
    """Return the first offset of a partition of the events topic, and its end."""
    reader = Consumer({**kafka.client_config(), "group.id": "unused"})
    try:
        start, end = reader.get_watermark_offsets(TopicPartition(kafka.topics.events, partition), timeout=60)
        return start, end
    finally:
        reader.close()
