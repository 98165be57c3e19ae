"""Events in Confluent's framing, with a real schema registry that may stand still."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient

from sessionary.schemas.codec import Decoder, Event, encode_confluent
from sessionary.schemas.codec.registry import ConfluentRegistry
from sessionary.schemas.records import RejectedEvent
from sessionary.schemas.settings import KafkaSettings
from tests.integration.processor_load import (
    Agent,
    OutgoingRecord,
    Sender,
    agent_of_partition,
    start_processor,
    wait_judged,
)
from tests.support import Processes, wait_until
from tests.support.reading import read_batches, read_records
from tests.support.schema_registry import RealRegistry

UNKNOWN_SCHEMA = b"\x00\x00\x0f\x42\x40 no schema has this id"


@pytest.fixture
def server(tmp_path: Path, processes: Processes) -> RealRegistry:
    return RealRegistry(tmp_path / "registry", processes)


@pytest.fixture
def registry(server: RealRegistry) -> Iterator[ConfluentRegistry]:
    with SchemaRegistryClient({"url": server.url}) as client:
        yield ConfluentRegistry(client)


def framed(record: OutgoingRecord, registry: ConfluentRegistry) -> OutgoingRecord:
    event = Decoder().decode_event(record.value)
    assert isinstance(event, Event)
    return record._replace(value=encode_confluent(event, registry))


def judged_in(kafka: KafkaSettings, partition: int) -> int:
    return sum(batch.applied + batch.rejected for batch in read_batches(kafka) if batch.partition == partition)


def test_events_are_judged_with_the_schemas_of_a_registry(
    kafka: KafkaSettings, processes: Processes, server: RealRegistry, registry: ConfluentRegistry
) -> None:
    start_processor(processes, kafka, "w1", schema_registry_url=server.url)
    sender, agent = Sender(kafka), Agent()
    sender.send(*(framed(record, registry) for record in (*agent.start(), agent.work())))
    sender.send(OutgoingRecord(agent.key.encoded(), UNKNOWN_SCHEMA))
    sender.flush()
    wait_judged(kafka, 6)
    (rejected,) = read_records(kafka, kafka.topics.rejected)
    assert isinstance(rejected, RejectedEvent)
    assert (rejected.reason, rejected.detail) == ("unknown_schema", "the registry has no schema 1000000")


def test_a_registry_that_stands_still_holds_up_one_partition_and_no_end(
    kafka: KafkaSettings, processes: Processes, server: RealRegistry, registry: ConfluentRegistry
) -> None:
    worker = start_processor(processes, kafka, "w1", schema_registry_url=server.url)
    sender, (waiting, others) = Sender(kafka), [agent_of_partition(number, kafka.partitions) for number in range(2)]
    events = [framed(record, registry) for record in waiting.start()]
    os.kill(server.child.pid, signal.SIGSTOP)
    sender.send(*events)
    sender.flush()
    sender.send(*others.start())
    for _ in range(8):
        sender.send(others.work())
        sender.flush()
        wait_until(lambda: judged_in(kafka, 1) == others.seq, 10, "the other partition goes on")
    assert judged_in(kafka, 0) == 0
    worker.signal(signal.SIGTERM)
    assert worker.wait(180)
    assert worker.exit_code == 0
    start_processor(processes, kafka, "w1", schema_registry_url=server.url)
    os.kill(server.child.pid, signal.SIGCONT)
    wait_judged(kafka, 16)
    assert judged_in(kafka, 0) == 4
