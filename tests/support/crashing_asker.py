"""An agent that asks a person, in processes that kill themselves at crash points.

python -m tests.support.crashing_asker FOLDER JOBS.json

Each process is forked from this one, so that it need not load everything again. One that was to be
killed is followed by a second, which works to the end, and a third, which finds the work done.
Prints a JSON object: of each session, how each of its processes ended.
"""

import json
import os
import signal
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError

from sessionary.producers import Session, SessionClient, SessionLost, TookEffect, current_tool_key, kafka_ports, tool
from tests.support.crash_points import Life

AT_ONCE = 8
QUESTIONS = ["Refund 1200?", "Tell the customer?"]


class Job(NamedTuple):
    """Work in a session until a crash point; -1: to its end.

    `life` counts its processes. `is_late`: the second one starts only once no question is open.
    """

    session_id: str
    point: int
    life: int
    is_late: bool


class Ended(NamedTuple):
    """How a process ended: its exit code, negative for a signal, and its last line."""

    code: int
    line: str


def open_session(client: SessionClient, session_id: str) -> Session:
    """Return the session of this id, Active or with an open question."""
    try:
        session = client.attach(session_id)
    except SessionLost:
        session = client.create(session_id=session_id, user_id="ada")
    if session.local_state == "Idle":
        session.start()
    elif session.local_state == "Timeout":
        session.resume()
    return session


def refund(session: Session, effects: Path) -> Any:
    """Ask in a step and outside, and note twice what was decided; return the notes."""

    def find(key: str) -> TookEffect | None:
        return TookEffect("noted") if (effects / key).exists() else None

    @tool(name="note", effect="write", query=find, deadline=2, wait_s=60)
    def note(text: str) -> str:
        with (effects / str(current_tool_key())).open("x") as file:
            file.write(text)
        return "noted"

    with session.run("refund", run_id="r", input={"order": "A-7"}, resume=True) as run:
        approved = run.step("approve", lambda: session.ask(QUESTIONS[0], 600).approved)
        if session.ask(QUESTIONS[1], 600).approved:
            run.result = run.step("note", lambda: [note(f"approved: {approved}") for _ in range(2)])
    return run.result


def work(job: Job, folder: Path) -> None:
    """Work until the crash point, or to the end; print what came of it."""
    life = Life(job.point if job.point >= 0 else None, lambda: os.kill(os.getpid(), signal.SIGKILL))
    make_ports = kafka_ports.kafka_ports

    def guarded_ports(*args: Any) -> Any:
        ports = make_ports(*args)
        return ports._replace(**life.guard_ports(ports))

    vars(kafka_ports)["kafka_ports"] = guarded_ports
    effects = folder / f"{job.session_id}-effects"
    effects.mkdir(exist_ok=True)
    # A process starts with the spool of the one before it.
    os.environ["SESSIONARY_SPOOL_DIR"] = str(folder / f"{job.session_id}-spool")
    with SessionClient(tenant_id="acme", service_id="refunds", agent_id="a") as client:
        result = refund(open_session(client, job.session_id), effects)
        line = [result, len(life.crossed), [file.read_text() for file in effects.iterdir()]]
    sys.stdout.write(f"{json.dumps(line)}\n")


def wait_until_answered(session_id: str) -> None:
    """Wait until no question of a session is open; a session may not be there yet."""
    token = os.environ["SESSIONARY_API_TOKEN"]
    url = f"{os.environ['SESSIONARY_CONTROL_URL']}/v1/sessions/{session_id}"
    while True:
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                if json.load(answer)["question"] is None:
                    return
        except HTTPError as error:
            if error.code == 404:
                return
            if error.code != 503:  # the partition may be behind its log for a moment
                raise
        time.sleep(0.2)


def start(job: Job, folder: Path) -> int:
    """Fork a process for a job; return its id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        sys.stdout = sys.stderr = log_of(job, folder).open("a", encoding="utf-8", buffering=1)
        if job.is_late and job.life == 1:
            wait_until_answered(job.session_id)
        work(job, folder)
        code = 0
    except BaseException:  # noqa: BLE001 - the parent's code must not go on in the child
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def log_of(job: Job, folder: Path) -> Path:
    """Return the file with what the processes of a session print."""
    return folder / f"{job.session_id}.log"


def main(folder: str, jobs: str) -> None:
    """Do all jobs, some at once."""
    left = [Job(*job) for job in json.loads(Path(jobs).read_text("utf-8"))]
    running: dict[int, Job] = {}
    ended: dict[str, list[Ended]] = {job.session_id: [] for job in left}
    while left or running:
        while left and len(running) < AT_ONCE:
            job = left.pop(0)
            running[start(job, Path(folder))] = job
        pid, status = os.wait()
        job = running.pop(pid)
        lines = log_of(job, Path(folder)).read_text("utf-8").splitlines() or [""]
        ended[job.session_id].append(Ended(os.waitstatus_to_exitcode(status), lines[-1]))
        if job.life < 2:
            left.insert(0, job._replace(point=-1, life=job.life + 1))
    sys.stdout.write(json.dumps(ended))


def read_ended(text: str) -> Mapping[str, list[Ended]]:
    """Return how the processes of each session ended, in order, from what `main` printed."""
    return {session_id: [Ended(*end) for end in ended] for session_id, ended in json.loads(text).items()}


if __name__ == "__main__":
    main(*sys.argv[1:])
