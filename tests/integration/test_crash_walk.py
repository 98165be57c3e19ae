"""The workflow as real processes, killed by SIGKILL at every crash point and started again.

The points are walked in five parts, each on a stack of its own.
"""

import json
import os
import subprocess
import sys
import urllib.request
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from signal import SIGKILL
from threading import Thread

import pytest

from examples.workflow.services import Services
from sessionary.schemas.settings import KafkaSettings
from tests.integration.pipeline_rig import TOKEN, PipelineRig
from tests.style.project import ROOT
from tests.support import Processes, environment
from tests.support.crashing_workflow import UNRESOLVED, Ended, Job, read_ended

pytestmark = pytest.mark.timeout(3_000)
PARTS = 5


class WalkRig:
    """A broker, a processor, and processes that work with them and with services."""

    def __init__(self, kafka: KafkaSettings, processes: Processes, folder: Path) -> None:
        pipeline = PipelineRig(kafka, None, processes)
        pipeline.start_processor()
        self._control_url, self._folder = pipeline.control_url, folder
        own = {"control_url": pipeline.control_url, "api_token": TOKEN}
        own |= {"verdict_timeout_s": "120", "close_timeout_s": "120"}
        self._environment = {
            **os.environ,
            **environment(kafka, **own),
        }

    def work(self, jobs: Sequence[Job]) -> Mapping[str, list[Ended]]:
        """Let processes work on the jobs; return how each issue's processes ended."""
        (self._folder / "jobs.json").write_text(json.dumps(jobs))
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.crashing_workflow", self._folder, self._folder / "jobs.json"],
            env=self._environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=800,
            check=False,
        )
        assert done.returncode == 0, done
        return read_ended(done.stdout)

    def walk(self, services: Services, points: Sequence[int], *, asks: bool) -> tuple[list[Job], Mapping[str, Ended]]:
        """Kill a process at each point, and start each again; return how the second ones ended."""
        name = "ASKS" if asks else "SILENT"
        jobs = [Job(f"{name}-{point}", point, services.url, str(uuid.uuid4()), asks) for point in points]
        ended = self.work(jobs)
        first = [ends[0].code for ends in ended.values()]
        assert set(first) <= {-SIGKILL, 0}, ended
        assert first.count(-SIGKILL) > len(points) // 2
        return jobs, {issue: second for issue, (_, second) in ended.items()}

    def call_states(self, job: Job) -> dict[str, str]:
        """Return the state of each tool call of a job's run, by tool."""
        run_id = uuid.uuid5(uuid.UUID(job.session_id), job.issue)
        url = f"{self._control_url}/v1/sessions/{job.session_id}/runs/{run_id}/tool-calls"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {TOKEN}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            calls = json.load(answer)
        return {call["tool_name"]: call["state"] for call in calls["tool_calls"]}

    def log_of(self, issue: str) -> str:
        return (self._folder / f"{issue}.log").read_text("utf-8")


@contextmanager
def running(services: Services) -> Iterator[Services]:
    with services:
        thread = Thread(target=services.serve_forever, args=(0.05,))
        thread.start()
        yield services
        services.shutdown()
        thread.join()


@pytest.mark.parametrize("part", range(PARTS))
def test_a_process_that_is_killed_anywhere_repeats_no_effect(
    kafka: KafkaSettings, processes: Processes, tmp_path: Path, part: int
) -> None:
    """Both walks share one stack: the messenger can be asked by keys, or ignores them."""
    rig = WalkRig(kafka, processes, tmp_path)
    (tmp_path / "keys").mkdir()
    with running(Services(tmp_path / "keys")) as services:
        crossed = rig.work([Job("WHOLE", -1, services.url, str(uuid.uuid4()), asks=True)])["WHOLE"][0].crossed
        assert crossed > 40
        points = range(part, crossed, PARTS)
        _, ended = rig.walk(services, points, asks=True)
        failed = [rig.log_of(issue) for issue, end in ended.items() if end.code != 0]
        assert not failed, "\n".join(failed)
        sent = sent_by_issue(services)
        assert sent == dict.fromkeys(["WHOLE", *ended], 1)
        assert len(services.requests) == len(set(services.requests)) == len(points) + 1

    (tmp_path / "no-keys").mkdir()
    with running(Services(tmp_path / "no-keys", ignores_keys=True)) as services:
        jobs, ended = rig.walk(services, points, asks=False)
        unresolved = [job for job in jobs if ended[job.issue].code == UNRESOLVED]
        assert 0 < len(unresolved) < len(points)
        assert {end.code for end in ended.values()} == {0, UNRESOLVED}
        assert [rig.call_states(job)["send_message"] for job in unresolved] == ["unknown"] * len(unresolved)
        sent = sent_by_issue(services)
        assert max(sent.values()) == 1
        assert {issue for issue, end in ended.items() if end.code == 0} <= sent.keys()
        assert len(services.requests) == sum(sent.values())


def sent_by_issue(services: Services) -> Counter[str]:
    """Return how many messages were sent about each issue."""
    return Counter(message["text"].partition(":")[0] for message in services.sent.all())
