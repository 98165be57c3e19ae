"""A client's reads of tasks, and their cancellation, in any process of the tenant.

A task's id is sufficient.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from sessionary.producers.client_core.core import ClientCore
from sessionary.producers.context.scope import current_traceparent
from sessionary.producers.delivery.emitter import EnvelopeFields
from sessionary.producers.durable.large_values import INTERMEDIATE, load_value
from sessionary.producers.durable.recorder import wait_recorded
from sessionary.producers.errors import ArtifactDeleted, Invalid, Rejected, RunGone, SessionLost, SettingsError
from sessionary.producers.ports import Json, TaskFilter, TaskLookup, TaskQuestion, TaskView
from sessionary.producers.run_ports import FINISHED_STATES
from sessionary.producers.session.pending_verdict import PendingVerdict
from sessionary.producers.verdicts.local_checks import check_user
from sessionary.schemas.events import RunCancelled
from sessionary.schemas.ids import SessionKey

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


def cancelled_answer(task_id: str, view: TaskView | None, *, by_this_call: bool) -> dict[str, Json]:
    """Return the outcome of a cancellation: task_id and status; or an error.

    `view`: the task after it.
    """
    if view is None:
        return {"error": NOT_FOUND}
    if view.state != "cancelled":
        return {"error": f"task not cancelled. Current status: {status_of(view)}"}
    return {"task_id": task_id, "status": "cancelled"} if by_this_call else {"error": "task already cancelled"}


_WATCH_S = 10.0  # how long one question waits for a change
_STATES: Final = ("queued", "started", "running", "paused", *sorted(FINISHED_STATES))
_PART: Final = 100  # tasks of a list that are asked for at once


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

    def list_all(self, user: str | None, state: str | None) -> Iterator[TaskView]:
        """Return the tenant's tasks, part by part. Raises as `SessionClient.list_tasks`."""
        if state is not None and state not in _STATES:
            raise Invalid("invalid_value", f"state is {state!r}: use one of {', '.join(_STATES)}")
        if user is not None:
            check_user(user)
        return self._list_parts(TaskFilter(user, state, _PART))

    def _list_parts(self, wanted: TaskFilter) -> Iterator[TaskView]:
        while True:
            part = self._lookup().fetch_tasks(wanted, self._core.settings.verdict_timeout_s)
            yield from part.tasks
            if part.next_cursor is None:
                return
            wanted = wanted._replace(cursor=part.next_cursor)

    def cancel(self, task_id: str, reason: str | None) -> dict[str, Json]:
        """Cancel a task. Raises as `SessionClient.cancel_task`."""
        timeout_s = self._core.settings.verdict_timeout_s
        try:
            view = self.find(task_id)
            if view is None or view.state in FINISHED_STATES:
                return cancelled_answer(task_id, view, by_this_call=False)
            emitter = self._core.new_emitter(SessionKey(self._core.tenant_id, view.session_id), None, ())
            sent = PendingVerdict("cancel_task", "run_cancelled", "")
            fields = EnvelopeFields(run_id=view.task_id, traceparent=current_traceparent())
            sent.event_id = emitter.emit(RunCancelled(reason), fields, sent.on_receipt)
            log_position = wait_recorded(sent, "run_cancelled", timeout_s)
            view = self._ask_task(task_id, TaskQuestion(after=log_position))
        except RunGone:
            return {"error": GONE}
        if view is None or view.verdict is None:
            return cancelled_answer(task_id, view, by_this_call=True)
        if view.verdict.reason is not None and view.state not in FINISHED_STATES:
            raise Rejected("run_cancelled", view.verdict.reason)
        return cancelled_answer(task_id, view, by_this_call=view.verdict.applied)

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
        lookup = self._lookup()
        wait_s = self._core.settings.verdict_timeout_s if timeout_s is None else timeout_s
        return lookup.fetch_task(task_id.lower(), wait_s, question)

    def _lookup(self) -> TaskLookup:
        self._core.reopen_in_child()
        if self._core.ports.tasks is None:
            raise SettingsError("this client has no control API to ask about tasks")
        return self._core.ports.tasks


def _load_kept(library: "ArtifactLibrary", references: Mapping[str, str]) -> Iterator[tuple[str, Json]]:
    """Yield names with values, without those that have expired."""
    for name, reference in references.items():
        with contextlib.suppress(ArtifactDeleted):
            yield name, json.loads(library.load(reference))
