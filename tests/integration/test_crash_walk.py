"""Real processes, killed by SIGKILL at every crash point and started again.

The points of the workflow are walked in five parts, each on a stack of its own. An agent that asks
a person, and calls a tool in a loop, is killed at six points, or at all.
"""

import json
import urllib.request
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from signal import SIGKILL
from threading import Event, Thread
from typing import Any

import pytest

from examples.workflow.services import Services
from sessionary.schemas.settings import KafkaSettings
from tests.integration.pipeline_rig import API_TOKENS, OPERATOR_TOKEN, TENANT, PipelineRig
from tests.support import Processes, crashing_asker
from tests.support.crashing_workflow import UNRESOLVED, Ended, Job, read_ended

pytestmark = pytest.mark.timeout(3_000)
PARTS = 5
_WORK_S = 800.0


class WalkRig:
    """A broker, a processor, and processes that work with them and with services."""

    def __init__(self, kafka: KafkaSettings, processes: Processes, folder: Path) -> None:
        pipeline = PipelineRig(kafka, None, processes)
        pipeline.start_processor()
        self.pipeline, self._folder = pipeline, folder

    def work(self, jobs: Sequence[Job]) -> Mapping[str, list[Ended]]:
        """Let processes work on the jobs; return how each issue's processes ended."""
        return read_ended(self.pipeline.run_jobs("crashing_workflow", self._folder, jobs, _WORK_S))

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
        calls = self.pipeline.ask(f"{job.session_id}/runs/{run_id}/tool-calls")
        return {call["tool_name"]: call["state"] for call in calls["tool_calls"]}

    def log_of(self, issue: str) -> str:
        return (self._folder / f"{issue}.log").read_text("utf-8")


@contextmanager
def running(services: Services) -> Iterator[Services]:
    with services:
        thread = Thread(target=services.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield services
        finally:
            services.shutdown()
            thread.join()


@pytest.mark.parametrize("part", range(PARTS))
def test_a_process_that_is_killed_anywhere_repeats_no_effect(
    kafka: KafkaSettings, processes: Processes, tmp_path: Path, part: int
) -> None:
    """R-004-03, R-004-12. Both walks share a stack: the messenger can be asked by keys, or not."""
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


class AskingRig:
    """A broker, a processor, processes that ask, and a person who approves what waits a moment."""

    def __init__(self, kafka: KafkaSettings, processes: Processes, folder: Path) -> None:
        pipeline = PipelineRig(kafka, None, processes)
        pipeline.start_processor(api_tokens=API_TOKENS)
        self.pipeline, self._folder = pipeline, folder
        self._seen: set[str] = set()
        self.approved: list[str] = []  # ids of questions

    def work(self, jobs: Sequence[crashing_asker.Job]) -> Mapping[str, list[crashing_asker.Ended]]:
        """Let processes work on the jobs; return how each session's processes ended."""
        return crashing_asker.read_ended(self.pipeline.run_jobs("crashing_asker", self._folder, jobs, _WORK_S))

    @contextmanager
    def person(self) -> Iterator[None]:
        """Approve each question that is seen twice, until the block is left."""
        is_over = Event()

        def approve_all() -> None:
            while not is_over.wait(0.5):
                for question in self._ask_as_operator("waiting")["waiting"]:
                    if question["question_id"] in self._seen:
                        self.approved.append(question["question_id"])
                        approval = {"question_id": question["question_id"]}
                        self._ask_as_operator(f"sessions/{question['session_id']}/approve", approval)
                    self._seen.add(question["question_id"])

        thread = Thread(target=approve_all)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def log_of(self, session_id: str) -> str:
        return (self._folder / f"{session_id}.log").read_text("utf-8")

    def _ask_as_operator(self, page: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {OPERATOR_TOKEN}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.pipeline.control_url}/v1/{page}?tenant={TENANT}", data, headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)


@pytest.mark.parametrize("most", [6, 1_000], ids=["six points", "all points"])
def test_a_person_is_asked_once_wherever_the_agent_is_killed(
    kafka: KafkaSettings, processes: Processes, tmp_path: Path, most: int
) -> None:
    """Half of the second processes start in the wait, half after the answer."""
    rig = AskingRig(kafka, processes, tmp_path)
    whole = str(uuid.uuid4())
    with rig.person():
        result, crossed, _ = json.loads(rig.work([crashing_asker.Job(whole, -1, 2, is_late=False)])[whole][0].line)
        assert result == ["noted", "noted"]
        assert crossed > 40
        points = range(3, crossed, max(1, crossed // most))[:most]
        jobs = [crashing_asker.Job(str(uuid.uuid4()), point, 0, is_late=point % 2 == 1) for point in points]
        ended = rig.work(jobs)
    assert [first.code for first, _, _ in ended.values()].count(-SIGKILL) > len(points) // 2
    for session_id, (_, second, third) in ended.items():
        log = rig.log_of(session_id)
        assert (second.code, third.code) == (0, 0), log
        for line in (second.line, third.line):
            result, _, effects = json.loads(line)
            assert (result, effects) == (["noted", "noted"], ["approved: True"] * 2), log
        session = rig.pipeline.ask(session_id)
        assert [answer["reason_code"] for answer in session["answers"]] == ["approved"] * 2, log
    assert len(rig.approved) == len(set(rig.approved)) == 2 * (len(points) + 1)
