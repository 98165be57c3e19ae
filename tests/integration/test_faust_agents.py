"""Faust agents of users in a worker: the example, rebalances, and what must not happen."""

import asyncio
import itertools
import json
import re
import signal
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.structs import TopicPartition
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from sessionary.infra.local.process import Child
from sessionary.schemas.ids import new_session_id
from sessionary.schemas.settings import KafkaSettings
from sessionary.schemas.types import Limits
from sessionary.stream_processors.streams.stream_transport import StreamConsumer
from tests.integration.pipeline_rig import COMMAND
from tests.integration.processor_load import (
    Agent,
    Sender,
    agent_of_partition,
    check_everything,
    count_judged,
    last_writers,
    start_processor,
)
from tests.support import Processes, environment, read_topic, wait_until

# These sessions send no heartbeats, and must be Active for as long as a busy machine needs.
LASTING = Limits(model_ms=3_600_000, idle_ms=3_600_000, override=True)
FAILURES = 400  # in a second: more than Faust starts an agent again
EXAMPLE = "examples.join_sessions.agents:register"
PROBES = "tests.support.probing_agents:register"
WATCHED_WORKER = "tests.support.watched_worker"


def make_topics(kafka: KafkaSettings, partitions: int, *names: str) -> None:
    admin = AdminClient(kafka.client_config())
    wanted = [
        NewTopic(f"{kafka.topic_prefix}.{name}", num_partitions=partitions, replication_factor=1) for name in names
    ]
    for made in admin.create_topics(wanted, request_timeout=120).values():
        made.result(120)


def send_invoices(kafka: KafkaSettings, keys: list[bytes], tool: str = "search") -> None:
    producer = Producer({**kafka.client_config(), "partitioner": "murmur2_random"})
    for key in keys:
        value = json.dumps({"tool": tool, "cost_usd_nanos": 700})
        producer.produce(f"{kafka.topic_prefix}.tool-invoices", value, key)
    assert producer.flush(120) == 0


def assigned_partitions(kafka: KafkaSettings) -> list[dict[str, set[int]]]:
    """Return the partitions of each topic that each member of the group has."""
    group = f"{kafka.topic_prefix}.processor"
    admin = AdminClient(kafka.client_config())  # referenced until the result is there
    described = admin.describe_consumer_groups([group])[group].result(120)
    members = [member.assignment.topic_partitions for member in described.members if member.assignment]
    return [
        {topic: {place.partition for place in places if place.topic == topic} for topic in {p.topic for p in places}}
        for places in members
    ]


def charged(kafka: KafkaSettings) -> list[tuple[bytes | None, tuple[str, str | None, str | None]]]:
    """Return each charged invoice's key, tool, owner of the session and state of the session."""
    found = []
    for stored in read_topic(kafka, f"{kafka.topic_prefix}.charged-invoices"):
        value = json.loads(stored.value or b"")
        assert value["cost_usd_nanos"] == 700
        found.append((stored.key, (value["tool"], value["owner_service"], value["state"])))
    return found


