"""Heartbeats of an attached run: one every five seconds while it is silent, and none afterwards."""

import asyncio
import time
from collections.abc import Iterator

import pytest

from sessionary.producers import AsyncSessionClient, Limits, ProducerSettings, Session
from sessionary.producers.context import run_beats
from sessionary.producers.context.run_beats import RunBeats
from sessionary.producers.session.heartbeat import Heartbeats
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.producers.testing.clients import memory_ports
from sessionary.schemas.codec import Event
from sessionary.schemas.events import Heartbeat, RunCompleted
from tests.support.waiting import wait_until

# A transport that ends connections after 30 s of silence.
SHORT = Limits(model_ms=15_000, tool_ms=10_000, network_ms=5_000, override=True)

SETTINGS = ProducerSettings.from_env({})


def beats_of(memory: InMemoryTransport) -> list[Event]:
    return [event for event in memory.heartbeats() if event.envelope.run_id is not None]


def elapsed_of(memory: InMemoryTransport) -> list[float | None]:
    return [event.payload.elapsed_s for event in beats_of(memory) if isinstance(event.payload, Heartbeat)]


def test_a_main_task_that_is_silent_for_a_minute_beats_every_five_seconds_with_the_time_it_took() -> None:
    client, memory = memory_client(settings=SETTINGS)
    with client, client.session(user_id="u") as session:
        with session.run("train") as run:
            memory.advance(60.04)
        assert session.local_state == "Active"
    assert elapsed_of(memory) == [5.0 * number for number in range(1, 13)]
    assert {event.envelope.run_id for event in beats_of(memory)} == {run.run_id}
    assert memory.rejected_records() == []


def test_a_run_of_ten_minutes_with_heartbeats_never_hits_the_limit_of_thirty_seconds() -> None:
    client, memory = memory_client(settings=SETTINGS)
    with client, client.session(user_id="u", limits=SHORT) as session, session.run("train"):
        memory.advance(600)
        assert memory.view_session(session).state == "Active"
    assert len(beats_of(memory)) == 120


def test_without_heartbeats_a_run_hits_it_and_is_recorded_as_a_lost_connection() -> None:
    client, memory = memory_client(on_timed_out=lambda _: None, on_rejected=lambda _: None)
    with client, client.session(user_id="u", limits=SHORT) as session, session.run("train") as run:
        memory.silence(session)
        memory.advance(600)
    first = next(record for record in memory.audit() if record.run_id == run.run_id)
    assert (first.event_type, first.reason_code) == ("run_paused", "connection_lost")
    paused_at = first.appended_at / 1_000_000
    (started,) = (record for record in memory.audit() if record.transition == "T02")
    assert paused_at - started.appended_at / 1_000_000 == 30


def test_a_run_that_reports_by_itself_sends_no_beat() -> None:
    client, memory = memory_client(settings=SETTINGS)
    with client, client.session(user_id="u") as session, session.run("train") as run:
        for step in range(15):
            memory.advance(4)
            run.report_progress(step, 15)
        assert beats_of(memory) == []
        memory.advance(10)
        assert elapsed_of(memory) == [70.0]


def fail(session: Session, memory: InMemoryTransport, error: BaseException) -> None:
    with session.run("train"):
        memory.advance(7)
        raise error


@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt()])
def test_a_main_task_that_raises_stops_the_beats(error: BaseException) -> None:
    client, memory = memory_client(settings=SETTINGS)
    with client, client.session(user_id="u") as session:
        with pytest.raises(type(error)):
            fail(session, memory, error)
        memory.advance(60)
        assert elapsed_of(memory) == [5.0]


def test_no_beat_comes_after_the_completion_of_a_run_which_says_how_long_it_took() -> None:
    client, memory = memory_client(settings=SETTINGS)
    with client, client.session(user_id="u") as session:
        with session.run("train"):
            memory.advance(12.5)
        memory.advance(60)
    assert elapsed_of(memory) == [5.0, 10.0]
    (completed,) = (event.payload for event in memory.events() if isinstance(event.payload, RunCompleted))
    assert completed.duration_ms == 12_500


def test_a_held_session_has_no_beats_until_it_goes_on() -> None:
    client, memory = memory_client(settings=SETTINGS)
    with client, client.session(user_id="u") as session, session.run("train"):
        session.pause()
        memory.advance(20)
        assert beats_of(memory) == []
        session.resume()
        memory.advance(10)
        assert beats_of(memory) != []


def test_a_detached_run_and_one_of_an_agent_that_is_gone_do_not_beat() -> None:
    client, memory = memory_client(settings=SETTINGS)
    with client, client.session(user_id="u") as session:
        with session.run("train", mode="detached"):
            memory.advance(20)
        with session.run("train"):
            session.lifecycle.detach()
            memory.advance(20)
    assert beats_of(memory) == []


def test_a_cancelled_task_stops_the_beats() -> None:
    memory = InMemoryTransport()

    async def work() -> None:
        client = AsyncSessionClient(
            tenant_id="acme", service_id="service", agent_id="agent", settings=SETTINGS, ports=memory_ports(memory)
        )
        async with client, client.session(user_id="u") as session:
            started = asyncio.Event()

            async def train() -> None:
                async with session.run("train"):
                    memory.advance(5)
                    started.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(train())
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            memory.advance(60)

    asyncio.run(work())
    assert elapsed_of(memory) == [5.0]


class RealBeats:
    """Beats of a run by the timer's thread."""

    def __init__(self, timer: Heartbeats) -> None:
        self.sent: list[tuple[str, float]] = []
        self.beats = RunBeats(timer, lambda *beat: self.sent.append(beat), lambda: 0, time.monotonic)


@pytest.fixture
def timer() -> Iterator[Heartbeats]:
    def fail_loudly(error: Exception) -> None:
        raise error

    timer = Heartbeats(fail_loudly)
    yield timer
    timer.close(5.0)


def test_the_end_of_a_run_waits_for_no_interval(timer: Heartbeats, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_beats, "BEAT_S", 600.0)
    one = RealBeats(timer)
    one.beats.start("r1", is_attached=True)
    began_s = time.monotonic()
    one.beats.stop()
    assert time.monotonic() - began_s < run_beats.BEAT_S / 5


def test_what_stopped_beats_no_more_while_others_do(timer: Heartbeats, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_beats, "BEAT_S", 0.01)
    first, second = RealBeats(timer), RealBeats(timer)
    first.beats.start("r1", is_attached=True)
    wait_until(lambda: len(first.sent) > 2, 60, "the beats of a run", pause_s=0.01)
    first.beats.stop()
    first.beats.stop()
    ended = list(first.sent)
    second.beats.start("r2", is_attached=True)
    wait_until(lambda: len(second.sent) > 2, 60, "the beats of a run", pause_s=0.01)
    assert first.sent == ended
    assert [run_id for run_id, _ in second.sent[:3]] == ["r2"] * 3
