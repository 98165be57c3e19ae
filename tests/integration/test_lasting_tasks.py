"""Ten long tasks, without their client, through restarts of broker, processors and worker."""

import json
import sys
import urllib.parse
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

from sessionary.infra.local.kafka.cluster import LocalBroker
from sessionary.infra.local.ports import free_port
from sessionary.infra.local.process import Child
from sessionary.producers import SessionClient
from sessionary.schemas.settings import ClickHouseSettings
from tests.integration.pipeline_rig import TENANT, TOKEN, started_pipeline
from tests.integration.test_long_tasks import TaskRig, last_state
from tests.support.pipelines import new_pipeline
from tests.support.processes import Processes
from tests.support.waiting import wait_until

STEPS = 10
TASKS = """
import time
from pathlib import Path
from sessionary.producers.tasks.worker import task

@task("model_training")
def train(ctx, given):
    for step in range(1, 11):
        while step > 4 and not Path(given["folder"], "gate").exists():
            time.sleep(0.05)
        ctx.report_progress(step, 10, f"Step {step}/10")
    return {"model": given["number"]}

@task("broken")
def fail(ctx, given):
    raise TimeoutError("the model server is silent")
"""
# Asks for tasks of two types, and is killed: nothing is closed.
ASKER = """
import json, os, signal, sys
from sessionary.producers import SessionClient
client = SessionClient(tenant_id="acme", service_id="billing", agent_id="asker")
session = client.session(user_id="ann")
asked = []
for number in range(11):
    kind = "broken" if number == 10 else "model_training"
    asked.append(session.start_task(kind, {"folder": sys.argv[1], "number": number}, timeout_s=120))
with open(sys.argv[1] + "/ids.new", "w") as file:
    json.dump(asked, file)
os.rename(sys.argv[1] + "/ids.new", sys.argv[1] + "/ids")
os.kill(os.getpid(), signal.SIGKILL)
"""


class ThreeWorkers:
    """Three processors, a task worker, and clients that ask one of the processors."""

    def __init__(self, broker: LocalBroker, clickhouse: ClickHouseSettings, processes: Processes, folder: Path) -> None:
        self._broker, self._processes, self._folder = broker, processes, folder
        self.rig = TaskRig(started_pipeline(new_pipeline(broker.bootstrap_servers), processes), processes, folder)
        self.rig.pipeline.clickhouse = clickhouse
        (folder / "app_tasks.py").write_text(TASKS)
        self.ports = [self.rig.pipeline.api_port, free_port(), free_port()]
        self._roles = [self.rig.pipeline.processor, *self._start_processors((2, 3)), self._start_worker()]

    def _start_processors(self, numbers: tuple[int, ...]) -> list[Child]:
        start = self.rig.pipeline.start_processor
        started = [start(instance=f"w{number}", api_port=str(self.ports[number - 1])) for number in numbers]
        wait_until(lambda: all(map(self._is_ready, self.ports)), 180, "every processor to own its partitions")
        return started

    def _is_ready(self, port: int) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=60) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _start_worker(self) -> Child:
        return self.rig.start_worker("worker", "--concurrency", "12")

    def restart_all(self) -> None:
        """Kill the processors, the worker and the broker, and start them again."""
        for role in self._roles:
            role.kill()
        self._broker.kill()
        self._broker.start()
        self._broker.wait_ready()
        self._roles = [*self._start_processors((1, 2, 3)), self._start_worker()]

    def ask_and_die(self) -> list[str]:
        """Ask for eleven tasks through the first processor in a process that is killed then."""
        program = [sys.executable, "-c", ASKER, str(self._folder)]
        asker = self._processes.run(program, env=self.rig.environment("asker"), name="asker")
        assert asker.wait(180)
        ids: list[str] = json.loads((self._folder / "ids").read_text())
        return ids

    def client(self, number: int, name: str) -> SessionClient:
        """Return a new client that knows one processor only."""
        settings = self.rig.pipeline.client_settings(self._folder, name)
        settings = settings.model_copy(update={"control_url": f"http://127.0.0.1:{self.ports[number - 1]}"})
        return SessionClient(tenant_id=TENANT, service_id="another", agent_id=name, settings=settings)

    def list_runs(self, number: int, **query: str) -> dict[str, str]:
        """Return the states of the runs that a processor lists, once every partition answers."""
        url = f"http://127.0.0.1:{self.ports[number - 1]}/v1/runs?{urllib.parse.urlencode(query)}"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {TOKEN}"})
        body: dict[str, Any] = {}

        def has_all() -> bool:
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    body.update(json.load(answer))
            except OSError:  # a busy worker may not answer, or not be ready
                return False
            return not body["missing_partitions"]

        wait_until(has_all, 60, "an answer of every partition")
        return {run["run_id"]: run["state"] for run in body["runs"]}


