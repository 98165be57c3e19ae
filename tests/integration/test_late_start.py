"""A worker whose broker goes away just as it joins its group.

Then Faust's first seek takes longer than a request may. Faust gave up its recovery after that, and
with it its start, for which all of the worker's own duties waited.
"""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from sessionary.infra.local.process import Child
from sessionary.schemas.settings import KafkaSettings
from tests.integration.processor_load import OUTAGE_GRACE_MS, OUTAGE_MS, Agent, Sender, check_everything, wait_judged
from tests.integration.test_processor_road import SHORT, count_transitions
from tests.support import Processes, wait_until
from tests.support.pipelines import environment

READY = "processor is ready"
START_S = 180.0


@pytest.fixture
def start_worker(kafka: KafkaSettings, processes: Processes, tmp_path: Path) -> Callable[[], Child]:
    """Return what starts a worker whose seeks wait for as long as the file `held` exists."""

    def start() -> Child:
        (tmp_path / "held").touch()
        env = environment(
            kafka, instance="w1", api_port="0", outage_ms=str(OUTAGE_MS), outage_grace_ms=str(OUTAGE_GRACE_MS)
        )
        return processes.start("tests.support.hanging_worker", "seek", str(tmp_path / "held"), env=env, name="w1")

    return start


def test_deadlines_fire_while_a_seek_waits_and_the_worker_is_ready_after_it(
    kafka: KafkaSettings, start_worker: Callable[[], Child], tmp_path: Path
) -> None:
    worker = start_worker()
    sender, agents = Sender(kafka), [Agent() for _ in range(10)]
    for agent in agents:
        sender.send(*agent.start(SHORT))
    wait_judged(kafka, len(sender.flush()))
    wait_until(lambda: count_transitions(kafka)["T14"] == 10, START_S, "all sessions archived")
    assert READY not in worker.log.read_text()
    (tmp_path / "held").unlink()
    wait_until(lambda: READY in worker.log.read_text(), START_S, "the worker to be ready")
    worker.signal(signal.SIGTERM)
    assert worker.wait(START_S)
    assert worker.exit_code == 0
    check_everything(kafka)


def test_a_worker_ends_gracefully_while_its_seek_waits(kafka: KafkaSettings, start_worker: Callable[[], Child]) -> None:
    worker = start_worker()
    sender, agent = Sender(kafka), Agent()
    sender.send(*agent.start(SHORT))
    wait_judged(kafka, len(sender.flush()))
    worker.signal(signal.SIGTERM)
    assert worker.wait(START_S)
    assert worker.exit_code == 0
    assert READY not in worker.log.read_text()
    check_everything(kafka)
