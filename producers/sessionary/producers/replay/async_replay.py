"""The block in which an agent's asyncio code runs over a session's record; see `replay`."""

import asyncio
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from types import TracebackType
from typing import Any, Self

from sessionary.producers.async_client import AsyncSessionClient
from sessionary.producers.async_client_parts import start_core_async
from sessionary.producers.client_core.core import ClientCore, over_core
from sessionary.producers.errors import Invalid
from sessionary.producers.replay.answers import ReplayPlan
from sessionary.producers.replay.replay import ReplayFace, ReplayWork
from sessionary.producers.session.async_session import AsyncSession


class AsyncReplay(ReplayFace):
    """A replay of a session, made by `AsyncSessionClient.replay`. Use it once, in `async with`."""

    def __init__(
        self, client: ClientCore, baseline: "Callable[[AsyncReplay], Awaitable[object]] | None", *plan: Any
    ) -> None:
        """`plan`: the fields of a `ReplayPlan`."""
        asked = ReplayPlan(*plan)
        asked.check(baseline)
        self._work, self._baseline = ReplayWork(client, asked), baseline

    @property
    def client(self) -> AsyncSessionClient:
        """The client for the agent's code, with the same names. In the block only."""
        assert self._work.core is not None, "use the replay in `async with`"
        return over_core(AsyncSessionClient, self._work.core)

    @property
    def past(self) -> AsyncSessionClient:
        """A client in memory of the state at the point: sessions, agents and turns as they were."""
        assert self._work.past is not None, "use the replay in `async with`"
        return over_core(AsyncSessionClient, self._work.past)

    def session(self) -> AsyncSession:
        """Return the session as the record has it, which `async with` creates and starts."""
        core = self.client.core
        return AsyncSession(start_core_async(core, self._work.new_session(), None, None, None))

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._work.read)
        if self._baseline is not None:
            await self._replay_baseline(self._baseline)
        await asyncio.to_thread(self._work.open)
        return self

    async def _replay_baseline(self, baseline: "Callable[[AsyncReplay], Awaitable[object]]") -> None:
        twin = AsyncReplay.__new__(AsyncReplay)
        twin._work, twin._baseline = self._work.twin(), None
        is_async = None
        try:
            async with twin:
                made = baseline(twin)
                is_async = isawaitable(made)
                await made
        except Exception:  # noqa: BLE001 - the recorded agent may have failed; the comparison decides
            pass
        if is_async is False:
            raise Invalid("invalid_value", "baseline is no `async def`: an AsyncSessionClient awaits it")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return await asyncio.to_thread(self._work.close, error)
