"""One agent of a session: its tasks, its shared results, its view of the others."""

import asyncio
from typing import Unpack

from sessionary.producers.agents.work import AgentView, AgentWork
from sessionary.producers.context.scope import EventMetadata
from sessionary.producers.ports import Json


class AsyncAgent:
    """One agent of a session. Made by `AsyncSession.agents.get`.

    Its verbs wait in a thread for the processor, so that the other agents see each reported result.
    """

    def __init__(self, work: AgentWork) -> None:
        self._work = work

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.agent_id}, role={self.role}, service_id={self.service_id}>"

    @property
    def agent_id(self) -> str:
        """The agent's id, unique in its session."""
        return self._work.member.agent_id

    @property
    def role(self) -> str:
        """The agent's role, which decides what the agent sees."""
        return self._work.member.role

    @property
    def service_id(self) -> str:
        """The agent's service, which is a member of the session."""
        return self._work.member.service_id

    @property
    def snapshot_id(self) -> str:
        """The last snapshot of the agent's state, as far as this object knows it."""
        return self._work.snapshot_id

    async def begin(self, task: str, **metadata: Unpack[EventMetadata]) -> str:
        """Begin a task; another current task of the agent counts as completed.

        Beginning the current task again is no error: an agent that died does not know of it.

        Returns:
            The id of the new snapshot of the agent's state.

        Raises:
            TaskDone: The agent completed this task before.
            Rejected: The processor rejects it; `broken_chain`: another process changed the tasks of
                this agent meanwhile. This object knows the newest snapshot then.
            Unavailable: The broker or the processor has not answered within `verdict_timeout_s`.

        Otherwise raises as `AsyncSession.emit` does.
        """
        return await asyncio.to_thread(self._work.update, task, None, metadata, completed=False)

    async def share(self, result: Json, **metadata: Unpack[EventMetadata]) -> str:
        """Share a result of the current task, which continues. A later result replaces it.

        Returns and raises as `finish` does.
        """
        return await asyncio.to_thread(self._work.update, None, result, metadata, completed=False)

    async def finish(self, result: Json = None, *, task: str | None = None, **metadata: Unpack[EventMetadata]) -> str:
        """Complete a task, and share its result under the agent's id, `_` and the task.

        Args:
            result: The result for the other agents, a JSON value; None: share none. A result of
                more than 16 Ki characters is stored as an artifact first.
            task: The task; by default the current one.
            metadata: As in `AsyncSession.emit`.

        Returns and raises as `begin` does; `Invalid` also if the agent has no current task.
        """
        return await asyncio.to_thread(self._work.update, task, result, metadata, completed=True)

    async def handoff(self, to: "str | AsyncAgent", *, context: Json = None, sync_type: str = "handoff") -> None:
        """Hand over to another agent: the taker's record refers to this agent's last snapshot.

        Args:
            to: The taker, or its id.
            context: Passed in addition to the shared results, and kept in the session's history.
            sync_type: Why, for programs.

        Raises as `begin` does; `Rejected` with `unknown_agent` if the taker is not registered.
        """
        await asyncio.to_thread(self._work.hand_over, to, context, sync_type)

    async def view(self, *, load_artifacts: bool = True) -> AgentView:
        """Return the agent's record, the results that it sees, and the agents on which it depends.

        A researcher sees nothing, an analyzer the results of researchers, a writer and any other
        role everything; the authors' roles decide. Waits and raises as `AsyncSession.sync` does.

        Args:
            load_artifacts: Load large results from the library. If not, the JSON of reference and
                summary is in their place.
        """
        return await asyncio.to_thread(self._work.view, load_artifacts=load_artifacts)


__all__ = ["AgentView", "AsyncAgent"]
