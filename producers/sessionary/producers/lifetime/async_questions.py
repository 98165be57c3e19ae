"""The client's questions about tasks and conversations, for asyncio."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from sessionary.producers.following.async_follower import AsyncSessionFollower
from sessionary.producers.lifetime.follow_questions import FollowQuestions
from sessionary.producers.ports import Json, TaskView
from sessionary.producers.run_ports import MessageView
from sessionary.producers.session.async_session import AsyncSession
from sessionary.producers.session.conversation import LAST_DEFAULT
from sessionary.producers.session.session import Session


class AsyncQuestions:
    """The questions of `TaskQuestions`, `ConversationQuestions` and `FollowQuestions`.

    Those say more.

    None blocks the event loop.
    """

    _client: FollowQuestions

    def follow(self, session: str | Session | AsyncSession, *, timeout_s: float | None = None) -> AsyncSessionFollower:
        """Follow a session: its state as it is committed now, then each change of it.

        For `async for`; not a coroutine. `session`: a session, or its id. `timeout_s`: end an
        iteration if there is no change for so long; a later one goes on.
        """
        return AsyncSessionFollower(self._client.follow(session), timeout_s)

    async def conversation(
        self, session: str | Session | AsyncSession, last: int = LAST_DEFAULT, *, load_artifacts: bool = True
    ) -> Sequence[MessageView]:
        """Return the last turns of a session's conversation in order, whichever process sent them.

        `session`: a session, or its id. `last`: how many turns, from 0 to 200.
        """
        return await asyncio.to_thread(self._client.conversation, session, last, load_artifacts=load_artifacts)

    async def check_task_status(self, task_id: str) -> dict[str, Json]:
        """Return a task's status: `{"task_id", "status", "progress", "task_type"}`."""
        return await asyncio.to_thread(self._client.check_task_status, task_id)

    async def get_task_results(self, task_id: str) -> dict[str, Json]:
        """Return a completed task's result: `{"task_id", "status", "result"}`."""
        return await asyncio.to_thread(self._client.get_task_results, task_id)

    async def get_intermediate_results(self, task_id: str) -> dict[str, Json]:
        """Return what a task saved so far: `{"task_id", "status", "results"}`."""
        return await asyncio.to_thread(self._client.get_intermediate_results, task_id)

    async def find_task(self, task_id: str) -> TaskView | None:
        """Return all that is known of a task, its error too; None if it is unknown."""
        return await asyncio.to_thread(self._client.find_task, task_id)

    async def watch_task(self, task_id: str) -> AsyncIterator[TaskView]:
        """Yield a task as it is now, and again after each change, until it has finished."""
        views = self._client.watch_task(task_id)
        while (view := await asyncio.to_thread(next, views, None)) is not None:
            yield view


__all__ = ["AsyncQuestions"]
