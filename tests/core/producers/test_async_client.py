"""The asyncio face: same verbs, same events."""

import asyncio
import threading
import uuid
from datetime import UTC, datetime

import pytest

from sessionary.producers import AsyncSessionClient, ProducerSettings, SessionClient
from sessionary.producers.ports import OnReceipt, OutRecord
from sessionary.producers.testing import InMemoryTransport, memory_client, memory_ports
from sessionary.schemas.codec import Event
from sessionary.schemas.events import LlmDecision, SessionStartFailed, SessionTerminated
from tests.core.producers.beating_client import beating_client

IDS = [str(uuid.uuid5(uuid.NAMESPACE_OID, str(n))) for n in range(5)]


def new_client() -> tuple[AsyncSessionClient, InMemoryTransport]:
    client, memory = memory_client()
    return AsyncSessionClient.wrap(client), memory


def end_reasons(memory: InMemoryTransport) -> list[str]:
    return [e.payload.reason for e in memory.events() if isinstance(e.payload, SessionTerminated)]


def test_a_session_from_start_to_end() -> None:
    async def main() -> InMemoryTransport:
        client, memory = new_client()

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
    assert end_reasons(memory) == ["closed"]


def test_a_cancelled_task_cancels_its_session() -> None:
    async def main() -> InMemoryTransport:
        client, memory = new_client()
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

    assert end_reasons(asyncio.run(main())) == ["cancelled"]


def test_a_step_that_fails_ends_the_start() -> None:
    async def main() -> InMemoryTransport:
        client, memory = new_client()

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
        real, memory = beating_client(ProducerSettings.from_env({}, heartbeat_interval_s=0.005))
        client = AsyncSessionClient.wrap(real)
        async with client, client.session(user_id="u") as s:
            await s.pause()
            await s.resume()
            seen = len(memory.heartbeats())
            async with asyncio.timeout(60):
                while len(memory.heartbeats()) < seen + 3:
                    await asyncio.sleep(0.005)

    asyncio.run(main())


def test_every_verb_sends_what_its_counterpart_sends() -> None:
    moment = datetime(2026, 11, 22, tzinfo=UTC)

    def sync_life(client: SessionClient) -> None:
        parent = client.create(user_id="u", session_id=IDS[0], state_schema_version=2).start()
        parent.context_bytes = 5
        parent.emit(LlmDecision(chosen_tools=("search",)), run_id="r", actor="boss", occurred_at=moment)
        parent.info("text")
        parent.progress(1, 2, "half")
        parent.usage(model="m", tokens_in=3, tool_cost_usd_nanos=4)
        parent.snapshot()
        parent.lifecycle.enter_phase("updating")
        assert (parent.epoch, parent.version, parent.context_bytes, parent.state) == (1, 1, 5, {})
        assert parent.sync().state == "Active"
        parent.error(TimeoutError("x"))
        parent.recover("plan")
        parent.cancel("stop")
        client.create(user_id="u", session_id=IDS[1], parent=IDS[0]).lifecycle.fail_start("invalid_config", "no")
        client.session(user_id="u", session_id=IDS[2]).lifecycle.force_close("now")
        client.session(user_id="u", session_id=IDS[3]).complete("done")
        left = client.session(user_id="u", session_id=IDS[4])
        left.lifecycle.detach()
        left.close()

    async def async_life(client: AsyncSessionClient) -> None:
        parent = await (await client.create(user_id="u", session_id=IDS[0], state_schema_version=2)).start()
        parent.context_bytes = 5
        await parent.emit(LlmDecision(chosen_tools=("search",)), run_id="r", actor="boss", occurred_at=moment)
        await parent.info("text")
        await parent.progress(1, 2, "half")
        await parent.usage(model="m", tokens_in=3, tool_cost_usd_nanos=4)
        await parent.snapshot()
        await parent.lifecycle.enter_phase("updating")
        assert (parent.epoch, parent.version, parent.context_bytes, parent.state) == (1, 1, 5, {})
        assert (await parent.sync()).state == "Active"
        await parent.error(TimeoutError("x"))
        await parent.recover("plan")
        await parent.cancel("stop")
        failing = await client.create(user_id="u", session_id=IDS[1], parent=IDS[0])
        await failing.lifecycle.fail_start("invalid_config", "no")
        async with client.session(user_id="u", session_id=IDS[2]) as forced:
            await forced.lifecycle.force_close("now")
        async with client.session(user_id="u", session_id=IDS[3]) as completed:
            await completed.complete("done")
        async with client.session(user_id="u", session_id=IDS[4]) as left:
            left.lifecycle.detach()
            await left.close()

    sync_client, expected = memory_client()
    with sync_client:
        sync_life(sync_client)
    client, memory = new_client()
    asyncio.run(async_life(client))
    asyncio.run(client.close())
    assert [comparable(event) for event in memory.events()] == [comparable(event) for event in expected.events()]
    assert len(memory.events()) > 20


def comparable(event: Event) -> tuple[object, ...]:
    """What does not differ from run to run: not ids and times that the client drew."""
    envelope = event.envelope
    payload = {name: value for name, value in event.payload._asdict().items() if "snapshot" not in name}
    sent = (envelope.session_id, envelope.producer_seq, envelope.epoch, envelope.run_id, envelope.context_bytes)
    return (envelope.event_type, *sent, envelope.run_id and envelope.occurred_at, envelope.actor, payload)


def test_under_policy_block_verbs_leave_the_loop_free_and_the_session_ends() -> None:
    async def main() -> InMemoryTransport:
        memory = BlockingTransport()
        loop_thread = threading.current_thread()
        client = AsyncSessionClient(tenant_id="t", service_id="s", agent_id="a", ports=memory_ports(memory))
        async with client, client.session(user_id="u") as s:
            await s.activity("llm")
            assert client.may_block
            assert loop_thread not in memory.threads
        return memory

    memory = asyncio.run(main())
    assert end_reasons(memory) == ["closed"]


class BlockingTransport(InMemoryTransport):
    """Says that it may block, and keeps the threads that it was called on."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[threading.Thread] = set()

    @property
    def may_block(self) -> bool:
        return True

    def send(self, record: OutRecord, on_receipt: OnReceipt | None = None) -> None:
        self.threads.add(threading.current_thread())
        super().send(record, on_receipt)


def test_a_session_that_is_not_entered_says_how_to_open_it() -> None:
    client, _ = new_client()
    with pytest.raises(RuntimeError, match="async with"):
        _ = client.session(user_id="u").session_id
    assert client.producer_id == client.sync_client.producer_id
    assert client.counters.sent == 0
    client.sync_client.close()
