"""`@tool` on each kind of callable, and results that JSON cannot hold."""

import asyncio
import datetime
import decimal
import functools
import json
import math
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from sessionary.producers import Invalid, Retry, Session, TookEffect, tool, traced
from sessionary.producers.tasks.worker import task
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.schemas.events import ToolCallFailed, ToolCallStarted, ToolCallSucceeded


class Shop:
    """A shop whose methods are tools; it notes what was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    @tool(effect="read")
    def price(self, item: str) -> int:
        self.asked.append(item)
        return len(self.asked)

    @tool(effect="read")
    async def stock(self, item: str) -> int:
        await asyncio.sleep(0)
        self.asked.append(item)
        return len(self.asked)

    @tool(effect="read")
    @classmethod
    def name(cls, item: str) -> str:
        return f"{cls.__name__} {item}"

    @classmethod
    @tool(effect="read")
    def title(cls, item: str) -> str:
        return f"{cls.__name__} {item}"

    @tool(effect="read")
    @staticmethod
    def tax(item: str) -> str:
        return item


class Sender:
    def __init__(self) -> None:
        self.sent: list[str] = []

    def __call__(self, text: str) -> str:
        self.sent.append(text)
        return text.upper()


class AsyncSender(Sender):
    async def __call__(self, text: str) -> str:  # type: ignore[override]
        await asyncio.sleep(0)
        self.sent.append(text)
        return text.upper()


def calls(memory: InMemoryTransport) -> list[tuple[str, str]]:
    payloads = [event.payload for event in memory.events()]
    return [(each.tool_name, each.args_json) for each in payloads if isinstance(each, ToolCallStarted)]


def test_a_method_is_a_tool_whose_arguments_are_without_its_object() -> None:
    client, memory = memory_client()
    first, second = Shop(), Shop()
    with client, client.session(user_id="u"):
        assert [first.price("tea"), first.price("tea"), second.price("tea")] == [1, 2, 1]
        assert asyncio.run(second.stock("tea")) == 2
        assert [Shop.name("tea"), first.title("tea"), Shop.tax("tea")] == ["Shop tea", "Shop tea", "tea"]
    args = '{"item":"tea"}'
    assert calls(memory) == [(name, args) for name in ("price", "price", "price", "stock", "name", "title", "tax")]
    assert memory.rejections() == []


def test_what_a_partial_was_given_is_a_part_of_its_calls() -> None:
    sent: list[tuple[str, str]] = []

    def send(channel: str, text: str, *, mark: str = "-") -> str:
        sent.append((channel, text))
        return channel + mark + text

    partials = [functools.partial(send, "a"), functools.partial(functools.partial(send, mark="+"), "b")]
    client, memory = memory_client()
    with client, client.session(user_id="u"):
        assert [tool(effect="write")(each)("hi") for each in partials] == ["a-hi", "b+hi"]
    assert calls(memory) == [
        ("send", '{"channel":"a","mark":"-","text":"hi"}'),
        ("send", '{"channel":"b","mark":"+","text":"hi"}'),
    ]


def test_objects_that_are_called_are_tools() -> None:
    sender, later = Sender(), AsyncSender()
    send, send_later = tool(effect="write")(sender), tool(effect="write")(later)
    bound = tool(effect="write", name="bound")(functools.partial(later, "c"))
    client, memory = memory_client()

    async def work() -> list[Any]:
        return [await send_later("a"), await send_later("a"), await bound()]

    with client, client.session(user_id="u"):
        assert [send("a"), send("a")] == ["A", "A"]
        assert asyncio.run(work()) == ["A", "A", "C"]
    assert (sender.sent, later.sent) == (["a", "a"], ["a", "a", "c"])
    assert [name for name, _ in calls(memory)] == ["Sender", "Sender", "AsyncSender", "AsyncSender", "bound"]


def items() -> Iterator[int]:
    yield 1


async def async_items() -> AsyncIterator[int]:
    yield 1


class Items:
    def __call__(self) -> Iterator[int]:
        yield 1


@pytest.mark.parametrize("function", [items, async_items, functools.partial(items), Items()])
def test_a_generator_function_is_refused_with_a_sentence(function: Callable[..., Any]) -> None:
    for decorate in (tool(effect="read"), tool):
        with pytest.raises(Invalid, match=r"is (a|an async) generator, of which no result .* use @traced"):
            decorate(function)


@tool
def send(text: str) -> str:
    """Send a text."""
    return text.upper()


@tool
async def send_later(text: str) -> str:
    return text.upper()


class Mail:
    @tool
    def write(self, text: str) -> str:
        return text.upper()

    @tool
    @staticmethod
    def file(text: str) -> str:
        return text.upper()


def test_a_tool_without_brackets_is_one() -> None:
    assert (send.__name__, send.__doc__, send("outside")) == ("send", "Send a text.", "OUTSIDE")
    client, memory = memory_client()
    with client, client.session(user_id="u"):
        assert [send("a"), asyncio.run(send_later("b")), Mail().write("c"), Mail.file("d")] == ["A", "B", "C", "D"]
    assert [name for name, _ in calls(memory)] == ["send", "send_later", "write", "file"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"effect": "reed"}, "effect is 'reed': use 'read', 'write' or 'unknown'"),
        ({"name": 5}, "name is 5: use a text"),
        ({"key": "k"}, "key is 'k': use a function"),
        ({"query": 5}, "query is 5: use a function"),
        ({"once": "no"}, "once is 'no': use True or False"),
        *[({"retry": bad}, "use Retry") for bad in (3, True, Retry(retries=-1), Retry(base_ms="1"))],  # type: ignore[arg-type]
        *[({"retry": Retry(jitter=float("nan"))}, "use Retry"), ({"retry": Retry(retries=1.5)}, "use Retry")],  # type: ignore[arg-type]
        *[({"deadline": bad}, "deadline is .*: use seconds from 0.001") for bad in ("5", 0, -1, math.nan, math.inf)],
        ({"deadline": datetime.timedelta(seconds=5)}, "deadline is .*: use seconds from 0.001"),
        *[({"calls_per_s": bad}, "calls_per_s is .*: use a number above 0") for bad in ("5", 0, -1, math.nan, True)],
        *[({"wait_s": bad}, "wait_s is .*: use seconds from 0") for bad in ("1", -1, math.nan, math.inf, None)],
    ],
    ids=str,
)
def test_an_argument_that_makes_no_sense_is_named_with_what_does(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(Invalid, match=said):
        tool(**arguments)


def test_what_has_no_signature_is_no_tool() -> None:
    with pytest.raises(Invalid, match="the arguments of dict cannot be read: put it into a function"):
        tool(dict)


@pytest.mark.parametrize("decorate", [tool, tool(effect="read"), traced("plan"), task("train")])
@pytest.mark.parametrize("nothing", ["send_mail", 5, {"effect": "read"}, property(lambda _: 1)])
def test_what_cannot_be_called_cannot_be_decorated(decorate: Callable[[Any], Any], nothing: object) -> None:
    with pytest.raises(Invalid, match="cannot be called: decorate a function"):
        decorate(nothing)


@pytest.mark.parametrize("word", [items, None, "", 5])
def test_a_decorator_without_its_word_says_how_it_is_written(word: Any) -> None:
    client, _ = memory_client()
    with client:
        for decorator, written in ((traced, "traced"), (client.traced, "traced"), (task, "task")):
            with pytest.raises(Invalid, match=rf'was given .*, no text: write @{written}\("'):
                decorator(word)


async def answer() -> str:
    return "a"


@pytest.mark.parametrize("function", [lambda: items(), lambda: async_items(), lambda: answer()])
def test_work_that_is_still_to_be_done_is_no_result(function: Callable[[], Any]) -> None:
    client, memory = memory_client()
    with (
        client,
        client.session(user_id="u"),
        pytest.raises(Invalid, match=r"returned a value of type \w+, whose work is not done yet"),
    ):
        tool(effect="write", name="later")(function)()
    payloads = [event.payload for event in memory.events()]
    assert any(isinstance(each, ToolCallFailed) for each in payloads)
    assert not any(isinstance(each, ToolCallSucceeded) for each in payloads)


def test_a_coroutine_function_that_returns_a_generator_has_no_result() -> None:
    @tool(effect="read")
    async def read() -> Iterator[int]:
        return items()

    client, _ = memory_client()
    with client, client.session(user_id="u"), pytest.raises(Invalid, match="whose work is not done yet"):
        asyncio.run(read())


class Broken:
    def __str__(self) -> str:
        raise ValueError


AT = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
UNFIT = pytest.mark.parametrize(
    ("value", "stored"),
    [
        (AT, {"text": "2026-01-01 00:00:00+00:00", "type": "datetime.datetime"}),
        ({"amount": decimal.Decimal("1.10")}, {"text": "{'amount': Decimal('1.10')}", "type": "dict"}),
        ({1: "a"}, {"text": "{1: 'a'}", "type": "dict"}),
        (float("nan"), {"text": "nan", "type": "float"}),
        (b"\xff", {"text": "b'\\xff'", "type": "bytes"}),
        (Broken(), {"text": "(its text cannot be made: ValueError)", "type": f"{__name__}.Broken"}),
    ],
)


def in_run(session: Session, call: Callable[[], Any]) -> Any:
    run = session.run("shop", run_id="r")
    run.__enter__()
    result = call()
    run._leave_metadata()
    return result


@UNFIT
@pytest.mark.parametrize("effect", ["read", "write"])
def test_a_result_that_json_cannot_hold_is_kept_as_text_with_its_type(value: Any, stored: Any, effect: Any) -> None:
    made: list[int] = []

    @tool(effect=effect)
    def make() -> Any:
        made.append(1)
        return value

    client, memory = memory_client()
    other, _ = memory_client(memory=memory)
    with client, other, client.session(user_id="u") as session:
        assert in_run(session, make) is value
        with other.attach(session.session_id) as same:
            with same.resume_run("r"):
                assert make() == stored
            same.lifecycle.detach()
    assert made == [1]
    (succeeded,) = [event.payload for event in memory.events() if isinstance(event.payload, ToolCallSucceeded)]
    assert json.loads(succeeded.result_json or "") == stored
    assert memory.rejections() == []


def test_the_answer_of_a_query_that_json_cannot_hold_is_kept_as_text() -> None:
    client, memory = memory_client()
    failures = [TimeoutError("answer lost")]

    @tool(effect="write", query=lambda key: TookEffect({"at": AT}))
    def pay() -> Any:
        raise failures.pop()

    with client, client.session(user_id="u"):
        assert pay() == {"at": AT}
    (succeeded,) = [event.payload for event in memory.events() if isinstance(event.payload, ToolCallSucceeded)]
    assert json.loads(succeeded.result_json or "")["type"] == "dict"
