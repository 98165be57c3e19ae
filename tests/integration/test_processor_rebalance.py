"""Two workers: partitions move on a stop, a kill and a freeze; every record is folded once."""

import functools
import signal
import time

import pytest
from confluent_kafka.admin import AdminClient

from sessionary.schemas.settings import KafkaSettings
from tests.integration.processor_load import (
    BackgroundLoad,
    check_everything,
    count_judged,
    start_processor,
    wait_for_writers,
    wait_judged,
)
from tests.integration.test_processor_road import SHORT
from tests.support import Processes, wait_until

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
