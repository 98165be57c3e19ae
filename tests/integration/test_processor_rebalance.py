"""Partitions move on a stop, a kill and a freeze, or stay; every record is folded once."""

import functools
import signal
import time

import pytest
from confluent_kafka.admin import AdminClient

from sessionary.infra.local.ports import free_port
from sessionary.infra.local.process import Child
from sessionary.schemas.settings import KafkaSettings
from tests.integration.processor_load import (
    BackgroundLoad,
    check_everything,
    count_judged,
    last_writers,
    start_processor,
    wait_for_writers,
    wait_judged,
)
from tests.integration.test_processor_road import SHORT
from tests.support import Processes, wait_until
from tests.support.metrics_page import metric_value
from tests.support.pipelines import new_pipeline

pytestmark = pytest.mark.long

SESSION_TIMEOUT_S = 6.0


def _members(kafka: KafkaSettings) -> int:
    admin = AdminClient(kafka.client_config())
    group = f"{kafka.topic_prefix}.processor"
    described = admin.describe_consumer_groups([group], request_timeout=10)[group].result()
    return len(described.members)


def test_partitions_go_and_come_back(kafka: KafkaSettings, processes: Processes) -> None:
    one = start_processor(processes, kafka, "w1")
    with BackgroundLoad(kafka, sessions=60, rate=600, seed=11, limits=SHORT) as load:
        wait_for_writers(kafka, {"w1"}, 20)
        two = start_processor(processes, kafka, "w2")
        wait_for_writers(kafka, {"w1", "w2"}, 20)

        # A graceful stop leaves the group at once, without waiting for the session time-out.
        began_s = time.monotonic()
        one.signal(signal.SIGTERM)
        wait_for_writers(kafka, {"w2"}, SESSION_TIMEOUT_S)
        assert time.monotonic() - began_s < SESSION_TIMEOUT_S
        assert one.wait(10)

        one = start_processor(processes, kafka, "w1")
        wait_for_writers(kafka, {"w1", "w2"}, 20)
        two.kill()
        wait_for_writers(kafka, {"w1"}, SESSION_TIMEOUT_S + 10)
        two = start_processor(processes, kafka, "w2")
        wait_for_writers(kafka, {"w1", "w2"}, 20)

        # A worker that was expelled while frozen is fenced when it wakes.
        one.signal(signal.SIGSTOP)
        wait_for_writers(kafka, {"w2"}, SESSION_TIMEOUT_S + 10)
        one.signal(signal.SIGCONT)
        wait_until(functools.partial(_members, kafka), 5, "the group answers")
        wait_for_writers(kafka, {"w1", "w2"}, 20)
    wait_judged(kafka, load.sent)
    for worker in (one, two):
        worker.signal(signal.SIGTERM)
    assert one.wait(15)
    assert two.wait(15)
    assert (one.exit_code, two.exit_code) == (0, 0)
    assert count_judged(kafka) == load.sent
    check_everything(kafka)


class Workers:
    """Workers with metrics, by name."""

    def __init__(self, kafka: KafkaSettings, processes: Processes) -> None:
        self._kafka, self._processes = kafka, processes
        self._ports: dict[str, int] = {}

    def start(self, name: str) -> Child:
        port = self._ports[name] = free_port()
        return start_processor(self._processes, self._kafka, name, api_port=str(port))

    def openings(self, name: str) -> int:
        """Return how many partitions a worker has opened: fenced, and read the changelog of."""
        opened = metric_value(self._ports[name], "sessionary_processor_partition_open_seconds_count")
        assert opened is not None
        return int(opened)


def test_partitions_that_stay_are_not_opened_again(kafka: KafkaSettings, processes: Processes) -> None:
    kafka = new_pipeline(kafka.bootstrap_servers, 6)  # enough that the third worker gets two
    workers = Workers(kafka, processes)
    one, two = workers.start("w1"), workers.start("w2")
    with BackgroundLoad(kafka, sessions=60, rate=400, seed=17, limits=SHORT) as load:
        wait_for_writers(kafka, {"w1", "w2"}, 90)
        before, opened = last_writers(kafka), {name: workers.openings(name) for name in ("w1", "w2")}

        three = workers.start("w3")
        wait_for_writers(kafka, {"w1", "w2", "w3"}, 90)
        joined = last_writers(kafka)
        taken = [partition for partition, writer in joined.items() if writer == "w3"]
        assert {name: workers.openings(name) for name in opened} == opened
        assert workers.openings("w3") == len(taken)
        assert all(joined[partition] == before[partition] for partition in before.keys() - set(taken))

        three.signal(signal.SIGTERM)
        wait_for_writers(kafka, {"w1", "w2"}, 60)
        assert three.wait(15)
        left = last_writers(kafka)
        assert {name: workers.openings(name) for name in opened} == {
            name: opened[name] + sum(left[partition] == name for partition in taken) for name in opened
        }
        assert all(left[partition] == before[partition] for partition in before.keys() - set(taken))
    wait_judged(kafka, load.sent)
    for worker in (one, two):
        worker.signal(signal.SIGTERM)
        assert worker.wait(15)
    check_everything(kafka)
