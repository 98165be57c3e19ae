"""The client's questions about tasks, for asyncio."""

import asyncio
from collections.abc import AsyncIterator

from sessionary.producers.lifetime.task_questions import TaskQuestions
from sessionary.producers.ports import Json, TaskView


class AsyncTaskQuestions:
    """The questions of `TaskQuestions`, which say more; none blocks the event loop."""

    _client: TaskQuestions

    async def check_task_status(self, task_id: str) -> dict[str, Json]:
        """Return a task's status: `{"task_id", "status", "progress", "task_type"}`."""
        return await asyncio.to_thread(self._client.check_task_status, task_id)

    async def get_task_results(self, task_id: str) -> dict[str, Json]:
        """Return a completed task's result: `{"task_id", "status", "result"}`."""
        return await asyncio.to_thread(self._client.get_task_results, task_id)

    async def find_task(self, task_id: str) -> TaskView | None:
        """Return all that is known of a task, its error too; None if it is unknown."""
        return await asyncio.to_thread(self._client.find_task, task_id)

    async def watch_task(self, task_id: str) -> AsyncIterator[TaskView]:
        """Yield a task as it is now, and again after each change, until it has finished."""
        views = self._client.watch_task(task_id)
        while (view := await asyncio.to_thread(next, views, None)) is not None:
            yield view


__all__ = ["AsyncTaskQuestions"]
