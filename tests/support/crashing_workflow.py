"""The workflow as processes that kill themselves at crash points: `tests.support.crash_points`.

python -m tests.support.crashing_workflow FOLDER JOBS.json

Each job is forked from this process, so that it need not load everything again. What each one
printed is in FOLDER. What was to be killed is started again at once. Prints a JSON object: of each
issue, the exit code and the number of crossed points of each of its processes.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from examples.workflow import workflow
from sessionary.producers import ToolCallUnresolved, kafka_ports
from tests.support.crash_points import Life

AT_ONCE = 16
UNRESOLVED = 3  # exit code


class Job(NamedTuple):
    """Work on an issue until a crash point; -1: to its end. `asks`: see `workflow.Tools`."""

    issue: str
    point: int
    url: str
    session_id: str
    asks: bool


class Ended(NamedTuple):
    """How a job ended: its exit code, negative for a signal, and how many points it crossed."""

    code: int
    crossed: int


Work = Callable[[Job, Path], int]
"""Works on a job, with files in a folder; returns an exit code."""


def guard_kafka(life: Life) -> None:
    """Let all that leaves this process cross crash points."""
    make_ports = kafka_ports.kafka_ports

    def guarded_ports(*args: Any) -> Any:
        ports = make_ports(*args)
        return ports._replace(**life.guard_ports(ports))

    vars(kafka_ports)["kafka_ports"] = guarded_ports


def work(job: Job, folder: Path) -> int:
    """Work as the example does, until the crash point; return an exit code."""
    life = Life(job.point if job.point >= 0 else None, lambda: os.kill(os.getpid(), signal.SIGKILL))
    guard_kafka(life)
    vars(workflow)["ask_service"] = life.guard("HTTP request", workflow.ask_service)
    vars(workflow)["Tools"] = partial(workflow.Tools, asks=job.asks)
    # A process starts with the spool of the one that worked on its issue before.
    os.environ["SESSIONARY_SPOOL_DIR"] = str(folder / f"{job.issue}-spool")
    try:
        workflow.main(job.url, job.session_id, job.issue)
    except ToolCallUnresolved as unresolved:
        sys.stdout.write(f"{unresolved}\n")
        return UNRESOLVED
    sys.stdout.write(f"crossed {len(life.crossed)}\n")
    return 0


def start(job: Job, folder: Path, work: Work) -> int:
    """Fork a process for a job; return its id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        sys.stdout = sys.stderr = log_of(job, folder).open("a", encoding="utf-8", buffering=1)
        code = work(job, folder)
    except BaseException:  # noqa: BLE001 - the parent's code must not go on in the child
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def log_of(job: Job, folder: Path) -> Path:
    """Return the file with what the processes of an issue print."""
    return folder / f"{job.issue}.log"


def main(folder: str, jobs: str, work: Work = work) -> None:
    """Do all jobs, some at once."""
    left = [Job(*job) for job in json.loads(Path(jobs).read_text("utf-8"))]
    running: dict[int, Job] = {}
    ended: dict[str, list[Ended]] = {job.issue: [] for job in left}
    while left or running:
        while left and len(running) < AT_ONCE:
            job = left.pop(0)
            running[start(job, Path(folder), work)] = job
        pid, status = os.wait()
        job = running.pop(pid)
        lines = log_of(job, Path(folder)).read_text("utf-8").splitlines()
        crossed = int(lines[-1].split()[-1]) if lines and lines[-1].startswith("crossed ") else 0
        ended[job.issue].append(Ended(os.waitstatus_to_exitcode(status), crossed))
        if job.point >= 0:
            left.insert(0, job._replace(point=-1))
    sys.stdout.write(json.dumps(ended))


def read_ended(text: str) -> Mapping[str, list[Ended]]:
    """Return how the processes of each issue ended, in order, from what `main` printed."""
    return {issue: [Ended(*end) for end in ended] for issue, ended in json.loads(text).items()}


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
