"""Topics that are deleted and made again, and records that a foreign transaction hides."""

import asyncio
import dataclasses

import pytest
from confluent_kafka import Producer

from sessionary.infra.local.ports import free_port
from sessionary.infra.local.process import Child
from sessionary.schemas.records import AuditRecord
from sessionary.schemas.settings import KafkaSettings
from sessionary.stream_processors.errors import Halted
from sessionary.stream_processors.runtime import partition_owner
from sessionary.stream_processors.runtime.log_identity import LogClient
from tests.integration.processor_load import Agent, Sender, count_judged, start_processor
from tests.integration.test_processor_partition import Bench, offer
from tests.support import Processes, read_records, wait_until
from tests.support.metrics_page import metric_value
from tests.support.pipelines import make_topic_again, new_pipeline

_SEND_S = 120.0


def send_session(kafka: KafkaSettings, events: int) -> None:
    agent, sender = Agent(), Sender(kafka)
    sender.send(*agent.start(), *(agent.work() for _ in range(events - 4)))
    sender.flush()


def is_halted(port: int, reason: str) -> bool:
    return metric_value(port, f'sessionary_processor_partitions_halted{{reason="{reason}"}}') == 1.0


def audited(kafka: KafkaSettings) -> int:
    return sum(isinstance(record, AuditRecord) for record in read_records(kafka, kafka.topics.audit))


class Pipeline:
    """One partition, with a session of 40 judged events."""

    def __init__(self, servers: str, processes: Processes) -> None:
        self.kafka, self.port, self._processes = new_pipeline(servers, partitions=1), free_port(), processes
        self.worker = self.start()
        send_session(self.kafka, 40)
        wait_until(lambda: count_judged(self.kafka) == 40, 60, "the events to be judged")

    def start(self) -> Child:
        return start_processor(self._processes, self.kafka, "w1", api_port=str(self.port))


def test_events_that_are_made_again_halt_a_running_worker_and_the_next_one(
    kafka: KafkaSettings, processes: Processes
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, processes)
    make_topic_again(pipeline.kafka, pipeline.kafka.topics.events)
    send_session(pipeline.kafka, 10)
    wait_until(lambda: is_halted(pipeline.port, "topic_replaced"), 60, "the running worker to notice")
    assert count_judged(pipeline.kafka) == 40
    pipeline.worker.stop(30)
    send_session(pipeline.kafka, 100)  # the log grows past the position
    pipeline.start()
    wait_until(lambda: is_halted(pipeline.port, "topic_replaced"), 60, "the next worker to notice")
    assert count_judged(pipeline.kafka) == 40


def test_a_changelog_that_is_made_again_lets_no_worker_begin_again(kafka: KafkaSettings, processes: Processes) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, processes)
    known = audited(pipeline.kafka)
    pipeline.worker.stop(30)
    make_topic_again(pipeline.kafka, pipeline.kafka.topics.changelog)
    worker = pipeline.start()
    wait_until(lambda: is_halted(pipeline.port, "position_lost"), 60, "the worker to notice")
    for trace in ("has committed its offset", f"{pipeline.kafka.topics.batches} has its records", ".audit has its"):
        assert trace in worker.log.read_text()
    assert (count_judged(pipeline.kafka), audited(pipeline.kafka)) == (40, known)


def test_a_changelog_that_is_made_again_halts_the_running_worker(kafka: KafkaSettings, processes: Processes) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, processes)
    make_topic_again(pipeline.kafka, pipeline.kafka.topics.changelog)
    reasons = "topic_replaced", "position_lost"  # the latter if a transaction fails before the worker looks
    wait_until(lambda: any(is_halted(pipeline.port, reason) for reason in reasons), 60, "the running worker to notice")


def test_a_partition_does_not_open_while_a_foreign_transaction_hides_its_changelog(
    kafka: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_owner, "HIDDEN_S_MAX", 1.0)

    async def story() -> None:
        bench = Bench(kafka)
        client = LogClient(bench.settings)
        bench.context = dataclasses.replace(
            bench.context, topic_ids=client.ask_ids, changelog_end=client.ask_changelog_end
        )
        owner = bench.own()
        await bench.seen(lambda: owner.is_open)
        offer(owner, bench.log[:20])
        assert await owner.wait_until_committed(19, _SEND_S)
        foreign = await asyncio.to_thread(open_transaction, kafka, bench.partition)
        offer(owner, bench.log[20:])
        assert await owner.wait_until_committed(39, _SEND_S)
        owner.request_end()
        await owner.task
        with pytest.raises(Halted) as caught:
            await bench.own(owner).task
        assert caught.value.reason == "transaction_open"
        await asyncio.to_thread(foreign.abort_transaction, _SEND_S)
        again = bench.own()
        await bench.seen(lambda: again.is_open)
        assert again.state.position.next_offset == 40
        assert None not in (again.state.position.events_topic_id, again.state.position.changelog_topic_id)
        await bench.close(again)

    asyncio.run(story())


def open_transaction(kafka: KafkaSettings, partition: int) -> Producer:
    """Write a row to the changelog, in a transaction that stays open."""
    names = {"transactional.id": f"{kafka.topic_prefix}-foreign", "transaction.timeout.ms": 600_000}
    producer = Producer({**kafka.client_config(), **names})
    producer.init_transactions(_SEND_S)
    producer.begin_transaction()
    producer.produce(kafka.topics.changelog, None, b"acme:foreign", partition)
    assert producer.flush(_SEND_S) == 0
    return producer
