"""The conversation of a session, and what it reads of the processor, for asyncio."""

import asyncio
from collections.abc import Sequence
from typing import Unpack

from sessionary.producers.context.marks import Marks
from sessionary.producers.ports import Json
from sessionary.producers.run_ports import ArtifactView, ExecutionView, MessageView
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


__all__ = ["AsyncSessionConversation"]
