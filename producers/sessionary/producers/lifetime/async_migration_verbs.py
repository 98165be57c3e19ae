"""The verbs by which a client for asyncio gets sessions of others: migrations, and claims."""

from collections.abc import Awaitable, Callable
from typing import Unpack

from sessionary.producers.context.marks import Marks
from sessionary.producers.lifetime.migration_verbs import MigrationVerbs
from sessionary.producers.migration.acceptor import CONCURRENCY
from sessionary.producers.migration.async_hand_over import hand_over_to_loop
from sessionary.producers.session.async_session import AsyncSession
from sessionary.producers.session.core import SessionCore
from sessionary.producers.session.heartbeat import BeatsWith

AsyncOnMigrated = Callable[[AsyncSession], Awaitable[object]]
"""A coroutine function that takes a session that has arrived. The program keeps it."""


class AsyncMigrationVerbs:
    """The verbs of `MigrationVerbs`, which say more."""

    _client: MigrationVerbs

    def accept_migrations(self, function: AsyncOnMigrated, *, concurrency: int = CONCURRENCY) -> None:
        """Take the sessions that migrate to this client's service. Call once per client.

        Threads load and accept each session; then the event loop that runs now awaits
        `function(session)`: the session is this service's, in the state it had, and beats. The
        program keeps it. Not a coroutine. In a forked child there is no such loop: make a client
        there.

        Args:
            function: A coroutine function; takes the `AsyncSession`. What it raises goes to
                `on_error`.
            concurrency: How many sessions are taken at once, from the first request until
                `function` returns.

        Raises as `SessionClient.accept_migrations` does, and `RuntimeError` outside an event loop.
        """
        client = self._client

        def pass_on(core: SessionCore) -> Awaitable[object]:
            return function(AsyncSession(core))

        client._take_migrations(hand_over_to_loop(pass_on, client._on_error), concurrency)

    async def claim(
        self,
        session_id: str,
        *,
        user_id: str | None = None,
        beats_with: BeatsWith = "process",
        **marks: Unpack[Marks],
    ) -> AsyncSession:
        """Take a session over from the process that holds it: `attach(take_over=True)`.

        A service may claim its own sessions at any time, another one's once that was silent for two
        heartbeats. The former holder is fenced off: what it still sends is refused, and it learns
        so within a heartbeat interval (`on_fenced`), if it has a control API. Unlike a migration,
        it is not asked, and the session is not held meanwhile.

        Args:
            session_id: The session's UUID.
            user_id: The user in the envelope of further events.
            beats_with: What the session's heartbeats end with, as in `attach`.
            marks: Of the take-over, as in `Marks`.

        Returns:
            The session, in the state in which the processor has it. Raises as `attach` does.
        """
        return await self.attach(session_id, user_id=user_id, take_over=True, beats_with=beats_with, **marks)

    async def attach(
        self,
        session_id: str,
        *,
        user_id: str | None = None,
        take_over: bool = False,
        beats_with: BeatsWith = "process",
        **marks: Unpack[Marks],
    ) -> AsyncSession:
        """Continue a session that exists."""
        raise NotImplementedError


__all__ = ["AsyncMigrationVerbs", "AsyncOnMigrated"]
