"""Rules on a real broker: an owner dies after its announcement; a later release was here before."""

import asyncio
import json
import signal
import time

from confluent_kafka import Producer

from sessionary.infra.control_api_client import ControlApiClient
from sessionary.infra.local.ports import free_port
from sessionary.infra.settings import OperatorSettings
from sessionary.schemas.codec import encode_record
from sessionary.schemas.errors import SessionaryError
from sessionary.schemas.records import Position
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.schemas.settings import KafkaSettings
from sessionary.stream_processors.core.model import POSITION_KEY
from sessionary.stream_processors.rules_change import RulesRequest, is_decided
from tests.integration.processor_load import changelog_of, check_everything, start_processor
from tests.integration.test_processor_partition import Bench, offer
from tests.support import Processes, wait_until

WAIT_S = 30.0
LATER = NEWEST_RULES.version + 1


def announce_and_die(kafka: KafkaSettings) -> int:
    """Announce rules in a partition, and nothing more; return the partition."""

    async def story() -> int:
        bench = Bench(kafka)
        owner = bench.own()
        await bench.seen(lambda: owner.is_open)
        offer(owner, bench.log[:10])
        owner.request_rules(RulesRequest(NEWEST_RULES, "on-call"))
        assert await owner.wait_until(lambda position: is_decided(position, NEWEST_RULES.version), WAIT_S)
        await bench.close(owner)
        return bench.partition

    return asyncio.run(story())


def test_the_next_owner_begins_rules_that_were_only_announced(kafka: KafkaSettings, processes: Processes) -> None:
    partition = announce_and_die(kafka)
    announced = changelog_of(kafka)[1][partition]
    assert announced.announced is not None
    assert (announced.rules.version, announced.announced.from_offset) == (1, 10)
    worker = start_processor(processes, kafka, "w1")
    wait_until(
        lambda: changelog_of(kafka)[1][partition].rules == NEWEST_RULES, WAIT_S, "the rules in force", pause_s=0.2
    )
    worker.signal(signal.SIGTERM)
    assert worker.wait(20)
    decisions = [audit for audit in check_everything(kafka) if audit.kind == "decision"]
    assert [(audit.source_partition, audit.source_offset, audit.actor) for audit in decisions] == [
        (partition, 10, "on-call")
    ]


def test_rules_of_a_later_release_halt_their_partition(kafka: KafkaSettings, processes: Processes) -> None:
    producer = Producer(kafka.client_config())
    later = Position(0, time.time_ns() // 1_000_000, 0, 1, 0, rules=NEWEST_RULES._replace(version=LATER))
    producer.produce(kafka.topics.changelog, encode_record(later), POSITION_KEY, partition=2)
    assert producer.flush(20) == 0
    port = free_port()
    tokens = {"op": {"principal": "on-call", "roles": ["operator"]}}
    start_processor(processes, kafka, "w1", api_port=str(port), api_tokens=json.dumps(tokens))
    settings = OperatorSettings.model_validate({"control_url": f"http://127.0.0.1:{port}", "operator_token": "op"})
    client = ControlApiClient(settings)

    def states() -> list[object]:
        try:
            return [(found["state"], found["reason"]) for found in client.list_partitions()]
        except SessionaryError:  # the worker does not serve yet
            return []

    opened = ("open", None)
    wait_until(
        lambda: states() == [opened, opened, ("halted", "unknown_rules"), opened], WAIT_S, "one halt", pause_s=0.2
    )
    (halted,) = (found for found in client.list_partitions() if found["state"] == "halted")
    assert f"rules {LATER} were activated" in halted["detail"]
    assert halted["detail"].endswith("upgrade this worker")
    (listed,) = (found for found in client.list_rules()["partitions"] if found["state"] == "halted")
    assert listed["rules"] == LATER