def start_sessions(kafka: KafkaSettings) -> list[Agent]:
    """Start two sessions in each partition, which stay Active; wait until they are committed."""
    agents = [agent_of_partition(number // 2, kafka.partitions) for number in range(2 * kafka.partitions)]
    sender = Sender(kafka)
    for agent in agents:
        sender.send(*agent.start(LASTING))
    judged = len(sender.flush())
    wait_until(lambda: count_judged(kafka) == judged, 60, f"{judged} records judged", pause_s=0.3)
    return agents


def test_the_example_joins_its_stream_with_the_sessions(kafka: KafkaSettings, processes: Processes) -> None:
    make_topics(kafka, kafka.partitions, "tool-invoices", "charged-invoices")
    env = environment(kafka, api_port="0")
    worker = processes.run([COMMAND, "serve", "processor", "--faust-agents", EXAMPLE], env=env, name="worker")
    keys = [agent.key.encoded() for agent in start_sessions(kafka)]
    unknown = f"acme:{new_session_id()}".encode()
    send_invoices(kafka, [*keys, unknown])
    wait_until(lambda: len(charged(kafka)) == len(keys) + 1, 30, "all invoices charged")
    expected = dict.fromkeys(keys, ("search", "billing", "Active"))
    assert dict(charged(kafka)) == expected | {unknown: ("search", None, None)}
    worker.signal(signal.SIGTERM)
    assert worker.wait(180)
    assert worker.exit_code == 0


def test_streams_move_with_their_sessions_and_no_invoice_is_lost(kafka: KafkaSettings, processes: Processes) -> None:
    make_topics(kafka, kafka.partitions, "tool-invoices", "charged-invoices")
    one = start_processor(processes, kafka, "w1", faust_agents=EXAMPLE)
    keys = [agent.key.encoded() for agent in start_sessions(kafka)]
    sent, tools = set[tuple[bytes | None, tuple[str, str, str]]](), itertools.count()

    def send_until_written_by(names: set[str]) -> None:
        def send_and_look() -> bool:
            tool = f"tool-{next(tools)}"
            send_invoices(kafka, keys, tool)
            sent.update((key, (tool, "billing", "Active")) for key in keys)
            return set(last_writers(kafka).values()) == names

        wait_until(send_and_look, 180, f"written by {names}", pause_s=0.3)
        wait_until(lambda: sent <= set(charged(kafka)), 180, f"all invoices charged by {names}", pause_s=0.3)

    send_until_written_by({"w1"})
    two = start_processor(processes, kafka, "w2", faust_agents=EXAMPLE)
    send_until_written_by({"w1", "w2"})
    invoices = f"{kafka.topic_prefix}.tool-invoices"

    def shared_partitions() -> list[dict[str, set[int]]]:
        """Return them once both members have some: on a busy machine the group may begin again."""
        found = assigned_partitions(kafka)
        return found if [len(of_member.get(invoices, ())) for of_member in found] == [2, 2] else []

    assigned = wait_until(shared_partitions, 60, "two partitions for each member", pause_s=0.5)
    assert [of_member[kafka.topics.events] for of_member in assigned] == [of_member[invoices] for of_member in assigned]
    one.signal(signal.SIGTERM)
    send_until_written_by({"w2"})
    assert one.wait(180)
    three = start_processor(processes, kafka, "w3", faust_agents=EXAMPLE)
    send_until_written_by({"w2", "w3"})
    two.kill()
    send_until_written_by({"w3"})
    assert set(charged(kafka)) == sent  # some twice perhaps, but none without its session
    three.signal(signal.SIGTERM)
    assert three.wait(180)
    assert (one.exit_code, three.exit_code) == (0, 0)
    check_everything(kafka)


def test_an_agent_can_read_the_table_but_not_write_it(kafka: KafkaSettings, processes: Processes) -> None:
    make_topics(kafka, kafka.partitions, "tool-invoices", "charged-invoices")
    start_processor(processes, kafka, "w1", faust_agents=PROBES)
    agents = start_sessions(kafka)
    send_invoices(kafka, [agents[0].key.encoded()])
    answers = wait_until(lambda: read_topic(kafka, f"{kafka.topic_prefix}.charged-invoices"), 30, "the agent's answer")
    expected = {"errors": ["ReadOnly", "ReadOnly", "ReadOnly", None], "sessions": len(agents)}
    assert [json.loads(answer.value or b"") for answer in answers] == [expected]


@pytest.mark.parametrize(("partitions", "fault"), [(3, "has 3 partitions"), (0, "does not exist")])
def test_a_worker_whose_stream_is_not_copartitioned_does_not_start(
    kafka: KafkaSettings, processes: Processes, partitions: int, fault: str
) -> None:
    if partitions:
        make_topics(kafka, partitions, "tool-invoices")
    worker = start_processor(processes, kafka, "w1", faust_agents=EXAMPLE)
    assert worker.wait(180)
    assert worker.exit_code not in (0, None)
    log = worker.log.read_text()
    assert f"topic {kafka.topic_prefix}.tool-invoices of a Faust agent {fault}. It needs 4 partitions" in log
    assert assigned_partitions(kafka) == []  # it never joined


def test_aiokafka_fetches_the_topics_of_agents_and_never_the_events(kafka: KafkaSettings, processes: Processes) -> None:
    make_topics(kafka, kafka.partitions, "tool-invoices", "charged-invoices")
    plain = start_processor(processes, kafka, "plain", WATCHED_WORKER)
    keys = [agent.key.encoded() for agent in start_sessions(kafka)]
    send_invoices(kafka, keys)
    plain.signal(signal.SIGTERM)
    assert plain.wait(180)
    assert plain.exit_code == 0
    assert fetched_topics(plain) == []
    with_agent = start_processor(processes, kafka, "with-agent", WATCHED_WORKER, faust_agents=EXAMPLE)
    wait_until(lambda: len(charged(kafka)) == len(keys), 30, "all invoices charged")
    assert fetched_topics(with_agent) == [f"{kafka.topic_prefix}.tool-invoices"]


def test_a_record_that_an_agent_was_handling_when_its_worker_ended_comes_again(
    kafka: KafkaSettings, processes: Processes
) -> None:
    make_topics(kafka, kafka.partitions, "tool-invoices", "charged-invoices")
    key = agent_of_partition(1, kafka.partitions).key.encoded()
    producer = Producer({**kafka.client_config(), "partitioner": "murmur2_random"})
    producer.produce(f"{kafka.topic_prefix}.tool-invoices", b"wait", key)
    assert producer.flush(120) == 0

    def count_begun() -> int:
        answers = read_topic(kafka, f"{kafka.topic_prefix}.charged-invoices")
        return sum(json.loads(answer.value or b"") == "begun" for answer in answers)

    for times in (1, 2):
        worker = start_processor(processes, kafka, "w1", faust_agents=PROBES)
        wait_until(lambda times=times: count_begun() == times, 180, f"the record to come {times} times", pause_s=0.3)  # type: ignore[misc]
        worker.signal(signal.SIGTERM)
        assert worker.wait(180)
        assert worker.exit_code == 0


class ThreadOf:
    """Stands for the thread that Faust's consumer lives in: here it is the test's own."""

    def __init__(self, reader: AIOKafkaConsumer) -> None:
        self._reader = reader

    def _ensure_consumer(self) -> AIOKafkaConsumer:
        return self._reader

    async def call_thread(self, call: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        return await call(*args)

    async def seek_to_committed(self) -> Any:
        return await self._reader.seek_to_committed()


def test_records_that_faust_drops_in_a_rebalance_are_read_again_also_without_a_commit(kafka: KafkaSettings) -> None:
    make_topics(kafka, 2, "tool-invoices")
    topic = f"{kafka.topic_prefix}.tool-invoices"
    places = [TopicPartition(topic, partition) for partition in range(2)]
    producer = Producer(kafka.client_config())
    for place in places:
        for _ in range(3):
            producer.produce(topic, b"invoice", partition=place.partition)
    assert producer.flush(120) == 0

    async def story() -> list[list[int]]:
        settings = {"bootstrap_servers": kafka.bootstrap_servers, "group_id": topic, "auto_offset_reset": "earliest"}
        async with AIOKafkaConsumer(**settings, enable_auto_commit=False) as reader:
            reader.assign(places)
            await reader.commit({places[1]: 1})  # of the other partition no record is handled yet
            consumer: Any = object.__new__(StreamConsumer)
            consumer._thread, consumer.transport = ThreadOf(reader), SimpleNamespace(events_topic="events")
            positions = []
            for _ in range(2):
                while [await reader.position(place) for place in places] != [3, 3]:
                    await asyncio.wait_for(reader.getmany(timeout_ms=1_000), 120)
                await consumer.seek_to_committed()
                positions.append([await reader.position(place) for place in places])
            return positions

    assert asyncio.run(story()) == [[0, 1]] * 2


def fetched_topics(worker: Child) -> list[str]:
    return re.findall(r"aiokafka fetches ([\w.-]+)", worker.log.read_text())


def test_an_agent_that_raises_again_and_again_does_not_end_the_worker(
    kafka: KafkaSettings, processes: Processes
) -> None:
    make_topics(kafka, kafka.partitions, "tool-invoices", "charged-invoices")
    worker = start_processor(processes, kafka, "w1", faust_agents=PROBES)
    key = start_sessions(kafka)[0].key.encoded()
    producer = Producer({**kafka.client_config(), "partitioner": "murmur2_random"})
    for _ in range(FAILURES):
        producer.produce(f"{kafka.topic_prefix}.tool-invoices", b"raise", key)
    assert producer.flush(120) == 0
    send_invoices(kafka, [key])
    wait_until(lambda: read_topic(kafka, f"{kafka.topic_prefix}.charged-invoices"), 60, "the agent goes on")
    assert worker.exit_code is None
    worker.signal(signal.SIGTERM)
    assert worker.wait(180)
    assert worker.exit_code == 0
