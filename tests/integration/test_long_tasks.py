"""Long tasks with a real broker, processor and workers, each a process of its own."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from sessionary.infra.local.ports import LOOPBACK, free_port
from sessionary.infra.local.process import Child
from sessionary.producers import SessionClient, Unavailable
from sessionary.schemas.ids import new_task_id
from sessionary.schemas.settings import KafkaSettings
from tests.integration.pipeline_rig import COMMAND, TENANT, TOKEN, PipelineRig, started_pipeline
from tests.integration.test_processor_api import get_known
from tests.support.metrics_page import metric_values, read_page
from tests.support.pipelines import environment
from tests.support.processes import Processes
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import wait_until

# The module of the workers. A task ends once its gate is there; each beginning leaves a line.
TASKS = """
import os, time
from pathlib import Path
from sessionary.producers.tasks.worker import task

@task("model_training")
def train(ctx, given):
    folder = Path(given["folder"])
    with open(folder / "begun", "a") as begun:
        begun.write(f"{os.getpid()} {ctx.is_repeated}\\n")
    ctx.report_progress(1, 4, "Step 1/4")
    while not (folder / "gate").exists():
        time.sleep(0.05)
    ctx.report_progress(4, 4, "Step 4/4")
    return {"accuracy": 0.9}
"""
# Asks for a task and is killed: nothing is closed.
ASKER = """
import os, signal, sys
from sessionary.producers import SessionClient, Unavailable
client = SessionClient(tenant_id="acme", service_id="billing", agent_id="asker")
session = client.session(user_id="u1")
task_id = session.start_task("model_training", {"folder": sys.argv[1]}, timeout_s=120)
with open(sys.argv[1] + "/id.new", "w") as file:
    file.write(task_id)
os.rename(sys.argv[1] + "/id.new", sys.argv[1] + "/id")
os.kill(os.getpid(), signal.SIGKILL)
"""


class TaskRig:
    """Workers, and clients, in a folder."""

    def __init__(self, pipeline: PipelineRig, processes: Processes, folder: Path) -> None:
        self.pipeline, self._kafka = pipeline, pipeline.kafka
        self._processes, self.folder = processes, folder
        (folder / "app_tasks.py").write_text(TASKS)

    def environment(self, name: str, **settings: str) -> dict[str, str]:
        more = {
            "control_url": self.pipeline.control_url,
            "api_token": TOKEN,
            "spool_dir": str(self.folder / f"{name}-spool"),
            "verdict_timeout_s": "120",
            **settings,
        }
        return {**environment(self._kafka, **more), "PYTHONPATH": str(self.folder)}

    def start_worker(self, name: str, *more: str, lease_s: int = 10, **settings: str) -> Child:
        """Start a worker. It takes a task over if the task's worker is silent for `lease_s`."""
        options = ["--module", "app_tasks", "--tenant", TENANT, "--service", "billing", "--agent", name, *more]
        times = ["--beat-s", "0.5", "--lease-s", f"{lease_s}"]
        environ = self.environment(name, **settings)
        return self._processes.run([COMMAND, "serve", "task-worker", *options, *times], env=environ, name=name)

    def ask_and_die(self) -> str:
        asker = self._processes.run(
            [sys.executable, "-c", ASKER, str(self.folder)], env=self.environment("asker"), name="asker"
        )
        assert asker.wait(180)
        return (self.folder / "id").read_text()

    def client(self) -> SessionClient:
        settings = self.pipeline.client_settings(self.folder, "reader")
        return SessionClient(tenant_id=TENANT, service_id="another", agent_id="reader", settings=settings)

    def beginnings(self) -> list[list[str]]:
        """Return the process and whether it repeats, for each time that the task began."""
        begun = self.folder / "begun"
        return [line.split() for line in begun.read_text().splitlines()] if begun.exists() else []

    def open_gate(self) -> None:
        (self.folder / "gate").touch()


def last_state(client: SessionClient, task_id: str) -> str:
    """Watch a task to its end; a busy machine may not answer for longer than the client waits."""

    def watch() -> str | None:
        with suppress(Unavailable):
            return [view.state for view in client.watch_task(task_id)][-1]
        return None

    return wait_until(watch, 120, "the task's last state")


