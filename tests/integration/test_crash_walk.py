"""The workflow as real processes, killed by SIGKILL at every crash point and started again."""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread

import pytest

from examples.workflow.services import Services
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.schemas.settings import KafkaSettings
from tests.integration.pipeline_rig import TOKEN, PipelineRig
from tests.integration.processor_load import begin_with
from tests.style.project import ROOT
from tests.support import Processes, environment

pytestmark = pytest.mark.long
AT_ONCE = 4


class WalkRig:
    """A broker, a processor, two services, and processes that work with them."""

    def __init__(self, kafka: KafkaSettings, processes: Processes, folder: Path, services: Services) -> None:
        begin_with(kafka, NEWEST_RULES)
        pipeline = PipelineRig(kafka, None, processes)
        pipeline.start_processor()
        self._kafka, self._control_url, self._folder, self.services = kafka, pipeline.control_url, folder, services

    def live(self, point: int, session_id: str, issue: str) -> "subprocess.CompletedProcess[str]":
        """Let a process work until a crash point; -1: to its end."""
        own = {"control_url": self._control_url, "api_token": TOKEN, "spool_dir": str(self._folder / issue)}
        argv = [sys.executable, "-m", "tests.support.crashing_workflow", str(point)]
        return subprocess.run(
            [*argv, self.services.url, session_id, issue],
            env={**os.environ, **environment(self._kafka, **own)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )

    def walk(self, point: int) -> str | None:
        """Kill a process at a point and start it again; return what is wrong then."""
        session_id, issue = str(uuid.uuid4()), f"BILL-{point}"
        killed = self.live(point, session_id, issue)
        finished = self.live(-1, session_id, issue)
        sent = [message for message in self.services.sent.all() if message["text"].startswith(f"{issue}: ")]
        if finished.returncode == 0 and len(sent) == 1 and killed.returncode in (-9, 0):
            return None
        return f"point {point}: {len(sent)} messages; first {killed}, then {finished}"


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    with Services(tmp_path) as running:
        thread = Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_a_process_that_is_killed_anywhere_repeats_no_effect(
    kafka: KafkaSettings, processes: Processes, tmp_path: Path, services: Services
) -> None:
    rig = WalkRig(kafka, processes, tmp_path, services)
    whole = rig.live(-1, str(uuid.uuid4()), "BILL")
    assert whole.returncode == 0, whole
    points = int(whole.stdout.split()[-1])
    assert points > 40
    with ThreadPoolExecutor(AT_ONCE) as pool:
        faults = [fault for fault in pool.map(rig.walk, range(points)) if fault is not None]
    assert faults == []
    keys = services.requests
    assert len(keys) == len(set(keys)) == points + 1
