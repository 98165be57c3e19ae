"""The client's questions about tasks. A task's id alone is enough, in any process of its tenant."""

from collections.abc import Iterator

from sessionary.producers.errors import SessionLost, SettingsError
from sessionary.producers.lifetime.bound_client import ProcessBoundClient
from sessionary.producers.lifetime.task_answers import result_answer, status_answer
from sessionary.producers.ports import Json, TaskQuestion, TaskView
from sessionary.producers.run_ports import FINISHED_STATES

_WATCH_S = 10.0  # how long one question waits for a change


class TaskQuestions(ProcessBoundClient):
    """The questions that a client asks about tasks. They wait as `Session.sync` does."""

    def check_task_status(self, task_id: str) -> dict[str, Json]:
        """Return a task's status: `{"task_id", "status", "progress", "task_type"}`.

        The status is started, running, paused, completed, failed or cancelled; the progress is from
        0 to 1. Of an unknown task, or one of another tenant: `{"error": "task not found"}`. A
        finished task is known for 30 days.

        Raises:
            Unavailable: The control API does not answer.
            AuthenticationFailed: The control API rejects our token.
            SettingsError: `SESSIONARY_CONTROL_URL` is not set.
        """
        return status_answer(task_id, self.find_task(task_id))

    def get_task_results(self, task_id: str) -> dict[str, Json]:
        """Return a completed task's result: `{"task_id", "status", "result"}`.

        Of any other task: `{"error": "task not completed. Current status: …"}`; of an unknown one:
        `{"error": "task not found"}`. Raises as `check_task_status`.
        """
        return result_answer(task_id, self.find_task(task_id))

    def find_task(self, task_id: str) -> TaskView | None:
        """Return all that is known of a task, its error too; None if it is unknown.

        Raises as `check_task_status`.
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

    def _ask_task(self, task_id: str, question: TaskQuestion, timeout_s: float | None = None) -> TaskView | None:
        self._reopen_in_child()
        if self._ports.tasks is None:
            raise SettingsError("this client has no control API to ask about tasks")
        wait_s = self._settings.verdict_timeout_s if timeout_s is None else timeout_s
        return self._ports.tasks.fetch_task(task_id.lower(), wait_s, question)


__all__ = ["TaskQuestions"]