def is_reported(client: SessionClient, status: dict[str, Any]) -> bool:
    """Return whether the status of a task is this one."""
    return client.check_task_status(status["task_id"]) == status


def test_ten_tasks_outlive_their_client_and_restarts_of_broker_and_workers(
    broker: LocalBroker, clickhouse: ClickHouseSettings, processes: Processes, tmp_path: Path
) -> None:
    """R-004-01, with real restarts."""
    workers = ThreeWorkers(broker, clickhouse, processes, tmp_path)
    *tasks, broken = workers.ask_and_die()
    with workers.client(2, "second") as client:
        for task in tasks:
            reported = {"task_id": task, "status": "running", "progress": 0.4, "task_type": "model_training"}
            wait_until(partial(is_reported, client, reported), 60, "a task to be at work")
        # Ten are in flight: another one is accepted, and is at work as well.
        session = client.session(user_id="ben")
        mine = session.start_task("model_training", {}, timeout_s=120)
        assert client.check_task_status(mine)["status"] == "started"
        assert workers.list_runs(3, user_id="ann", state="running") == dict.fromkeys(tasks, "running")
        session.lifecycle.detach()

    workers.restart_all()
    workers.rig.open_gate()
    with workers.client(3, "third") as client:
        assert [last_state(client, task) for task in tasks] == ["completed"] * len(tasks)
        # Begun through the first processor, seen through the second, fetched through the third.
        assert client.get_task_results(tasks[0])["result"] == {"model": 0}

    workers.restart_all()
    with workers.client(1, "fourth") as client:
        for number, task in enumerate(tasks):
            done = {"task_id": task, "status": "completed", "result": {"model": number}}
            assert client.get_task_results(task) == done
        failed = client.find_task(broken)
        assert failed is not None
        assert failed.error is not None
        assert (failed.state, failed.error.error_class, failed.error.code, failed.error.message) == (
            *("failed", "retryable", "TimeoutError"),
            "the model server is silent",
        )
    # By its user, without knowing any id.
    assert workers.list_runs(2, user_id="ann") == {**dict.fromkeys(tasks, "completed"), broken: "failed"}
    check_clickhouse(workers, tasks, broken)


def check_clickhouse(workers: ThreeWorkers, tasks: list[str], broken: str) -> None:
    """Look at the tasks' history, which sinks write that start only now."""
    pipeline = workers.rig.pipeline
    pipeline.start_sinks(("audit", "history", "rejected"))
    finished = "SELECT count() FROM {db}.v_runs WHERE user_id = 'ann' AND status IN ('completed', 'failed')"
    wait_until(lambda: pipeline.sql(finished) == [["11"]], 180, "the tasks' rows", pause_s=0.5)
    pipeline.wait_landed(180)
    runs = pipeline.sql("SELECT run_id, status, result FROM {db}.v_runs WHERE user_id = 'ann' ORDER BY result")
    assert sorted(runs) == sorted(
        [[task, "completed", f'{{"model":{n}}}'] for n, task in enumerate(tasks)] + [[broken, "failed", r"\N"]]
    )
    assert pipeline.sql("SELECT * FROM {db}.v_run_faults") == []
    for task in tasks:
        where = f"WHERE run_id = '{task}'"
        numbers = pipeline.sql(f"SELECT seq FROM {{db}}.v_run_events {where} ORDER BY seq")
        assert numbers == [[f"{n}"] for n in range(1, len(numbers) + 1)]
        series = f"SELECT progress FROM {{db}}.v_run_events {where} AND event_type = 'run_running' ORDER BY seq"
        progress = [float(value) for (value,) in pipeline.sql(series) if value != r"\N"]
        # The task was begun twice: its second worker counts from the start again.
        assert {n / STEPS for n in range(1, STEPS + 1)} <= set(progress)
        assert progress[-1] == 1.0
