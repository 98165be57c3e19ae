"""What a client is told of a task, as documents; pure."""

from collections.abc import Callable
from typing import Final

from sessionary.producers.ports import Json, TaskView

NOT_FOUND: Final = "task not found"
GONE: Final = "task no longer kept"


def status_of(view: TaskView) -> str:
    """Return a task's status: started, running, paused, completed, failed or cancelled.

    A task that waits for a worker is `started` too: it was accepted.
    """
    return "started" if view.state == "queued" else view.state


def status_answer(task_id: str, view: TaskView | None) -> dict[str, Json]:
    """Return a task's status: task_id, status, progress (0 to 1) and task_type; or an error."""
    if view is None:
        return {"error": NOT_FOUND}
    progress = 1.0 if view.state == "completed" else view.progress or 0.0
    return {
        "task_id": task_id,
        "status": status_of(view),
        "progress": progress,
        "task_type": view.task_type or "unknown",
    }


def result_answer(task_id: str, view: TaskView | None, load: Callable[[str], Json]) -> dict[str, Json]:
    """Return the result of a completed task: task_id, status and result; or an error.

    `load` returns what the JSON of a result stands for; its errors are raised. The result of a
    task that has an artifact instead is `{"artifact_id": …}`.
    """
    if view is None:
        return {"error": NOT_FOUND}
    if view.state != "completed":
        return {"error": f"task not completed. Current status: {status_of(view)}"}
    result: Json = None if view.result_json is None else load(view.result_json)
    if view.result_json is None and view.artifact_id is not None:
        result = {"artifact_id": view.artifact_id}
    return {"task_id": task_id, "status": "completed", "result": result}
