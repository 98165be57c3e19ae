"""The client's questions about tasks. A task's id alone is enough, in any process of its tenant."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from sessionary.producers.durable.large_values import INTERMEDIATE, load_value
from sessionary.producers.errors import ArtifactDeleted, RunGone, SessionLost, SettingsError
from sessionary.producers.lifetime.bound_client import ProcessBoundClient
from sessionary.producers.lifetime.task_answers import GONE, NOT_FOUND, result_answer, status_answer, status_of
from sessionary.producers.ports import Json, TaskQuestion, TaskView
from sessionary.producers.run_ports import FINISHED_STATES

if TYPE_CHECKING:  # most clients have no library
    from sessionary.producers.artifacts.library import ArtifactLibrary

_WATCH_S = 10.0  # how long one question waits for a change


class TaskQuestions(ProcessBoundClient):
    """The questions that a client asks about tasks. They wait as `Session.sync` does."""

    def check_task_status(self, task_id: str) -> dict[str, Json]:
        """Return a task's status: `{"task_id", "status", "progress", "task_type"}`.

        The status is started, running, paused, completed, failed or cancelled; the progress is from
        0 to 1. Of an unknown task, or one of another tenant: `{"error": "task not found"}`. A
        finished task is known for 30 days; for 14 more, it is `{"error": "task no longer kept"}`.

        Raises:
            Unavailable: The control API does not answer.
            AuthenticationFailed: The control API rejects our token.
            SettingsError: `SESSIONARY_CONTROL_URL` is not set.
        """
        try:
            return status_answer(task_id, self.find_task(task_id))
        except RunGone:
            return {"error": GONE}

    def get_task_results(self, task_id: str) -> dict[str, Json]:
        """Return a completed task's result: `{"task_id", "status", "result"}`.

        Of any other task: `{"error": "task not completed. Current status: …"}`; of an unknown one:
        `{"error": "task not found"}`; of one that vanished: `{"error": "task no longer kept"}`. A
        result of more than 256 KiB is loaded from the library of artifacts.

        Raises as `check_task_status`, and for a large result:
            SettingsError: The client has no library.
            ArtifactMissing: The library does not have it; `ArtifactDeleted` if it has expired.
            ArtifactDamaged: What the library has is not it.
        """
        try:
            return result_answer(task_id, self.find_task(task_id), partial(load_value, self._artifacts))
        except RunGone:
            return {"error": GONE}

    def get_intermediate_results(self, task_id: str) -> dict[str, Json]:
        """Return what a task saved so far by `ctx.save_result`: `{"task_id", "status", "results"}`.

        `results` has the last value of each name, loaded from the library of artifacts; without
        those whose body has expired. A task that failed keeps them. Other answers are those of
        `get_task_results`; raises as it does.
        """
        try:
            view = self.find_task(task_id)
            if view is None:
                return {"error": NOT_FOUND}
            return {"task_id": task_id, "status": status_of(view), "results": self._load_intermediate(view)}
        except RunGone:
            return {"error": GONE}

    def find_task(self, task_id: str) -> TaskView | None:
        """Return all that is known of a task, its error too; None if it is unknown.

        Raises as `check_task_status`, and `RunGone` if it finished and is no longer kept.
        """
        return self._ask_task(task_id, TaskQuestion(after=self._services.task_places.get(task_id)))

    def watch_task(self, task_id: str) -> Iterator[TaskView]:
        """Yield a task as it is now, and again after each change, until it has finished.

        Changes that follow each other closely may be seen as one. Raises as `check_task_status`,
        and `SessionLost` if the task is unknown.
        """
        view = self.find_task(task_id)
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
        runs, library = self._ports.runs, self._artifacts
        if runs is None:
            raise SettingsError("this client has no control API to ask about artifacts")
        artifacts = runs.fetch_artifacts(view.session_id, view.task_id, None, self._settings.verdict_timeout_s)
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
        self._reopen_in_child()
        if self._ports.tasks is None:
            raise SettingsError("this client has no control API to ask about tasks")
        wait_s = self._settings.verdict_timeout_s if timeout_s is None else timeout_s
        return self._ports.tasks.fetch_task(task_id.lower(), wait_s, question)


def _load_kept(library: "ArtifactLibrary", references: Mapping[str, str]) -> Iterator[tuple[str, Json]]:
    """Yield names with values, without those that have expired."""
    for name, reference in references.items():
        with contextlib.suppress(ArtifactDeleted):
            yield name, json.loads(library.load(reference))


__all__ = ["TaskQuestions"]
