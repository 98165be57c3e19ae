"""The asyncio face: same verbs, same events."""

import asyncio

import pytest

from sessionary.producers import AsyncSessionClient, ProducerSettings
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.schemas.events import SessionStartFailed, SessionTerminated


def both(beat_s: float = 10.0) -> tuple[AsyncSessionClient, InMemoryTransport]:
    client, memory = memory_client(settings=ProducerSettings.from_env({}, heartbeat_interval_s=beat_s))
    return AsyncSessionClient(client=client), memory


def reasons(memory: InMemoryTransport) -> list[str]:
    return [e.payload.reason for e in memory.events() if isinstance(e.payload, SessionTerminated)]


def test_a_session_from_start_to_end() -> None:
    async def main() -> InMemoryTransport:
        client, memory = both()

        async def connect() -> None:
            await asyncio.sleep(0)

        async with client, client.session(user_id="u", state={"n": 1}, connect=connect) as s:
            await s.activity("llm")
            assert await s.update_state({"n": 2}) == 2
            await s.pause()
            assert await s.resume() == {"n": 2}
            await s.error(TimeoutError("x"))
            await s.recover()
            other = await client.attach(s.session_id)
            assert other.local_state == "Active"
            assert await client.flush() == 0
        return memory

    memory = asyncio.run(main())
    numbers = [event.envelope.producer_seq for event in memory.events()]
    assert numbers == list(range(1, len(numbers) + 1))
    assert reasons(memory) == ["closed"]


def test_a_cancelled_task_ends_its_session_abnormally() -> None:
    async def main() -> InMemoryTransport:
        client, memory = both()
        started = asyncio.Event()

        async def agent() -> None:
            async with client.session(user_id="u"):
                started.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(agent())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await client.close()
        return memory

    assert reasons(asyncio.run(main())) == ["abnormal_termination"]


def test_a_step_that_fails_ends_the_start() -> None:
    async def main() -> InMemoryTransport:
        client, memory = both()

        async def connect() -> None:
            raise ConnectionError("no")

        async with client:
            with pytest.raises(ConnectionError):
                async with client.session(user_id="u", connect=connect):
                    raise AssertionError("never entered")
        return memory

    failed = asyncio.run(main()).events()[-1].payload
    assert isinstance(failed, SessionStartFailed)
    assert failed.reason == "connection_failed"


def test_waiting_in_the_executor_leaves_the_session_with_the_loop() -> None:
    async def main() -> None:
        client, memory = both(beat_s=0.005)
        async with client, client.session(user_id="u") as s:
            await s.pause()
            await s.resume()
            seen = len(memory.heartbeats())
            async with asyncio.timeout(10):
                while len(memory.heartbeats()) < seen + 3:
                    await asyncio.sleep(0.005)

    asyncio.run(main())
