"""Verbs whose caller gives up: what comes later changes nothing that was left."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sessionary.producers import (
    AsyncSession,
    AsyncSessionClient,
    AuthenticationFailed,
    ProducerSettings,
    SessionClient,
    Unavailable,
)
from sessionary.producers.ports import OnReceipt, OutRecord, SessionView
from sessionary.producers.session.heartbeat import Heartbeats
from sessionary.producers.testing import InMemoryTransport, memory_client, memory_ports
from tests.core.producers.judged_memory import JudgedMemory
from tests.core.producers.sent_events import sent_types
from tests.support.waiting import wait_until

BEAT_S = 0.005
_BEYOND_BUDGET_S = 90.0  # more than a session may be silent by default


class SlowMemory(JudgedMemory):
    """The fold, behind a control API that holds its answers back while `hold_answers` lasts."""

    def __init__(self) -> None:
        super().__init__()
        self._answers = threading.Event()
        self._answers.set()
        self.asked = 0
        self.failure: Exception | None = None
        self._judging = threading.Lock()

    def send(self, record: OutRecord, on_receipt: OnReceipt | None = None) -> None:
        with self._judging:
            super().send(record, on_receipt)

    @contextmanager
    def hold_answers(self) -> Iterator[None]:
        self._answers.clear()
        try:
            yield
        finally:
            self._answers.set()

    def fetch_session(self, session_id: str, after: tuple[int, int] | None, timeout_s: float) -> SessionView:
        self.asked += 1
        if self.failure is not None:
            raise self.failure
        if not self._answers.wait(30):
            raise Unavailable("no answer", 1.0)
        return super().fetch_session(session_id, after, timeout_s)

    def send_heartbeat(self, record: OutRecord) -> None:
        InMemoryTransport.send_heartbeat(self, record)

    def open_client(self) -> tuple[SessionClient, list[Exception]]:
        errors: list[Exception] = []
        settings = ProducerSettings.from_env({}, heartbeat_interval_s=BEAT_S)
        client = SessionClient(
            tenant_id="acme",
            service_id="billing",
            agent_id="agent-1",
            settings=settings,
            on_error=errors.append,
            ports=memory_ports(self)._replace(heartbeats=None),
        )
        return client, errors

    def judged_state(self, session_id: str) -> str:
        """The session's state as the processor has it."""
        return super().fetch_session(session_id, None, 1.0).state


async def wait_for_beats(client: SessionClient, memory: SlowMemory) -> None:
    """Wait for ten heartbeats of a new session: the timer has passed all others."""
    other = client.session(user_id="other")
    async with asyncio.timeout(60):
        while sum(beat.envelope.session_id == other.session_id for beat in memory.heartbeats()) < 10:
            await asyncio.sleep(BEAT_S)
    other.close()


async def wait_for_silence(client: SessionClient, memory: SlowMemory, session_id: str) -> None:
    """Wait until a session sends no heartbeat while another one sends ten.

    One may be on its way when its end is judged, so the first count need not be the last.
    """

    def count() -> int:
        return sum(beat.envelope.session_id == session_id for beat in memory.heartbeats())

    async with asyncio.timeout(60):
        while True:
            before = count()
            await wait_for_beats(client, memory)
            if count() == before:
                return


@pytest.mark.parametrize(("verb", "granted"), [("resume", True), ("recover", True), ("recover", False)])
def test_a_session_that_was_left_while_its_verdict_was_open_ends_at_the_epoch_of_the_verdict(
    verb: str, granted: bool
) -> None:
    async def leave_too_soon(s: AsyncSession) -> None:
        async with s:
            await (s.pause() if verb == "resume" else s.error(TimeoutError("x"), retryable=granted))
            async with asyncio.timeout(0.05):
                await (s.resume() if verb == "resume" else s.recover())

    async def main() -> None:
        memory = SlowMemory()
        client, errors = memory.open_client()
        left = AsyncSessionClient.wrap(client).session(user_id="u")
        with memory.hold_answers():
            with pytest.raises(TimeoutError):
                await leave_too_soon(left)
            assert left.local_state == "Terminated"
        async with asyncio.timeout(60):
            while memory.judged_state(left.session_id) != "Terminated":
                await asyncio.sleep(BEAT_S)
        await wait_for_silence(client, memory, left.session_id)
        assert left.local_state == "Terminated"
        assert memory.outcomes.count("rejected stale_epoch") == granted
        client.close()
        assert errors == []

    asyncio.run(main())


