"""Partitions move on a stop, a kill and a freeze, or stay; every record is folded once."""

import functools
import signal
import time
from collections import Counter

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
from tests.support import Processes, read_batches, wait_until
from tests.support.metrics_page import metric_value
from tests.support.pipelines import new_pipeline

SESSION_TIMEOUT_S = 6.0
# Of workers that are not to be expelled: longer than all that is waited for, on a busy machine too.
PATIENT_S = 300.0
PATIENT = {"session_timeout_ms": f"{PATIENT_S * 1_000:.0f}"}
START_S = 180.0
PATIENT_WORKER = "tests.support.patient_worker"


def _members(kafka: KafkaSettings) -> int:
    admin = AdminClient(kafka.client_config())
    group = f"{kafka.topic_prefix}.processor"
    described = admin.describe_consumer_groups([group], request_timeout=60)[group].result(120)
    return len(described.members)


def test_partitions_go_and_come_back(kafka: KafkaSettings, processes: Processes) -> None:
    one = start_processor(processes, kafka, "w1", **PATIENT)
    with BackgroundLoad(kafka, sessions=60, rate=600, seed=11, limits=SHORT) as load:
        wait_for_writers(kafka, {"w1"}, START_S)
        two = start_processor(processes, kafka, "w2")
        wait_for_writers(kafka, {"w1", "w2"}, START_S)

        # A graceful stop leaves the group at once, without waiting for the session time-out.
        shares, began_us = last_writers(kafka), time.time_ns() // 1_000
        one.signal(signal.SIGTERM)
        wait_for_writers(kafka, {"w2"}, START_S)
        moved = {partition for partition, writer in shares.items() if writer == "w1"}
        assert taken_over_us(kafka, "w2", moved, began_us) - began_us < PATIENT_S * 1e6
        assert one.wait(START_S)

        one = start_processor(processes, kafka, "w1")
        wait_for_writers(kafka, {"w1", "w2"}, START_S)
        two.kill()
        wait_for_writers(kafka, {"w1"}, SESSION_TIMEOUT_S + 30)
        two = start_processor(processes, kafka, "w2")
        wait_for_writers(kafka, {"w1", "w2"}, START_S)

        # A worker that was expelled while frozen is fenced when it wakes.
        one.signal(signal.SIGSTOP)
        wait_for_writers(kafka, {"w2"}, SESSION_TIMEOUT_S + 30)
        one.signal(signal.SIGCONT)
        wait_until(functools.partial(_members, kafka), START_S, "the group answers")
        wait_for_writers(kafka, {"w1", "w2"}, START_S)
    wait_judged(kafka, load.sent)
    for worker in (one, two):
        worker.signal(signal.SIGTERM)
    assert one.wait(START_S)
    assert two.wait(START_S)
    assert (one.exit_code, two.exit_code) == (0, 0)
    assert count_judged(kafka) == load.sent
    check_everything(kafka)


def taken_over_us(kafka: KafkaSettings, name: str, partitions: set[int], after_us: int) -> int:
    """Return when a worker had begun a batch of each partition after a time; µs since the epoch."""
    begun = [batch for batch in read_batches(kafka) if batch.instance == name and batch.started_at > after_us]
    return max(min(batch.started_at for batch in begun if batch.partition == each) for each in partitions)


def has_begun_batch(kafka: KafkaSettings, name: str, after_us: int) -> bool:
    """Return whether a worker wrote a batch that it began after a time (µs since the epoch)."""
    return any(batch.instance == name and batch.started_at > after_us for batch in read_batches(kafka))


def test_a_worker_that_ends_folds_until_another_has_its_partitions(kafka: KafkaSettings, processes: Processes) -> None:
    one, two = (start_processor(processes, kafka, name, PATIENT_WORKER, **PATIENT) for name in ("w1", "w2"))
    with BackgroundLoad(kafka, sessions=60, rate=300, seed=19, limits=SHORT) as load:
        wait_for_writers(kafka, {"w1", "w2"}, START_S)
        two.signal(signal.SIGSTOP)  # it takes nothing over
        one.signal(signal.SIGTERM)
        stopped_s = time.monotonic()
        wait_until(lambda: _members(kafka) == 1, PATIENT_S, "one worker has left the group")
        assert time.monotonic() - stopped_s < PATIENT_S, "the group expelled it"
        left_us = time.time_ns() // 1_000
        wait_until(lambda: has_begun_batch(kafka, "w1", left_us), 60, "a batch that began after that")
        two.signal(signal.SIGCONT)
        wait_for_writers(kafka, {"w2"}, START_S)
        assert one.wait(START_S)
        assert one.exit_code == 0
    wait_judged(kafka, load.sent)
    two.signal(signal.SIGTERM)
    assert two.wait(START_S)
    assert two.exit_code == 0
    check_everything(kafka)


class Workers:
    """Workers with metrics, by name."""

    def __init__(self, kafka: KafkaSettings, processes: Processes) -> None:
        self._kafka, self._processes = kafka, processes
        self._ports: dict[str, int] = {}

    def start(self, name: str) -> Child:
        port = self._ports[name] = free_port()
        return start_processor(self._processes, self._kafka, name, api_port=str(port), **PATIENT)

    def openings(self, name: str) -> int:
        """Return how many partitions a worker has opened: fenced, and read the changelog of."""
        opened = metric_value(self._ports[name], "sessionary_processor_partition_open_seconds_count")
        assert opened is not None
        return int(opened)


def wait_for_shares(kafka: KafkaSettings, shares: dict[str, int]) -> None:
    """Wait until each worker wrote the last batches of so many partitions; so all are open."""
    wait_until(lambda: Counter(last_writers(kafka).values()) == shares, 90, f"partitions as {shares}", pause_s=0.2)


def test_partitions_that_stay_are_not_opened_again(kafka: KafkaSettings, processes: Processes) -> None:
    kafka = new_pipeline(kafka.bootstrap_servers, 6)  # enough that the third worker gets two
    workers = Workers(kafka, processes)
    one, two = workers.start("w1"), workers.start("w2")
    with BackgroundLoad(kafka, sessions=60, rate=400, seed=17, limits=SHORT) as load:
        wait_for_shares(kafka, {"w1": 3, "w2": 3})
        before, opened = last_writers(kafka), {name: workers.openings(name) for name in ("w1", "w2")}

        three = workers.start("w3")
        wait_for_shares(kafka, {"w1": 2, "w2": 2, "w3": 2})
        joined = last_writers(kafka)
        taken = [partition for partition, writer in joined.items() if writer == "w3"]
        assert {name: workers.openings(name) for name in opened} == opened
        assert workers.openings("w3") == len(taken)
        assert all(joined[partition] == before[partition] for partition in before.keys() - set(taken))

        three.signal(signal.SIGTERM)
        wait_for_writers(kafka, {"w1", "w2"}, 60)
        assert three.wait(START_S)
        left = last_writers(kafka)
        assert {name: workers.openings(name) for name in opened} == {
            name: opened[name] + sum(left[partition] == name for partition in taken) for name in opened
        }
        assert all(left[partition] == before[partition] for partition in before.keys() - set(taken))
    wait_judged(kafka, load.sent)
    for worker in (one, two):
        worker.signal(signal.SIGTERM)
        assert worker.wait(START_S)
    check_everything(kafka)
