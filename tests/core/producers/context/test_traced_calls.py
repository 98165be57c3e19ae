"""`traced`: calls of functions, coroutines and generators as events of the current session."""

import asyncio
import functools
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from sessionary.producers import AsyncSessionClient, QueueFull, SessionClient, traced
from sessionary.producers.ports import OnReceipt, OutRecord
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.schemas.codec import Event
from sessionary.schemas.events import (
    StepFailed,
    StepStarted,
    StepSucceeded,
    ToolCallFailed,
    ToolCallStarted,
    ToolCallSucceeded,
)


@traced("tool")
def look_up(key: str) -> str:
    """Say what is known."""
    if key == "missing":
        raise KeyError(key)
    return key.upper()


@traced("tool", name="search", side_effect=True)
async def search_web(text: str) -> list[str]:
    await asyncio.sleep(0)
    if not text:
        raise ConnectionError("no answer")
    return [text]


@traced("plan")
def numbers(count: int) -> Iterator[int]:
    yield from range(count)


@traced("plan")
async def async_numbers(count: int) -> AsyncIterator[int]:
    for number in range(count):
        await asyncio.sleep(0)
        if number == 5:
            raise ValueError("five")
        yield number


def calls_of(memory: InMemoryTransport) -> list[Event]:
    return [event for event in memory.events() if event.envelope.event_type.startswith(("tool_", "step_"))]


def types_of(memory: InMemoryTransport) -> list[str]:
    return [event.envelope.event_type for event in calls_of(memory)]


def test_a_tool_call_reports_its_name_duration_and_error() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u"):
        assert look_up("x") == "X"
        with pytest.raises(KeyError):
            look_up("missing")
    started, succeeded, _, failed = calls_of(memory)
    assert isinstance(started.payload, ToolCallStarted)
    assert isinstance(succeeded.payload, ToolCallSucceeded)
    assert isinstance(failed.payload, ToolCallFailed)
    assert (started.payload.tool_name, started.payload.side_effect, started.payload.args_json) == (
        "look_up",
        False,
        "{}",
    )
    assert succeeded.payload.tool_call_id == started.payload.tool_call_id
    assert succeeded.payload.execution_time_ms is not None
    assert succeeded.envelope.causation_id == started.envelope.event_id
    assert (failed.payload.error.code, failed.payload.error.error_class) == ("KeyError", "fatal")
    assert failed.payload.execution_time_ms is not None


def test_a_traced_function_is_what_it_was() -> None:
    assert look_up.__doc__ == "Say what is known."
    assert inspect.iscoroutinefunction(search_web)
    assert inspect.isgeneratorfunction(numbers)
    assert inspect.isasyncgenfunction(async_numbers)
    assert look_up("x") == "X"  # outside any session
    assert list(numbers(2)) == [0, 1]
    assert asyncio.run(search_web("x")) == ["x"]


def test_methods_are_traced_too() -> None:
    class Tools:
        @traced("tool")
        def double(self, number: int) -> int:
            return 2 * number

        @staticmethod
        @traced("tool", name="own")
        def plain() -> int:
            return 3

    client, memory = memory_client()
    with client, client.session(user_id="u"):
        assert (Tools().double(4), Tools.plain()) == (8, 3)
    assert len(calls_of(memory)) == 4


def test_calls_within_calls_name_their_cause() -> None:
    client, memory = memory_client()

    @client.traced("plan")
    def make_plan() -> None:
        look_up("x")

    with client, client.session(user_id="u") as session, session.metadata(run_id="run"):
        make_plan()
    plan, tool, _, plan_end = calls_of(memory)
    assert (plan.payload, plan.envelope.run_id) == (StepStarted("plan make_plan", 0), "run")
    assert (tool.envelope.causation_id, tool.envelope.run_id) == (plan.envelope.event_id, "run")
    assert tool.envelope.step_id == plan.envelope.step_id == plan_end.envelope.step_id
    assert isinstance(plan_end.payload, StepSucceeded)


def test_generators_report_from_their_first_item_to_their_end() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        items = numbers(3)
        assert types_of(memory) == []
        next(items)
        assert types_of(memory) == ["step_started"]
        event_id = session.info("between")
        assert list(items) == [1, 2]
        assert types_of(memory) == ["step_started", "step_succeeded"]
        for number in numbers(3):
            if number == 1:
                break
    assert types_of(memory) == ["step_started", "step_succeeded"] * 2
    (between,) = (event for event in memory.events() if event.envelope.event_id == event_id)
    assert between.envelope.causation_id is None


def test_coroutines_and_asynchronous_generators() -> None:
    async def main() -> InMemoryTransport:
        sync_client, memory = memory_client()
        client = AsyncSessionClient.wrap(sync_client)
        async with client, client.session(user_id="u"):
            assert list(await asyncio.gather(search_web("a"), search_web("b"))) == [["a"], ["b"]]
            with pytest.raises(ConnectionError):
                await search_web("")
            assert [number async for number in async_numbers(2)] == [0, 1]
            with pytest.raises(ValueError, match="five"):
                [number async for number in async_numbers(9)]
            assert await asyncio.to_thread(look_up, "x") == "X"
        return memory

    memory = asyncio.run(main())
    first = calls_of(memory)[0].payload
    assert isinstance(first, ToolCallStarted)
    assert (first.tool_name, first.side_effect) == ("search", True)
    types = types_of(memory)
    assert types[:4] == ["tool_call_started"] * 2 + ["tool_call_succeeded"] * 2
    assert types[4:6] == ["tool_call_started", "tool_call_failed"]
    assert types[6:10] == ["step_started", "step_succeeded", "step_started", "step_failed"]
    assert types[10:] == ["tool_call_started", "tool_call_succeeded"]
    failed = calls_of(memory)[9].payload
    assert isinstance(failed, StepFailed)