def test_a_cancelled_resume_may_be_waited_for_again_and_is_sent_once() -> None:
    async def main() -> None:
        memory = SlowMemory()
        client, _ = memory.open_client()
        async with AsyncSessionClient.wrap(client).session(user_id="u", state={"n": 1}) as s:
            await s.pause()
            with memory.hold_answers():
                for _ in range(2):
                    with pytest.raises(TimeoutError):
                        async with asyncio.timeout(0.02):
                            await s.resume()
            assert await s.resume() == {"n": 1}
            assert (s.local_state, s.epoch) == ("Active", 2)
            await s.activity("on")
        assert set(memory.outcomes) == {"applied"}
        client.close()

    asyncio.run(main())


@pytest.mark.parametrize("end", ["detach", "close"])
def test_what_is_detached_or_closed_while_a_verdict_is_open_does_not_beat_after_it(end: str) -> None:
    async def main() -> None:
        memory = SlowMemory()
        client, _ = memory.open_client()
        s = await AsyncSessionClient.wrap(client).create(user_id="u")
        await s.start()
        await s.pause()
        with memory.hold_answers():
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await s.resume()
            if end == "detach":
                s.lifecycle.detach()
            else:
                await s.close()
        expected = "Active" if end == "detach" else "Terminated"
        wait_until(lambda: memory.judged_state(s.session_id) == expected, 20, expected)
        await wait_for_silence(client, memory, s.session_id)
        client.close()

    asyncio.run(main())


def test_a_cancelled_sync_does_not_revive_a_session_that_was_ended_meanwhile() -> None:
    async def main() -> None:
        memory = SlowMemory()
        client, _ = memory.open_client()
        fetched = threading.Event()
        fetch = memory.fetch_session

        def fetch_before_the_end(session_id: str, after: tuple[int, int] | None, timeout_s: float) -> SessionView:
            view = SlowMemory.fetch_session(memory, session_id, after, timeout_s)
            fetched.set()
            release.wait(60)
            return view

        release = threading.Event()
        memory.fetch_session = fetch_before_the_end  # type: ignore[method-assign]
        s = await AsyncSessionClient.wrap(client).create(user_id="u")
        await s.start()
        task = asyncio.create_task(s.sync())
        assert await asyncio.to_thread(fetched.wait, 60)
        task.cancel()
        await s.complete()
        memory.fetch_session = fetch  # type: ignore[method-assign]
        release.set()
        await wait_for_beats(client, memory)
        assert s.local_state == "Terminated"
        client.close()

    asyncio.run(main())


