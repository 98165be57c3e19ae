"""Rules on a real broker: an owner dies after its announcement; a later release was here before."""

import asyncio
import json
import signal
import time
from collections import Counter

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
from tests.integration.processor_load import (
    BackgroundLoad,
    changelog_of,
    check_everything,
    start_processor,
    wait_caught_up,
)
from tests.integration.test_processor_partition import Bench, offer
from tests.support import Processes, wait_until

WAIT_S = 120.0
LATER = NEWEST_RULES.version + 1
OTHERS = NEWEST_RULES._replace(finished_run_days=90)
TOKENS = {"op": {"principal": "on-call", "roles": ["operator"]}}


def announce_and_die(kafka: KafkaSettings) -> int:
    """Announce rules in a partition, and nothing more; return the partition."""

    async def story() -> int:
        bench = Bench(kafka)
        owner = bench.own()
        await bench.seen(lambda: owner.is_open)
        offer(owner, bench.log[:10])
        owner.request_rules(RulesRequest(OTHERS, "on-call"))
        assert await owner.wait_until(lambda position: is_decided(position, OTHERS), WAIT_S)
        await bench.close(owner)
        return bench.partition

    return asyncio.run(story())


def test_the_next_owner_begins_rules_that_were_only_announced(kafka: KafkaSettings, processes: Processes) -> None:
    partition = announce_and_die(kafka)
    announced = changelog_of(kafka)[1][partition]
    assert announced.announced is not None
    assert (announced.rules, announced.announced.from_offset) == (NEWEST_RULES, 10)
    worker = start_processor(processes, kafka, "w1")
    wait_until(lambda: changelog_of(kafka)[1][partition].rules == OTHERS, WAIT_S, "the rules in force", pause_s=0.2)
    worker.signal(signal.SIGTERM)
    assert worker.wait(180)
    decisions = [audit for audit in check_everything(kafka) if audit.kind == "decision"]
    assert [(audit.source_partition, audit.source_offset, audit.actor) for audit in decisions] == [
        (partition, 10, "on-call")
    ]


def operator_of(port: int) -> ControlApiClient:
    settings = OperatorSettings.model_validate({"control_url": f"http://127.0.0.1:{port}", "operator_token": "op"})
    return ControlApiClient(settings)


def test_a_setting_of_the_rules_in_force_is_changed_while_events_come(
    kafka: KafkaSettings, processes: Processes
) -> None:
    port = free_port()
    worker = start_processor(processes, kafka, "w1", api_port=str(port), api_tokens=json.dumps(TOKENS))
    client = operator_of(port)

    def activate(days: int | None) -> list[tuple[int, int]]:
        try:
            listing = client.activate_rules(NEWEST_RULES.version, days)
        except SessionaryError:  # not all partitions are open yet
            return []
        return [(found["rules"], found["finished_run_days"]) for found in listing["partitions"]]

    with BackgroundLoad(kafka, sessions=8, rate=200, seed=1):
        for asked, kept in ((None, 30), (90, 90), (None, 90), (1, 1)):
            expected = [(NEWEST_RULES.version, kept)] * kafka.partitions
            wait_until(lambda asked=asked, expected=expected: activate(asked) == expected, WAIT_S, f"{kept} days")  # type: ignore[misc]
    wait_caught_up(kafka, WAIT_S)
    worker.signal(signal.SIGTERM)
    assert worker.wait(180)
    reported = Counter(audit.reason.rpartition(";")[2] for audit in check_everything(kafka) if audit.kind == "decision")
    assert reported == {
        f" finished runs are kept for {days}, and failed ones may be resumed for 86400000 ms": kafka.partitions
        for days in ("90 days", "1 day")
    }


def test_rules_of_a_later_release_halt_their_partition(kafka: KafkaSettings, processes: Processes) -> None:
    producer = Producer(kafka.client_config())
    later = Position(0, time.time_ns() // 1_000_000, 0, 1, 0, rules=NEWEST_RULES._replace(version=LATER))
    producer.produce(kafka.topics.changelog, encode_record(later), POSITION_KEY, partition=2)
    assert producer.flush(120) == 0
    port = free_port()
    start_processor(processes, kafka, "w1", api_port=str(port), api_tokens=json.dumps(TOKENS))
    client = operator_of(port)

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