def test_under_policy_block_the_event_loop_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    monkeypatch.setattr(InMemoryTransport, "may_block", True)
    send = InMemoryTransport.send

    def watched_send(self: InMemoryTransport, record: OutRecord, on_receipt: OnReceipt | None = None) -> None:
        if record.event_type.startswith("tool_"):
            threads.append(threading.get_ident())
        send(self, record, on_receipt)

    monkeypatch.setattr(InMemoryTransport, "send", watched_send)

    async def main() -> None:
        client = AsyncSessionClient.wrap(memory_client()[0])
        async with client, client.session(user_id="u"):
            await search_web("x")

    asyncio.run(main())
    assert len(threads) == 2
    assert threading.get_ident() not in threads


def failing_client(monkeypatch: pytest.MonkeyPatch, errors: list[Exception]) -> SessionClient:
    client, memory = memory_client()
    client.core.services = client.core.services._replace(on_error=errors.append)
    send = memory.send

    def refuse_tools(record: OutRecord, on_receipt: OnReceipt | None = None) -> None:
        if record.event_type.startswith("tool_"):
            raise QueueFull("no room")
        send(record, on_receipt)

    monkeypatch.setattr(memory, "send", refuse_tools)
    return client


def test_a_report_that_fails_never_reaches_the_function_or_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[Exception] = []
    with failing_client(monkeypatch, errors) as client, client.session(user_id="u") as session:
        assert look_up("x") == "X"
        assert [type(error) for error in errors] == [QueueFull]
        session.complete()
        assert look_up("x") == "X"
        with pytest.raises(KeyError):
            look_up("missing")


class Shop:
    """Each kind of callable that a class has."""

    @traced("tool", name="plain")
    def look(self, item: str) -> str:
        return item

    @traced("tool", name="class")
    @classmethod
    def look_by_class(cls, item: str) -> str:
        return f"{cls.__name__} {item}"

    @traced("tool", name="static")
    @staticmethod
    def look_without(item: str) -> str:
        return item

    async def __call__(self, item: str) -> str:
        await asyncio.sleep(0)
        return item

    async def read(self, item: str) -> AsyncIterator[str]:
        yield item


class Lines:
    def __call__(self, count: int) -> Iterator[int]:
        yield from range(count)


def test_methods_of_each_kind_are_traced() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u"):
        assert [Shop().look("a"), Shop.look_by_class("a"), Shop.look_without("a")] == ["a", "Shop a", "a"]
    started = [event.payload.tool_name for event in calls_of(memory) if isinstance(event.payload, ToolCallStarted)]
    assert started == ["plain", "class", "static"]
    assert types_of(memory) == ["tool_call_started", "tool_call_succeeded"] * 3


def test_partials_and_objects_that_are_called_have_a_name_and_an_end() -> None:
    shop = Shop()
    look = traced("tool")(functools.partial(shop.look.__wrapped__, shop))  # type: ignore[attr-defined]
    ask = traced("tool")(shop)
    client, memory = memory_client()

    async def work() -> str:
        answer = ask("b")
        assert types_of(memory) == ["tool_call_started", "tool_call_succeeded"]  # it has not begun
        return await answer

    with client, client.session(user_id="u"):
        assert look("a") == "a"
        assert asyncio.run(work()) == "b"
    started = [event.payload.tool_name for event in calls_of(memory) if isinstance(event.payload, ToolCallStarted)]
    assert started == ["look", "Shop"]
    assert types_of(memory) == ["tool_call_started", "tool_call_succeeded"] * 2


@pytest.mark.parametrize(
    "function",
    [
        functools.partial(numbers.__wrapped__, 2),  # type: ignore[attr-defined]
        functools.partial(Lines(), 2),
        lambda: (number for number in range(2)),
    ],
    ids=["partial", "object", "function that returns one"],
)
def test_a_generator_is_counted_to_its_end(function: Callable[[], Iterator[int]]) -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u"):
        items = traced("tool")(function)()
        assert next(items) == 0
        assert types_of(memory) == ["tool_call_started"]
        assert list(items) == [1]
    assert types_of(memory) == ["tool_call_started", "tool_call_succeeded"]


@pytest.mark.parametrize("kind", ["generator", "coroutine"])
def test_asynchronous_work_that_a_function_returns_is_counted_to_its_end(kind: str) -> None:
    client, memory = memory_client()

    async def work() -> None:
        if kind == "generator":
            items = traced("tool", name="read")(lambda: Shop().read("a"))()
            assert types_of(memory) == ["tool_call_started"]
            assert [item async for item in items] == ["a"]
        else:
            answer = traced("tool", name="read")(lambda: Shop()("a"))()
            assert types_of(memory) == ["tool_call_started"]
            assert await answer == "a"

    with client, client.session(user_id="u"):
        asyncio.run(work())
    assert types_of(memory) == ["tool_call_started", "tool_call_succeeded"]
