"""One agent of a session for asyncio: the verbs of `Agent`, which says more."""

import asyncio
from typing import Unpack

from sessionary.producers.agents.agent import Agent, AgentView
from sessionary.producers.context.marks import Marks
from sessionary.producers.ports import Json


class AsyncAgent:
    """One agent of a session, for asyncio. Made by `AsyncSession.agent`.

    Has the verbs of `Agent`, with the same arguments and errors. They wait in a thread: a verb that
    is cancelled may still be carried out.
    """

    def __init__(self, agent: Agent) -> None:
        self.sync_agent = agent

    @property
    def agent_id(self) -> str:
        """The agent's id, unique in its session."""
        return self.sync_agent.agent_id

    @property
    def role(self) -> str:
        """What the agent does, and so what it sees."""
        return self.sync_agent.role

    @property
    def service_id(self) -> str:
        """The agent's service, which is a member of the session."""
        return self.sync_agent.service_id

    @property
    def snapshot_id(self) -> str:
        """The last snapshot of the agent's state, as far as this object knows it."""
        return self.sync_agent.snapshot_id

    async def begin(self, task: str, **marks: Unpack[Marks]) -> str:
        """Begin a task; the agent's current one, if there is another, counts as completed.

        Returns and raises as `Agent.begin` does.
        """
        return await asyncio.to_thread(self.sync_agent.begin, task, **marks)

    async def share(self, result: Json, **marks: Unpack[Marks]) -> str:
        """Share a result of the current task, which goes on. Returns and raises as `begin` does."""
        return await asyncio.to_thread(self.sync_agent.share, result, **marks)

    async def finish(self, result: Json = None, *, task: str | None = None, **marks: Unpack[Marks]) -> str:
        """Complete a task, by default the current one, and share its result.

        Returns and raises as `Agent.finish` does.
        """
        return await asyncio.to_thread(self.sync_agent.finish, result, task=task, **marks)

    async def handoff(self, to: "str | AsyncAgent", *, context: Json = None, sync_type: str = "handoff") -> None:
        """Hand over to another agent, or to the one of an id. Raises as `Agent.handoff` does."""
        taker = to if isinstance(to, str) else to.agent_id
        await asyncio.to_thread(self.sync_agent.handoff, taker, context=context, sync_type=sync_type)

    async def view(self, *, load_artifacts: bool = True) -> AgentView:
        """Return the agent's record, what it sees of the others, and on whom it depends.

        Waits and raises as `Agent.view` does.
        """
        return await asyncio.to_thread(self.sync_agent.view, load_artifacts=load_artifacts)


__all__ = ["AsyncAgent"]
