"""Following a session in an event loop."""

import asyncio

import pytest

from sessionary.producers import AsyncSessionClient, AsyncSessionFollower, SessionFollower, SessionLost, Unavailable
from sessionary.producers.testing import memory_client
from tests.core.producers.scripted_follows import ARCHIVED, SESSION_ID, ScriptedFollows, state_at

LOST = Unavailable("the stream is over", 0.1)


def follower_of(follows: ScriptedFollows, timeout_s: float | None = None) -> AsyncSessionFollower:
    return AsyncSessionFollower(SessionFollower(follows, SESSION_ID, lambda: None, 20.0), timeout_s)


def test_states_come_in_order_and_end_with_the_session() -> None:
    async def check() -> None:
        memory_of, memory = memory_client()
        client = AsyncSessionClient.wrap(memory_of)
        session = await client.create(user_id="u", state={"n": 0})
        async with client.follow(session, timeout_s=20) as follower:
            found = [(view := await anext(follower)).version, view.state]
            await session.start()
            while view.state != "Active":
                view = await anext(follower)
            await session.update_state({"n": 1})
            while view.version == 1:
                view = await anext(follower)
            assert [*found, view.version, view.state_json] == [1, "Idle", 2, '{"n":1}']
            await session.close()
            memory.advance(1e6)
            states = [view.state async for view in follower]
            assert states in (["Terminated"], [])
            assert follower.is_archived
        await client.close()

    asyncio.run(check())


def test_a_caller_that_is_cancelled_loses_no_state() -> None:
    async def check() -> None:
        follows = ScriptedFollows([state_at(5, 1)])
        follower = follower_of(follows)
        assert (await anext(follower)).version == 1
        waiting = asyncio.create_task(follower.wait_next())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        follows.opened[0]._steps.append(state_at(6, 2))
        follows._streams = [[state_at(7, 3), ARCHIVED]]
        follows.opened[0].close()  # the next read finds the step, or the next stream
        found = [view.version async for view in follower]
        assert found[-1] == 3
        assert found == sorted(found)

    asyncio.run(check())


def test_the_newest_state_is_kept_for_a_slow_reader() -> None:
    async def check() -> None:
        follows = ScriptedFollows([*(state_at(5 + n, n) for n in range(1, 50)), ARCHIVED])
        follower = follower_of(follows)
        assert await follower.wait_next(20) is not None
        async with asyncio.timeout(60):
            while not follower.is_archived:
                await asyncio.sleep(0.001)
        found = [view.version async for view in follower]
        assert len(found) <= 1

    asyncio.run(check())


def test_errors_are_raised_in_the_task_that_waits_and_a_time_ends_an_iteration() -> None:
    async def check() -> None:
        follower = follower_of(ScriptedFollows(SessionLost("unknown")))
        with pytest.raises(SessionLost):
            await anext(follower)
        assert await follower.wait_next(20) is None
        quiet = follower_of(ScriptedFollows([state_at(5, 1)]), timeout_s=0.05)
        assert await quiet.wait_next(20) is not None
        assert [view async for view in quiet] == []
        await quiet.close()
        assert await quiet.wait_next(20) is None

    asyncio.run(check())


def test_closing_ends_the_wait_and_the_thread() -> None:
    async def check() -> None:
        follows = ScriptedFollows([state_at(5, 1)])
        follower = follower_of(follows)
        assert (await anext(follower)).version == 1
        waiting = asyncio.create_task(follower.wait_next())
        await asyncio.sleep(0)
        await follower.close()
        assert await asyncio.wait_for(waiting, 20) is None
        assert follower._thread is not None
        await asyncio.to_thread(follower._thread.join, 60)
        assert not follower._thread.is_alive()

    asyncio.run(check())
