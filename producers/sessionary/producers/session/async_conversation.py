"""The conversation and the agents of a session, and what it reads, for asyncio."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Unpack

from sessionary.producers.agents.async_agent import AsyncAgent
from sessionary.producers.context.marks import Marks
from sessionary.producers.ports import Json
from sessionary.producers.run_ports import AgentRecord, ArtifactView, ExecutionView, MessageView
from sessionary.producers.session.async_work import AsyncSessionWork
from sessionary.producers.session.conversation import LAST_DEFAULT, needs_library, result_text


class AsyncSessionConversation(AsyncSessionWork):
    """The verbs of `SessionConversation`, which say more; none blocks the event loop."""

    async def message(self, role: str, content: str, *, name: str | None = None, **marks: Unpack[Marks]) -> str:
        """Append a turn to the conversation. The processor numbers the turns as it accepts them.

        The last 200 turns can be read (`conversation`). A text of more than 16 Ki characters is
        stored as an artifact first, for which the verb waits; if it is cancelled meanwhile, there
        is no turn.

        Args:
            role: Who speaks, in the agent's own words: `user`, `assistant` …
            content: The text.
            name: Name of the person or agent that speaks, if there are several.
            marks: As in `emit`.

        Returns the event's id. Raises as `Session.message` does.
        """
        session = self.sync_session
        if isinstance(content, str) and needs_library(content):
            turn = await asyncio.to_thread(session._store_turn, role, content, name, marks)
            return await self._run_verb(session._send_turn, turn, marks)
        return await self._run_verb(session.message, role, content, name=name, **marks)

    async def tool_message(self, tool_name: str, result: Json, **marks: Unpack[Marks]) -> str:
        """Append a tool's result to the conversation, as a turn of the role `tool`.

        A text is the turn's content as it is, any other value its JSON. The call itself is recorded
        by `@tool`. Returns and raises as `message` does.
        """
        return await self.message("tool", result_text(result), name=tool_name, **marks)

    async def conversation(self, last: int = LAST_DEFAULT, *, load_artifacts: bool = True) -> Sequence[MessageView]:
        """Return the last turns of the conversation in order, whichever process sent them.

        Args:
            last: How many turns, from 0 to 200.
            load_artifacts: Load large texts from the library. If not, `content` is the reference.

        Waits and raises as `Session.conversation` does.
        """
        return await asyncio.to_thread(self.sync_session.conversation, last, load_artifacts=load_artifacts)

    async def execution(self) -> ExecutionView:
        """Return what the session is at: its open runs, their steps and tool calls.

        Waits and raises as `sync` does.
        """
        return await asyncio.to_thread(self.sync_session.execution)

    async def list_artifacts(self, run_id: str | None = None) -> Sequence[ArtifactView]:
        """Return the artifacts of a run in the order of their creation; none of an unknown run.

        `run_id`: None for those that belong to no run. Waits and raises as `sync` does.
        """
        return await asyncio.to_thread(self.sync_session.list_artifacts, run_id)

    async def verify(self) -> None:
        """Compare version and hash of the state that this object knows with the processor's.

        Adopts nothing, as `sync` would. Raises `StateMismatch` if they differ; otherwise as `sync`.
        """
        await asyncio.to_thread(self.sync_session.verify)


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
        if not session._agent_count:
            return await super().update_state(state, wait=wait, **marks)
        return await asyncio.to_thread(session.update_state, state, **marks)


__all__ = ["AsyncSessionAgents", "AsyncSessionConversation"]
