"""Sessions that migrate between clients for asyncio, in memory."""

import asyncio
from collections.abc import Sequence

import pytest

from sessionary.producers import AsyncSession, AsyncSessionClient, SessionFenced
from tests.core.producers.migration.stage import Stage


def test_asyncio_moves_sessions_and_takes_them() -> None:
    async def run() -> None:
        stage = Stage()
        source, target = AsyncSessionClient.wrap(stage.source), AsyncSessionClient.wrap(stage.target)
        arrived: asyncio.Queue[AsyncSession] = asyncio.Queue()
        target.accept_migrations(arrived.put)
        async with source.session(user_id="u", state={"n": 1}) as session:
            done = await session.migration.move(to="shipping")
            moved = await arrived.get()
            assert (done.epoch, moved.epoch, moved.state) == (2, 2, {"n": 1})
            assert await moved.update_state({"n": 2}) == 2
            with pytest.raises(SessionFenced):
                await session.activity("x")
        assert (stage.memory.rejections(), stage.reported) == ([], [])

    asyncio.run(run())


def test_asyncio_s_function_may_fail_and_needs_a_loop() -> None:
    async def fail(session: AsyncSession) -> None:
        raise ValueError("no room")

    async def run() -> Sequence[Exception]:
        stage = Stage()
        AsyncSessionClient.wrap(stage.target).accept_migrations(fail)
        await asyncio.to_thread(stage.session().migration.move, to="shipping")
        while not stage.reported:
            await asyncio.sleep(0)
        return stage.reported

    (error,) = asyncio.run(run())
    assert f"{error}" == "no room"
    with pytest.raises(RuntimeError):
        AsyncSessionClient.wrap(Stage().target).accept_migrations(fail)
