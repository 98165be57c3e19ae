"""A session's agents for asyncio: the verbs of `SessionAgents` and `Agent`, which say more."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Unpack

from sessionary.producers.agents.agent import Agent, AgentView
from sessionary.producers.context.marks import Marks
from sessionary.producers.ports import Json
from sessionary.producers.run_ports import AgentRecord
from sessionary.producers.session.async_conversation import AsyncSessionConversation


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


class AsyncSessionAgents(AsyncSessionConversation):
    """The verbs of `SessionAgents`, which say more; none blocks the event loop."""

    async def agent(
        self, agent_id: str, role: str | None = None, *, service_id: str | None = None, **marks: Unpack[Marks]
    ) -> AsyncAgent:
        """Return an agent of the session, registered if it is not yet; adopt as `sync` does.

        Args:
            agent_id: The agent's id, a name that is unique in its session.
            role: What the agent does: `researcher`, `analyzer`, `writer` or any other. None: the
                agent is registered already.
            service_id: The agent's service; by default this client's.
            marks: As in `emit`.

        Raises as `Session.agent` does.
        """
        session = self.sync_session
        return AsyncAgent(await asyncio.to_thread(session.agent, agent_id, role, service_id=service_id, **marks))

    async def agents(self) -> Sequence[AgentRecord]:
        """Return the session's agents in the order of their registration, without results.

        Waits and raises as `sync` does.
        """
        return await asyncio.to_thread(self.sync_session.agents)

    async def handoff(
        self,
        *,
        to: str | AsyncAgent,
        from_agent: str | AsyncAgent,
        context: Json = None,
        sync_type: str = "handoff",
        **marks: Unpack[Marks],
    ) -> None:
        """Hand over from an agent to another: the taker's record refers to the giver's snapshot.

        Raises as `Session.handoff` does.
        """
        giver = from_agent if isinstance(from_agent, str) else from_agent.sync_agent
        taker = to if isinstance(to, str) else to.agent_id
        hand_over = self.sync_session.handoff
        await asyncio.to_thread(hand_over, to=taker, from_agent=giver, context=context, sync_type=sync_type, **marks)

    async def update_state(self, state: Mapping[str, Json], *, wait: bool = True, **marks: Unpack[Marks]) -> int:
        """Replace the session's content, and wait until Kafka has the update.

        In a session with agents, as far as this object knows, the verb waits for the verdict,
        whatever `wait` says, so that no agent's update is lost unnoticed.

        Args:
            state: The new content, a JSON object of at most about 1 MiB.
            wait: Return once the broker has acknowledged the update, so that an answer that is
                given after it cannot be ahead of the recorded content. False: as `emit`, at once.
            marks: As in `emit`.

        Returns and raises as `Session.update_state` does.
        """
        session = self.sync_session
        if not session._agents:
            return await super().update_state(state, wait=wait, **marks)
        return await asyncio.to_thread(session.update_state, state, **marks)


__all__ = ["AsyncAgent", "AsyncSessionAgents"]
