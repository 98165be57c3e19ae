"""Commands beside brokers that keep their connections open and answer nothing."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sessionary.schemas.settings import KafkaSettings
from tests.support.mock_cluster import mock_cluster
from tests.support.pipelines import environment
from tests.support.processes import Processes
from tests.support.waiting import wait_until

COMMAND = str(Path(sys.executable).parent / "sessionary")
SAID_S_MAX = 5.0


@pytest.fixture(scope="module")
def silent() -> Iterator[dict[str, str]]:
    """Variables that name brokers which accept connections and then fall silent."""
    with mock_cluster() as cluster:
        for number in (1, 2, 3):
            cluster.silence_broker(number)
        yield environment(KafkaSettings(bootstrap_servers=cluster.bootstrap_servers))


@pytest.fixture(scope="module")
def start_s() -> float:
    """Seconds that a command takes to start here and now, which is not what is measured."""
    began_s = time.monotonic()
    subprocess.run([COMMAND, "doctor", "--help"], capture_output=True, timeout=60, check=True)
    return time.monotonic() - began_s


@pytest.mark.parametrize("arguments", ["lag", "topics apply"])
def test_a_command_says_within_5_s_that_the_brokers_are_away(
    arguments: str, silent: dict[str, str], start_s: float
) -> None:
    began_s = time.monotonic()
    done = subprocess.run(
        [COMMAND, *arguments.split()], env=silent, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert "does not answer" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert time.monotonic() - began_s < SAID_S_MAX + 3 * start_s


def test_a_processor_says_that_the_brokers_are_away(silent: dict[str, str], processes: Processes) -> None:
    worker = processes.start("sessionary.stream_processors", env={**silent, "SESSIONARY_API_PORT": "0"})
    wait_until(lambda: "no broker answers at" in worker.log.read_text(), 60, "the worker to say so")
