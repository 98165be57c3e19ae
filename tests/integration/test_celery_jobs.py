"""The ported jobs on Celery's workers, in an environment of their own: one is killed at work."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from sessionary.schemas.codec import Event
from sessionary.schemas.events import SessionTerminated, ToolCallStarted, ToolCallSucceeded
from tests.integration.examples_rig import ExamplesRig
from tests.integration.pipeline_rig import PipelineRig
from tests.packaging.wheel_rig import run_clean
from tests.style.project import ROOT
from tests.support import Processes, read_events
from tests.support.waiting import wait_until

_CELERY = "celery==5.7.0"
_ORDERS = [f"order {number}" for number in range(20)]
# Celery's broker is a folder. The first worker that has charged for order 17 dies at once.
_DYING_JOBS = """
import os
from pathlib import Path
from examples.ported import jobs

app, charge = jobs.app, jobs.charge

def charge_and_die(order):
    text = charge(order)
    if order == "order 17" and not Path("died.txt").exists():
        Path("died.txt").touch()
        os.kill(os.getpid(), 9)
    return text

jobs.charge = charge_and_die
"""


def install_celery(folder: Path) -> Path:
    """Make an environment with Celery and this package; return its interpreter."""
    constraints = folder / "constraints.txt"
    pinned = (ROOT / "constraints.txt").read_text("utf-8").splitlines(keepends=True)
    # Celery needs another one than our own environment has.
    constraints.write_text("".join(line for line in pinned if not line.startswith("python-dateutil==")), "utf-8")
    run_clean(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    python = folder / "venv" / "bin" / "python"
    run_clean(python, "-m", "pip", "install", "--quiet", ROOT, _CELERY, cwd=folder, constraints=constraints)
    return python


@pytest.mark.timeout(1_200)
def test_a_job_whose_worker_is_killed_is_done_again_and_charges_no_card_twice(
    pipeline: PipelineRig, processes: Processes, tmp_path: Path
) -> None:
    python = install_celery(tmp_path)
    rig, work = ExamplesRig(pipeline, tmp_path), tmp_path / "work"
    (work / "queue").mkdir(parents=True)
    (work / "dying_jobs.py").write_text(_DYING_JOBS, "utf-8")
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **rig.variables}
    in_work = ["env", "-i", "-C", str(work), *(f"{name}={value}" for name, value in variables.items()), str(python)]
    processes.run([*in_work, "-m", "celery", "-A", "dying_jobs", "worker", "--concurrency=3"], name="celery")
    send = f"import dying_jobs\nfor order in {_ORDERS}: dying_jobs.jobs.job.delay(order)"
    subprocess.run([*in_work, "-c", send], check=True, timeout=300)

    def sent() -> list[Event]:
        """Return the events, each once: a living worker sends those of the killed one."""
        return [*{e.envelope.event_id: e for e in read_events(pipeline.kafka) if isinstance(e, Event)}.values()]

    def ends() -> Counter[str]:
        return Counter(e.payload.reason for e in sent() if isinstance(e.payload, SessionTerminated))

    wait_until(lambda: sum(ends().values()) == len(_ORDERS), 300, "the end of each order's session")
    assert (work / "died.txt").exists()
    charged = (work / "charged.txt").read_text("utf-8").splitlines()
    assert sorted(charged) == sorted(set(_ORDERS) - {"order 13"})
    assert ends() == {"closed": len(_ORDERS) - 1, "unrecoverable": 1}
    calls = Counter(type(e.payload) for e in sent())
    assert (calls[ToolCallStarted], calls[ToolCallSucceeded]) == (len(_ORDERS), len(_ORDERS) - 1)
    assert rig.rejections() == []
