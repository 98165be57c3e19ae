"""The control API's page of a task: a run that is asked for by its id alone.

    GET /v1/tasks/{task_id}?seen=<version>&wait_ms=<ms>

The id tells the partition, whose owner knows the session. With `seen` the answer waits until the
task is no longer as the caller saw it.
"""

import time

from aiohttp.web import Request, Response

from sessionary.schemas.ids import run_key
from sessionary.schemas.records import FinishedRun, RunState
from sessionary.stream_processors.api.problems import json_response
from sessionary.stream_processors.api.runs.run_pages import run_document
from sessionary.stream_processors.api.session_questions import AskedOwner, SessionQuestions, log_document


class TaskPages:
    """Answers the requests for tasks of one worker."""

    def __init__(self, questions: SessionQuestions) -> None:
        self._questions = questions

    async def task(self, request: Request) -> Response:
        """Answer `GET /v1/tasks/{task_id}` with `run_document`, and the task's `version`.

        A finished task is there for 30 days. With `seen`, waits up to `wait_ms` while that is still
        the version. Raises `Problem`: 404 if the tenant has no such task, 410 if it vanished.
        """
        task_id, seen = request.match_info["task_id"].lower(), request.query.get("seen")
        deadline_s: float | None = None
        while True:
            asked = await self._questions.ask_task(request, task_id)
            if isinstance(asked, Response):
                return asked
            deadline_s = deadline_s or time.monotonic() + asked.question.wait_s
            row = asked.owner.state.rows[run_key(*asked.question.key, task_id)]
            version, left_s = task_version(row), deadline_s - time.monotonic()
            if version != seen or left_s <= 0 or not await _has_moved_on(asked, left_s):
                document = {**run_document(row, asked.owner.state), "version": version}
                return json_response({**document, **log_document(asked)})


async def _has_moved_on(asked: AskedOwner, timeout_s: float) -> bool:
    """Wait for a further record of the task's partition; return False after `timeout_s`."""
    return await asked.owner.wait_until_committed(asked.owner.state.position.next_offset, timeout_s)


def task_version(row: RunState | FinishedRun) -> str:
    """Return what differs whenever an event or a clock has changed a task."""
    return f"{row.run_seq}.{row.state}"
