"""A client's reads of tasks. A task's id is sufficient, in any process of its tenant."""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from sessionary.producers.client_core.core import ClientCore
from sessionary.producers.durable.large_values import INTERMEDIATE, load_value
from sessionary.producers.errors import ArtifactDeleted, RunGone, SessionLost, SettingsError
from sessionary.producers.ports import Json, TaskQuestion, TaskView
from sessionary.producers.run_ports import FINISHED_STATES

if TYPE_CHECKING:
    from sessionary.producers.artifacts.library import ArtifactLibrary


# The documents about a task that a client gets; pure.


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

    `load` returns the value that the JSON of a result represents; its errors are raised. The result
    of a task that has an artifact instead is `{"artifact_id": …}`.
    """
    if view is None:
        return {"error": NOT_FOUND}
    if view.state != "completed":
        return {"error": f"task not completed. Current status: {status_of(view)}"}
    result: Json = None if view.result_json is None else load(view.result_json)
    if view.result_json is None and view.artifact_id is not None:
        result = {"artifact_id": view.artifact_id}
    return {"task_id": task_id, "status": "completed", "result": result}


_WATCH_S = 10.0  # how long one question waits for a change


class TaskReads:
    """The questions about tasks. They wait as `Session.sync` does. Thread-safe."""

    __slots__ = ("_core",)

    def __init__(self, core: ClientCore) -> None:
        self._core = core

    def status(self, task_id: str) -> dict[str, Json]:
        """Return a task's status: `{"task_id", "status", "progress", "task_type"}`."""
        try:
            return status_answer(task_id, self.find(task_id))
        except RunGone:
            return {"error": GONE}

    def results(self, task_id: str) -> dict[str, Json]:
        """Return a completed task's result: `{"task_id", "status", "result"}`."""
        try:
            return result_answer(task_id, self.find(task_id), partial(load_value, self._core.artifacts))
        except RunGone:
            return {"error": GONE}

    def intermediate_results(self, task_id: str) -> dict[str, Json]:
        """Return the results that a task saved so far: `{"task_id", "status", "results"}`."""
        try:
            view = self.find(task_id)
            if view is None:
                return {"error": NOT_FOUND}
            return {"task_id": task_id, "status": status_of(view), "results": self._load_intermediate(view)}
        except RunGone:
            return {"error": GONE}

    def find(self, task_id: str) -> TaskView | None:
        """Return the known state of a task, with its error; None if the task is unknown."""
        return self._ask_task(task_id, TaskQuestion(after=self._core.services.task_positions.get(task_id)))

    def watch(self, task_id: str) -> Iterator[TaskView]:
        """Yield a task as it is now, and again after each change, until it has finished."""
        view = self.find(task_id)
        seen: str | None = None
        while view is not None:
            if view.version != seen:
                yield view
            if view.state in FINISHED_STATES:
                return
            seen = view.version
            view = self._ask_task(task_id, TaskQuestion(seen=seen), _WATCH_S)
        raise SessionLost(f"task {task_id} is not known")

    def _load_intermediate(self, view: TaskView) -> dict[str, Json]:
        runs, library = self._core.ports.runs, self._core.artifacts
        if runs is None:
            raise SettingsError("this client has no control API to ask about artifacts")
        artifacts = runs.fetch_artifacts(view.session_id, view.task_id, None, self._core.settings.verdict_timeout_s)
        saved = {
            artifact.artifact_type.removeprefix(INTERMEDIATE): f"artifact:{artifact.artifact_type}:{artifact.sha256}"
            for artifact in artifacts
            if artifact.state == "complete" and artifact.artifact_type.startswith(INTERMEDIATE)
        }
        if saved and library is None:
            raise SettingsError(
                f"the task has {len(saved)} intermediate results: set SESSIONARY_ARTIFACTS_URL, or "
                "SessionClient(artifacts=...), to the place where its worker saves them"
            )
        return {} if library is None else dict(_load_kept(library, saved))

    def _ask_task(self, task_id: str, question: TaskQuestion, timeout_s: float | None = None) -> TaskView | None:
        self._core.reopen_in_child()
        if self._core.ports.tasks is None:
            raise SettingsError("this client has no control API to ask about tasks")
        wait_s = self._core.settings.verdict_timeout_s if timeout_s is None else timeout_s
        return self._core.ports.tasks.fetch_task(task_id.lower(), wait_s, question)


def _load_kept(library: "ArtifactLibrary", references: Mapping[str, str]) -> Iterator[tuple[str, Json]]:
    """Yield names with values, without those that have expired."""
    for name, reference in references.items():
        with contextlib.suppress(ArtifactDeleted):
            yield name, json.loads(library.load(reference))