def test_a_cancelled_take_over_leaves_nothing_that_beats() -> None:
    async def main() -> None:
        memory = SlowMemory()
        holder, _ = memory.open_client()
        client, _ = memory.open_client()
        session = holder.session(user_id="u")
        session.lifecycle.detach()
        sent, beats = len(memory.outcomes), len(memory.heartbeats())
        # Before anything was read: nothing is sent.
        with memory.hold_answers(), pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await AsyncSessionClient.wrap(client).attach(session.session_id, take_over=True)
        assert len(memory.heartbeats()) == beats
        # While the verdict on the take-over is open.
        taken, asked = threading.Event(), list[int]()
        send = memory.send

        def send_take_over(record: OutRecord, on_receipt: OnReceipt | None = None) -> None:
            memory._answers.clear()
            asked.append(memory.asked)
            send(record, on_receipt)
            taken.set()

        memory.send = send_take_over  # type: ignore[method-assign]
        task = asyncio.create_task(AsyncSessionClient.wrap(client).attach(session.session_id, take_over=True))
        assert await asyncio.to_thread(taken.wait, 60)
        memory.send = send  # type: ignore[method-assign]
        while memory.asked == asked[0]:
            await asyncio.sleep(BEAT_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        beats = len(memory.heartbeats())
        memory._answers.set()
        await wait_for_beats(client, memory)
        assert memory.outcomes[sent:].count("applied") >= 1
        assert isinstance(client.core.heartbeats, Heartbeats)
        assert not client.core.heartbeats._live
        assert not any(beat.envelope.session_id == session.session_id for beat in memory.heartbeats()[beats:])
        holder.close()
        client.close()

    asyncio.run(main())


@pytest.mark.parametrize("moment", ["create", "start"])
def test_under_policy_block_a_session_whose_entry_was_cancelled_is_ended(moment: str) -> None:
    async def main() -> None:
        memory = BlockingMemory("session_created" if moment == "create" else "session_started")
        client = AsyncSessionClient(
            tenant_id="acme", service_id="s", agent_id="a", ports=memory_ports(memory)._replace(heartbeats=None)
        )

        async def enter() -> None:
            async with client.session(user_id="u"):
                raise AssertionError("never entered")

        task = asyncio.create_task(enter())
        assert await asyncio.to_thread(memory.reached.wait, 60)
        task.cancel()
        threading.Timer(0.05, memory.room.set).start()
        with pytest.raises(asyncio.CancelledError):
            await task
        wait_until(lambda: ends_of(memory) == 1, 60, "the end of the session")
        await client.close()
        assert ends_of(memory) == 1

    asyncio.run(main())


def ends_of(memory: InMemoryTransport) -> int:
    return sum(sent in ("session_terminated", "session_start_failed") for sent in sent_types(memory))


class BlockingMemory(InMemoryTransport):
    """Waits for room before it takes an event of one type."""

    def __init__(self, waits_for: str) -> None:
        super().__init__()
        self._waits_for = waits_for
        self.reached, self.room = threading.Event(), threading.Event()

    @property
    def may_block(self) -> bool:
        return True

    def send(self, record: OutRecord, on_receipt: OnReceipt | None = None) -> None:
        if record.event_type == self._waits_for:
            self.reached.set()
            assert self.room.wait(60)
        super().send(record, on_receipt)


def test_after_a_verdict_that_can_never_come_the_session_can_be_closed_or_asked_again() -> None:
    memory = SlowMemory()
    client, _ = memory.open_client()
    s = client.session(user_id="u")
    s.pause()
    memory.failure = AuthenticationFailed("the token is wrong")
    with pytest.raises(AuthenticationFailed):
        s.resume()
    s.close()
    assert s.local_state == "Terminated"
    client.close()


def test_a_session_can_be_closed_while_a_verdict_is_awaited_and_ends_at_its_new_epoch() -> None:
    memory = SlowMemory()
    client, errors = memory.open_client()
    with client:
        s = client.session(user_id="u")
        s.pause()
        memory.failure = Unavailable("the control API is away", 1.0)
        with pytest.raises(Unavailable):
            s.resume()
        s.close()
        assert s.local_state == "Terminated"
        memory.failure = None
    assert memory.judged_state(s.session_id) == "Terminated"
    assert errors == []


@pytest.mark.parametrize("how", ["close", "with"])
@pytest.mark.parametrize("state", ["Paused", "Error", "Timeout"])
def test_what_is_closed_while_its_verdict_is_open_is_ended_by_its_agent_and_not_by_a_clock(
    state: str, how: str
) -> None:
    client, memory = memory_client()
    s = client.session(user_id="u")
    if state == "Paused":
        s.pause()
    elif state == "Error":
        s.error(TimeoutError("x"))
    else:
        s.lifecycle.detach()
        memory.advance(_BEYOND_BUDGET_S)
        s.sync()
    assert s.local_state == state

    def ask_in_vain() -> None:
        memory.silence_control(silent=True)
        with pytest.raises(Unavailable):
            s.recover() if state == "Error" else s.resume()

    if how == "with":
        with s:
            ask_in_vain()
    else:
        ask_in_vain()
        s.close()
    memory.advance(_BEYOND_BUDGET_S)
    memory.silence_control(silent=False)
    wait_until(lambda: memory.fetch_session(s.session_id, None, 1.0).state == "Terminated", 60, "its end")
    assert memory.fetch_session(s.session_id, None, 1.0).reason_code == "closed"
    beats = len(memory.heartbeats())
    memory.advance(_BEYOND_BUDGET_S)
    assert len(memory.heartbeats()) == beats
    client.close()


def test_an_earlier_call_that_still_waits_for_a_verdict_does_not_bring_old_content_back() -> None:
    memory = SlowMemory()
    client, _ = memory.open_client()
    s = client.session(user_id="u", state={"n": 1})
    s.pause()
    asked, release = threading.Event(), threading.Event()

    def fetch_late(session_id: str, after: tuple[int, int] | None, timeout_s: float) -> SessionView:
        view = SlowMemory.fetch_session(memory, session_id, after, timeout_s)
        if threading.current_thread() is earlier:
            asked.set()
            assert release.wait(60)
        return view

    memory.fetch_session = fetch_late  # type: ignore[method-assign]
    earlier = threading.Thread(target=s.resume)  # as the thread of a cancelled call does
    earlier.start()
    assert asked.wait(60)
    assert s.resume() == {"n": 1}
    s.update_state({"n": 2})
    release.set()
    earlier.join(60)
    assert not earlier.is_alive()
    assert s.state == {"n": 2}
    client.close()