def test_a_task_goes_on_without_its_client_and_through_restarts(
    kafka: KafkaSettings, processes: Processes, tmp_path: Path
) -> None:
    rig = TaskRig(started_pipeline(kafka, processes), processes, tmp_path)
    task_id = rig.ask_and_die()
    with rig.client() as client:
        reported = {"task_id": task_id, "status": "started", "progress": 0.0, "task_type": "model_training"}
        wait_until(lambda: client.check_task_status(task_id) == reported, 30, "the task to be known")
        rig.start_worker("worker-1", lease_s=300)  # longer than any pause of the machine
        running = {**reported, "status": "running", "progress": 0.25}
        wait_until(lambda: client.check_task_status(task_id) == running, 60, "the task to be at work")
        assert client.get_task_results(task_id) == {"error": "task not completed. Current status: running"}
        rig.pipeline.processor.kill()
        rig.pipeline.start_processor()
        assert client.check_task_status(task_id) == running
        rig.open_gate()
        assert last_state(client, task_id) == "completed"
    rig.pipeline.processor.kill()
    rig.pipeline.start_processor()
    with rig.client() as later:
        result = {"task_id": task_id, "status": "completed", "result": {"accuracy": 0.9}}
        assert later.get_task_results(task_id) == result
        assert later.check_task_status(task_id)["progress"] == 1.0
    assert [repeats for _, repeats in rig.beginnings()] == ["False"]


def test_the_task_of_a_worker_that_was_killed_is_done_by_another_one(
    pipeline: PipelineRig, processes: Processes, tmp_path: Path
) -> None:
    rig = TaskRig(pipeline, processes, tmp_path)
    first = rig.start_worker("worker-1")
    task_id = rig.ask_and_die()
    wait_until(lambda: len(rig.beginnings()) == 1, 60, "the first worker to begin")
    first.kill()
    rig.start_worker("worker-2")
    wait_until(lambda: len(rig.beginnings()) == 2, 120, "the second worker to begin again")
    rig.open_gate()
    with rig.client() as client:
        assert last_state(client, task_id) == "completed"
        assert client.get_task_results(task_id)["result"] == {"accuracy": 0.9}
    (first_pid, _), (second_pid, repeats) = rig.beginnings()
    assert first_pid != second_pid
    assert repeats == "True"


def test_the_pages_of_a_worker_follow_its_assignment_and_its_tasks(
    kafka: KafkaSettings, processes: Processes, tmp_path: Path
) -> None:
    rig = TaskRig(started_pipeline(kafka, processes), processes, tmp_path)
    way, port = free_port(), free_port()  # the worker's way to the broker, and its pages
    rig.start_worker("worker-1", bootstrap_servers=f"{LOOPBACK}:{way}", metrics_port=str(port))

    def page(name: str) -> tuple[int, str] | None:
        with suppress(OSError):
            return read_page(f"http://{LOOPBACK}:{port}/{name}")
        return None

    def delivered() -> float:
        return metric_values(port)['sessionary_client_events_total{outcome="delivered"}']

    wait_until(lambda: page("healthz"), 120, "the pages")
    unassigned = (503, "its group has given it no assignment yet\n")
    assert [page(name) for name in ("healthz", "readyz")] == [(200, "ok\n"), unassigned]
    with TcpProxy(way, int(kafka.bootstrap_servers.rpartition(":")[2])), rig.client() as client:
        wait_until(lambda: page("readyz") == (200, "ok\n"), 120, "the worker's assignment")
        assert delivered() == 0
        task_id = rig.ask_and_die()
        wait_until(rig.beginnings, 60, "the worker to begin")
        rig.open_gate()
        assert last_state(client, task_id) == "completed"
        # run_started, run_running and run_completed at least; beats are as many as the time allows
        wait_until(lambda: delivered() >= 3, 60, "the task's events in the metrics")
        assert [page(name) for name in ("healthz", "readyz")] == [(200, "ok\n")] * 2


def test_the_page_of_a_task_answers_for_its_tenant(pipeline: PipelineRig, tmp_path: Path) -> None:
    with SessionClient(
        tenant_id=TENANT, service_id="billing", agent_id="a", settings=pipeline.client_settings(tmp_path)
    ) as client:
        session = client.session(user_id="u1")
        # Of a type that no worker of another test does.
        task_id = session.start_task("report", timeout_s=120)
        key = session.core.emitter.key
        assert client.check_task_status(task_id)["status"] == "started"

    def ask(task: str, token: str = TOKEN) -> tuple[int, Any]:
        answer = get_known(f"{pipeline.control_url}/v1/tasks/{task}", token)
        return answer.status, answer.body

    assert ask(task_id, "unknown")[0] == 401
    status, document = ask(task_id)
    assert (status, document["run_id"], document["state"], document["version"]) == (200, task_id, "queued", "1.queued")
    for unknown in (new_task_id(key), "11111111-1111-4111-8111-111111111111", "no-id"):
        status, problem = ask(unknown)
        assert (status, problem["reason"]) == (404, "unknown_task")
