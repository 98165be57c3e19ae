"""Workers of a task as real processes, killed by SIGKILL at every crash point; others go on.

The points are walked in five parts.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from signal import SIGKILL

import pytest

from sessionary.producers import SessionClient
from tests.integration.pipeline_rig import TENANT, PipelineRig
from tests.support.crashing_task import SENT, SERVICE, TASK_TYPE, effects_in
from tests.support.crashing_workflow import Ended, Job, read_ended

pytestmark = pytest.mark.timeout(1_800)
PARTS = 5


def carry_out(pipeline: PipelineRig, folder: Path, jobs: Sequence[Job]) -> Mapping[str, list[Ended]]:
    """Let workers carry tasks out; return how the processes of each ended."""
    return read_ended(pipeline.run_jobs("crashing_task", folder, jobs, 1_500.0))


@pytest.mark.parametrize("part", range(PARTS))
def test_a_worker_that_is_killed_anywhere_repeats_no_effect(pipeline: PipelineRig, tmp_path: Path, part: int) -> None:
    """R-004-03, R-004-12, by a real kill -9 at every crash point."""
    effects = tmp_path / "effects"
    effects.mkdir()
    settings = pipeline.client_settings(tmp_path, "asker")
    with SessionClient(tenant_id=TENANT, service_id=SERVICE, agent_id="asker", settings=settings) as client:

        def ask(point: int) -> Job:
            session = client.session(user_id="u1")
            task_id = session.start_task(TASK_TYPE, timeout_s=60)
            assert client.find_task(task_id) is not None  # judged: a worker gets no request before
            return Job(task_id, point, f"{effects}", session.session_id, asks=True)

        whole = ask(-1)
        crossed = carry_out(pipeline, tmp_path, [whole])[whole.issue][0].crossed
        assert crossed > 60
        jobs = [ask(point) for point in range(part, crossed, PARTS)]
        ended = carry_out(pipeline, tmp_path, jobs)
        logs = {issue: (tmp_path / f"{issue}.log").read_text("utf-8") for issue in ended}
        assert [ends[1].code for ends in ended.values()] == [0] * len(jobs), logs
        first = [ends[0].code for ends in ended.values()]
        assert set(first) <= {-SIGKILL, 0}, logs
        assert first.count(-SIGKILL) > len(jobs) // 2
        for job in (whole, *jobs):
            found = client.get_task_results(job.issue)
            assert found.get("result") == [3, "sent", "sent"], (job.point, found)
            sent = effects_in(effects / job.issue)
            assert [text for _, text in sent] == SENT, job.point
            assert len(dict(sent)) == len(SENT), job.point
