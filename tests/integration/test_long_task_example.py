"""The example of a long task: one process asks for it, a worker does it, others ask about it."""

import json
import re
from pathlib import Path

from sessionary.producers import SessionClient
from sessionary.schemas.events import RunQueued, ToolCallSucceeded
from sessionary.schemas.settings import KafkaSettings
from tests.integration.examples_rig import ExamplesRig, end_of
from tests.integration.pipeline_rig import COMMAND, TENANT, started_pipeline
from tests.integration.test_long_tasks import last_state
from tests.style.project import ROOT
from tests.support import Processes


def test_a_tool_starts_a_task_and_other_processes_ask_for_it(
    kafka: KafkaSettings, processes: Processes, tmp_path: Path
) -> None:
    rig = ExamplesRig(started_pipeline(kafka, processes), tmp_path)
    output = rig.run_example("long_task.agent", "ask", "m1", 4)
    found = re.fullmatch(
        r"The training has begun as task ([0-9a-f-]{36})\. Ask for its status .*", output.splitlines()[1]
    )
    assert found is not None, output
    task_id = found[1]
    reported = {"task_id": task_id, "status": "started", "progress": 0.0, "task_type": "model_training"}
    assert json.loads(rig.run_example("long_task.agent", "status", task_id)) == reported
    waiting = {"error": "task not completed. Current status: started"}
    assert json.loads(rig.run_example("long_task.agent", "result", task_id)) == waiting

    # The session has ended by now, and no process asks while the worker does the task.
    assert end_of(rig.events(output)) == "closed"
    options = ["--module", "examples.long_task.agent", "--tenant", TENANT, "--service", "training"]
    environment = {**rig.variables, "PYTHONPATH": str(ROOT)}
    processes.run([COMMAND, "serve", "task-worker", *options], env=environment, name="task-worker")
    settings = rig.pipeline.client_settings(tmp_path, "watcher")
    with SessionClient(tenant_id=TENANT, service_id="training", agent_id="watcher", settings=settings) as client:
        assert last_state(client, task_id) == "completed"
    assert json.loads(rig.run_example("long_task.agent", "status", task_id)) == {
        **reported,
        "status": "completed",
        "progress": 1.0,
    }
    result = {"model_name": "m1", "loss": 0.25}
    done = {"task_id": task_id, "status": "completed", "result": result}
    assert json.loads(rig.run_example("long_task.agent", "result", task_id)) == done
    payloads = [event.payload for event in rig.events(output)]
    (queued,) = (payload for payload in payloads if isinstance(payload, RunQueued))
    (called,) = (payload for payload in payloads if isinstance(payload, ToolCallSucceeded))
    assert (queued.task_type, task_id in (called.result_json or "")) == ("model_training", True)
    assert rig.rejections() == []
    unknown = json.loads(rig.run_example("long_task.agent", "status", "11111111-1111-8111-8111-111111111111"))
    assert unknown == {"error": "task not found"}
