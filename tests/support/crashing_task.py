"""Workers that kill themselves at crash points while they carry a task out.

python -m tests.support.crashing_task FOLDER JOBS.json

As `tests.support.crashing_workflow`; a job's issue is the id of its task, and its URL the folder of
the effects.
"""

import os
import signal
import sys
import time
from pathlib import Path

from sessionary.producers import Json, SessionClient, TookEffect, current_tool_key, tool
from sessionary.producers.tasks.context import TaskContext
from sessionary.producers.tasks.worker import TaskAttempt, TaskTimes
from sessionary.schemas.records import TaskRequest
from tests.support.crash_points import Life
from tests.support.crashing_workflow import Job, guard_kafka, main

TENANT, SERVICE, TASK_TYPE = "acme", "billing", "walk"
ITEMS = ["a", "b", "c"]
SENT = [*ITEMS, "done", "done"]
TIMES = TaskTimes(beat_s=1.0, lease_s=8.0)


def effects_in(file: Path) -> list[tuple[str, str]]:
    """Return key and text of each effect of a task, in order."""
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    return [(key, text) for key, _, text in (line.partition(" ") for line in lines)]


class Service:
    """The effects of the one task of this process. The next worker asks before the work."""

    life = Life(None)
    file = Path()


def _find(key: str) -> TookEffect | None:
    return TookEffect("sent") if key in dict(effects_in(Service.file)) else None


@tool(effect="write", deadline=5, query=_find)
def send(text: str) -> str:
    """Make an effect, between two crash points."""
    Service.life.cross("before the effect")
    with Service.file.open("a", encoding="utf-8") as file:
        file.write(f"{current_tool_key()} {text}\n")
    Service.life.cross("after the effect")
    return "sent"


def walk(ctx: TaskContext, _given: Json) -> Json:
    """Work through a list, and make equal calls."""
    first: Json = ctx.run.step("prepare", lambda: len(ITEMS))
    for item in ctx.run.items(ITEMS, name="list", every=2):
        send(item)
    return [first, send("done"), send("done")]


def work(job: Job, folder: Path) -> int:
    """Carry a task out, until the crash point; return an exit code."""
    life = Life(job.point if job.point >= 0 else None, lambda: os.kill(os.getpid(), signal.SIGKILL))
    Service.life, Service.file = life, Path(job.url, job.issue)
    guard_kafka(life)
    os.environ["SESSIONARY_SPOOL_DIR"] = str(folder / f"{job.issue}-spool")
    request = TaskRequest(
        *(TENANT, job.session_id, job.issue, SERVICE, "u1", 1, TASK_TYPE, None, ()),
        requested_at=time.time_ns() // 1_000,
    )
    # All workers have one name.
    with SessionClient(tenant_id=TENANT, service_id=SERVICE, agent_id="worker") as client:
        TaskAttempt(client.core, request, lambda: False, TIMES).carry_out({TASK_TYPE: walk})
    sys.stdout.write(f"crossed {len(life.crossed)}\n")
    return 0


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], work)
