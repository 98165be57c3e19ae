"""A model that takes longer than `model_ms`: its answer is kept, and the call is told as slow."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from sessionary.producers import (
    AsyncSession,
    AsyncSessionClient,
    ModelSlow,
    ModelTimeout,
    ProducerSettings,
    Session,
    SessionClient,
)
from sessionary.producers.context import model_call
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.schemas.events import SessionActivity, StepFailed, StepSucceeded, UsageRecorded
from tests.support.module_time import set_module_time

LIMIT_S = 600  # of one call


def _settings(**more: Any) -> ProducerSettings:
    return ProducerSettings.from_env({}, **more)


def _told_client(**more: Any) -> tuple[SessionClient, InMemoryTransport, list[Exception]]:
    told: list[Exception] = []
    client, memory = memory_client(on_error=told.append, settings=_settings(**more))
    return client, memory, told


def _ask(session: Session, wait: Callable[[float], None], seconds: float) -> str:
    with session.llm("large") as call:
        wait(seconds)
        call.tokens_in = 100
    return "answer"


async def _ask_async(session: AsyncSession, wait: Callable[[float], None], seconds: float) -> str:
    async with session.llm("large") as call:
        wait(seconds)
        call.tokens_in = 100
    return "answer"


def _in_session(client: SessionClient, wait: Callable[[float], None], seconds: float) -> str:
    with client.session(user_id="u") as session:
        return _ask(session, wait, seconds)


def _in_step(client: SessionClient, wait: Callable[[float], None], seconds: float) -> str:
    with client.session(user_id="u") as session, session.run("report") as run:
        answer: str = run.step("draft", _ask, session, wait, seconds)
        return answer


def _in_async_session(client: SessionClient, wait: Callable[[float], None], seconds: float) -> str:
    async def work() -> str:
        async with AsyncSessionClient.wrap(client).session(user_id="u") as session:
            return await _ask_async(session, wait, seconds)

    return asyncio.run(work())


def _in_async_step(client: SessionClient, wait: Callable[[float], None], seconds: float) -> str:
    async def work() -> str:
        async with (
            AsyncSessionClient.wrap(client).session(user_id="u") as session,
            session.run("report") as run,
        ):
            answer: str = await run.step("draft", _ask_async, session, wait, seconds)
            return answer

    return asyncio.run(work())


PLACES = (_in_session, _in_step, _in_async_session, _in_async_step)
Place = Callable[[SessionClient, Callable[[float], None], float], str]


def _events(memory: InMemoryTransport, kind: type[Any]) -> list[Any]:
    return [event for event in memory.events() if isinstance(event.payload, kind)]


@pytest.mark.parametrize("place", PLACES)
def test_a_slow_answer_is_kept_and_told(place: Place) -> None:
    client, memory, told = _told_client()
    assert place(client, memory.advance, 120) == "answer"
    (slow,) = told
    assert isinstance(slow, ModelSlow)
    assert (slow.model, slow.took_ms, slow.limit_ms) == ("large", 120_000, 30_000)
    assert "its answer is kept" in str(slow)
    (event,) = _events(memory, SessionActivity)
    assert event.payload == SessionActivity("model_slow", "model large took 120 s, longer than model_ms (30 s)")
    (done,) = [one for one in _events(memory, StepSucceeded) if one.payload.name == "llm large"]
    assert done.payload.execution_time_ms == 120_000
    assert event.envelope.step_id == done.envelope.step_id
    assert event.envelope.run_id == done.envelope.run_id
    (usage,) = _events(memory, UsageRecorded)
    assert (usage.payload.tokens_in, usage.payload.is_timeout_retry) == (100, False)
    assert _events(memory, StepFailed) == []
    assert memory.rejections() == []
    assert [record for record in memory.audit() if record.due_at] == []
    assert len(memory.heartbeats()) >= 10


@pytest.mark.parametrize("place", PLACES)
def test_an_answer_in_time_is_no_news(place: Place) -> None:
    client, memory, told = _told_client()
    assert place(client, memory.advance, 30) == "answer"
    assert (told, _events(memory, SessionActivity)) == ([], [])


@pytest.mark.parametrize("place", PLACES)
def test_real_time_in_a_slow_call_moves_the_clock_of_a_memory(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    set_module_time(monkeypatch, model_call.__name__, monotonic=lambda: now_s)

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    client, memory, told = _told_client()
    before_ms = memory.now_ms
    assert place(client, sleep, 45) == "answer"
    assert memory.now_ms - before_ms == 45_000
    assert [type(error) for error in told] == [ModelSlow]
    (done,) = [one for one in _events(memory, StepSucceeded) if one.payload.name == "llm large"]
    assert done.payload.execution_time_ms == 45_000
    before_ms = memory.now_ms
    assert place(client, sleep, 2) == "answer"
    assert memory.now_ms == before_ms, "a test whose calls are fast has a clock that stands still"


@pytest.mark.parametrize("place", PLACES)
def test_a_call_over_the_hard_limit_fails(place: Place) -> None:
    client, memory, told = _told_client()
    with pytest.raises(ModelTimeout, match="model large took longer than its limit of 600s") as raised:
        place(client, memory.advance, LIMIT_S + 1)
    assert raised.value.limit_ms == LIMIT_S * 1_000
    assert [type(error) for error in told] == [ModelSlow]
    failed = [one.payload for one in _events(memory, StepFailed) if one.payload.name == "llm large"]
    assert [(one.error.error_class, one.error.code) for one in failed] == [("retryable", "model_limit")]


def test_the_hard_limit_is_a_setting_and_an_asyncio_call_is_cancelled_at_it() -> None:
    client, memory, _ = _told_client(model_call_limit_s=0.04)
    cancelled: list[bool] = []

    async def work() -> None:
        async with AsyncSessionClient.wrap(client).session(user_id="u") as session:
            with pytest.raises(ModelTimeout, match=r"its limit of 0\.04s"):
                await wait_for_ever(session)

    async def wait_for_ever(session: AsyncSession) -> None:
        async with session.llm("large"):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(True)
                raise

    asyncio.run(work())
    assert cancelled == [True]
    assert len(_events(memory, StepFailed)) == 1


def test_an_error_of_a_slow_call_is_the_one_that_is_raised() -> None:
    client, memory, told = _told_client()

    def fail(seconds: float) -> None:
        memory.advance(seconds)
        raise ValueError("no such model")

    with client.session(user_id="u") as session, pytest.raises(ValueError, match="no such model"):
        _ask(session, fail, 700)
    assert [type(error) for error in told] == [ModelSlow]
