"""Jobs of Celery's prefork workers with a real broker: one raises, one is killed at work."""

import difflib
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from sessionary.schemas.codec import Event
from sessionary.schemas.events import SessionTerminated
from sessionary.schemas.settings import KafkaSettings
from tests.packaging.wheel_rig import run_clean
from tests.style.project import ROOT
from tests.support.pipelines import environment
from tests.support.processes import Processes
from tests.support.reading import read_events
from tests.support.waiting import wait_until

# The environment of the tests has no Celery.
_CELERY = "celery==5.7.0"
_JOBS, _RAISES, _DIES = 20, 13, 17
BEFORE = """
import os
from celery import Celery

app = Celery("jobs", broker="filesystem://")
app.conf.broker_transport_options = {"data_folder_in": "queue", "data_folder_out": "queue"}


def crunch(number):
    if number == 13:
        raise ValueError(number)
    if number == 17:
        os.kill(os.getpid(), 9)
    return number * number


@app.task
def job(number):
    return crunch(number)
"""
AFTER = """
import os
from celery import Celery
from sessionary.producers import SessionClient, traced

app = Celery("jobs", broker="filesystem://")
app.conf.broker_transport_options = {"data_folder_in": "queue", "data_folder_out": "queue"}
client = SessionClient(tenant_id="acme", service_id="jobs", agent_id="worker")  # before the fork


@traced("tool")
def crunch(number):
    if number == 13:
        raise ValueError(number)
    if number == 17:
        os.kill(os.getpid(), 9)
    return number * number


@app.task
def job(number):
    with client.session(user_id=f"user-{number}"):
        return crunch(number)
"""


def test_a_worker_needs_four_more_lines() -> None:
    marks = [line[0] for line in difflib.unified_diff(BEFORE.splitlines(), AFTER.splitlines(), lineterm="", n=0)][2:]
    assert marks.count("+") - marks.count("-") == 4


def test_each_job_of_prefork_workers_is_a_session_with_its_end(
    kafka: KafkaSettings, processes: Processes, tmp_path: Path
) -> None:
    run_clean(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    run_clean(python, "-m", "pip", "install", "--quiet", ROOT, cwd=tmp_path)
    # Celery names single versions, other ones than the constraints of the tests' own environment.
    subprocess.run([python, "-m", "pip", "install", "--quiet", _CELERY], cwd=tmp_path, check=True, timeout=600)
    (tmp_path / "queue").mkdir()
    (tmp_path / "jobs.py").write_text(AFTER, "utf-8")
    env = {"PATH": os.environ["PATH"], **environment(kafka, spool_dir=str(tmp_path / "spool"))}
    words = ["env", "-i", "-C", tmp_path, *(f"{name}={value}" for name, value in env.items()), python]
    processes.run([*map(str, words), "-m", "celery", "-A", "jobs", "worker", "--concurrency=3"], name="celery")
    send = f"import jobs\nfor number in range({_JOBS}): jobs.job.delay(number)"
    subprocess.run([python, "-c", send], cwd=tmp_path, env=env, check=True, timeout=300)

    def events() -> list[Event]:
        return [*{e.envelope.event_id: e for e in read_events(kafka) if isinstance(e, Event)}.values()]

    def ends() -> Counter[str]:
        return Counter(e.payload.reason for e in events() if isinstance(e.payload, SessionTerminated))

    # That of the killed process has none: its limit would time it out.
    wait_until(lambda: sum(ends().values()) >= _JOBS - 1, 120, "the ends of all jobs but the killed one")
    assert ends() == {"closed": _JOBS - 2, "unrecoverable": 1}
    kinds = Counter(e.envelope.event_type for e in events())
    assert (kinds["tool_call_succeeded"], kinds["tool_call_failed"]) == (_JOBS - 2, 1)
