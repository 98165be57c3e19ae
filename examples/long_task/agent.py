"""A long task that a tool starts: the tool returns its id, and any process may ask for it later.

python -m examples.long_task.agent ask m1 10          # prints a text with the task's id
sessionary serve task-worker --module examples.long_task.agent --tenant acme --service training
python -m examples.long_task.agent status TASK_ID
python -m examples.long_task.agent result TASK_ID
"""

import json
import sys

from sessionary.producers import Json, SessionClient, current_session, tool
from sessionary.producers.tasks import TaskContext, task


@task("model_training")
def train(ctx: TaskContext, given: dict[str, Json]) -> dict[str, Json]:
    """Stand in for a training that takes hours. A worker calls this; if it dies, the next one."""
    losses: list[float] = []
    for epoch in range(given["epochs"]):
        losses.append(ctx.run.step("epoch", train_epoch, epoch))  # an epoch that is done is not trained again
        ctx.report_progress(epoch + 1, given["epochs"], f"Step {epoch + 1}/{given['epochs']}")
    return {"model_name": given["model_name"], "loss": losses[-1]}


def train_epoch(epoch: int) -> float:
    """Stand in for one epoch; return its loss."""
    return 1 / (epoch + 1)


@tool(effect="write")
def model_training(model_name: str, epochs: int = 10) -> str:
    """Start the training of a model, and return at once the agent's answer to the user."""
    session = current_session()
    assert session is not None  # the tool is called in a session's block
    task_id = session.start_task("model_training", {"model_name": model_name, "epochs": epochs}, timeout_s=30)
    return f"The training has begun as task {task_id}. Ask for its status with this id."


def check_task_status(client: SessionClient, task_id: str) -> str:
    """Return a task's status as JSON, for a model to read."""
    return json.dumps(client.check_task_status(task_id))


def get_task_results(client: SessionClient, task_id: str) -> str:
    """Return a task's result as JSON, or the reason for its absence."""
    return json.dumps(client.get_task_results(task_id))


def main(verb: str, name: str, epochs: str = "10") -> None:
    """Start a task, or ask about one. The process that started it may have ended."""
    with SessionClient(tenant_id="acme", service_id="training", agent_id="trainer") as client:
        if verb == "ask":
            with client.session(user_id="ada") as session:
                print("session", session.session_id)
                print(model_training(name, int(epochs)))
        else:
            print({"status": check_task_status, "result": get_task_results}[verb](client, name))


if __name__ == "__main__":
    main(*sys.argv[1:])
