"""`traced(capture=True)`: arguments and results of calls in their events."""

import asyncio
import functools
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sessionary.producers import AsyncSessionClient, Invalid, SessionClient, Unavailable, traced
from sessionary.producers.artifacts import ArtifactLibrary
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.schemas.events import (
    ArtifactCreated,
    StepFailed,
    StepStarted,
    StepSucceeded,
    ToolCallFailed,
    ToolCallStarted,
    ToolCallSucceeded,
)

LARGE = "x" * (300 << 10)  # for the library
HUGE = "x" * (2 << 20)  # larger than an event


class Place:
    """What JSON cannot hold."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return f"Place {self.name}"


PLACE_TYPE = f"{Place.__module__}.Place"


def record(*calls: Callable[[], object], artifacts: ArtifactLibrary | None = None) -> InMemoryTransport:
    client, memory = memory_client(artifacts=artifacts)
    with client, client.session(user_id="u"):
        for call in calls:
            call()
    assert memory.rejections() == []
    return memory


def inputs(memory: InMemoryTransport) -> list[Any]:
    texts = [
        payload.args_json if isinstance(payload, ToolCallStarted) else payload.input_json
        for payload in (event.payload for event in memory.events())
        if isinstance(payload, ToolCallStarted | StepStarted)
    ]
    return [None if text is None else json.loads(text) for text in texts]


def outputs(memory: InMemoryTransport) -> list[Any]:
    texts = [
        payload.result_json if isinstance(payload, ToolCallSucceeded) else payload.output_json
        for payload in (event.payload for event in memory.events())
        if isinstance(payload, ToolCallSucceeded | StepSucceeded)
    ]
    return [None if text is None else json.loads(text) for text in texts]


@pytest.mark.parametrize("kind", ["tool", "plan"])
def test_arguments_and_result_are_kept_by_name_with_defaults(kind: str) -> None:
    @traced(kind, capture=True)
    def add(first: int, *rest: int, scale: int = 2, **more: int) -> int:
        return (first + sum(rest) + sum(more.values())) * scale

    memory = record(lambda: add(1, 2, 3, other=4))
    assert inputs(memory) == [{"first": 1, "rest": [2, 3], "scale": 2, "more": {"other": 4}}]
    assert outputs(memory) == [20]


def test_nothing_is_kept_without_capture() -> None:
    @traced("tool")
    def tool(text: str) -> str:
        return text

    @traced("plan")
    def plan(text: str) -> str:
        return text

    memory = record(lambda: tool("secret"), lambda: plan("secret"))
    assert (inputs(memory), outputs(memory)) == ([{}, None], [None, None])


def test_arguments_are_kept_as_they_were_before_the_call() -> None:
    @traced("plan", capture=True)
    def take(items: list[int]) -> list[int]:
        items.pop()
        return items

    memory = record(lambda: take([1, 2]))
    assert (inputs(memory), outputs(memory)) == ([{"items": [1, 2]}], [[1]])


class Agent:
    """Its methods are traced."""

    @traced("plan", capture=True)
    def method(self, a: int) -> int:
        return a

    @classmethod
    @traced("plan", capture=True)
    def of_class(cls, a: int) -> int:
        return a

    @traced("plan", capture=True)
    @staticmethod
    def static(a: int) -> int:
        return a

    def __call__(self, a: int) -> int:
        return a


@pytest.mark.parametrize(
    "function",
    [
        Agent().method,
        Agent.of_class,
        Agent.static,
        traced("plan", capture=True)(Agent()),
        traced("plan", capture=True)(functools.partial(lambda a: a)),
        traced("plan", capture=True)(functools.partial(lambda a, **_: a)),
    ],
    ids=["method", "class method", "static method", "object", "partial", "partial of any"],
)
def test_methods_partials_and_objects_have_no_receiver(function: Callable[[int], int]) -> None:
    memory = record(lambda: function(5))
    (given,) = inputs(memory)
    assert given["a"] == 5
    assert given.keys() <= {"a", "_"}
    assert outputs(memory) == [5]


def test_what_a_partial_was_given_is_kept_and_can_be_left_out() -> None:
    def search(query: str, token: str, limit: int) -> int:
        return limit

    kept = traced("plan", capture=True)(functools.partial(search, token="s3cr3t", limit=3))
    hidden = traced("plan", capture=True, omit="token")(functools.partial(search, token="s3cr3t", limit=3))
    memory = record(lambda: kept("a"), lambda: hidden("a"))
    assert inputs(memory) == [{"query": "a", "token": "s3cr3t", "limit": 3}, {"query": "a", "limit": 3}]


def test_the_decorator_of_a_client_captures_too() -> None:
    client, _ = memory_client()
    with client:
        memory = record(lambda: client.traced("plan", capture=True, omit="token")(lambda a, token: a)(5, token="s"))
    assert (inputs(memory), outputs(memory)) == ([{"a": 5}], [5])


@pytest.mark.parametrize("omit", ["password", ["password"], ("password", "pin"), {"password"}])
def test_arguments_that_are_left_out_are_in_no_event(omit: Any) -> None:
    @traced("tool", capture=True, omit=omit)
    def log_in(user: str, password: str = "s3cr3t", **more: str) -> str:
        return user

    memory = record(
        lambda: log_in("ann", "s3cr3t"),
        lambda: log_in("ann", password="s3cr3t"),
        lambda: log_in("ann"),
        lambda: log_in("ann", note="n"),
    )
    assert [given["user"] for given in inputs(memory)] == ["ann"] * 4
    assert inputs(memory)[3]["more"] == {"note": "n"}
    assert not any("s3cr3t" in f"{event.payload}" for event in memory.events())


def test_names_among_the_arguments_by_any_name_are_left_out_too() -> None:
    @traced("tool", capture=True, omit="api_key")
    def call(**options: str) -> None:
        return None

    assert inputs(record(lambda: call(api_key="s3cr3t", model="m"))) == [{"options": {"model": "m"}}]


def test_a_misspelt_name_to_leave_out_is_refused() -> None:
    with pytest.raises(Invalid, match="omit names 'pasword', which log_in does not take"):

        @traced("tool", capture=True, omit="pasword")
        def log_in(user: str, password: str) -> None: ...


@pytest.mark.parametrize("omit", [5, None, [5], ["a", None]])
def test_what_is_no_name_to_leave_out_is_refused(omit: Any) -> None:
    with pytest.raises(Invalid, match="use the name of an argument, or several"):
        traced("tool", capture=True, omit=omit)(lambda a: a)


def test_a_name_of_a_call_is_a_text() -> None:
    with pytest.raises(Invalid, match="name is 5: use a text"):
        traced("tool", name=5)  # type: ignore[arg-type]


def test_a_function_without_a_signature_keeps_its_arguments_by_position() -> None:
    memory = record(
        lambda: traced("plan", capture=True)(max)(1, 2),
        lambda: traced("plan", capture=True, omit="key")(max)([1, 2], key=None),
    )
    assert (inputs(memory), outputs(memory)) == ([{"args": [1, 2]}, {}], [2, 2])


def test_wrong_arguments_raise_as_without_capture() -> None:
    @traced("plan", capture=True)
    def one(a: int) -> int:
        return a

    def call_wrong() -> None:
        with pytest.raises(TypeError, match="unexpected keyword argument 'b'"):
            one(b=1)  # type: ignore[call-arg]

    memory = record(call_wrong)
    assert inputs(memory) == [None]
    assert [type(event.payload) for event in memory.events() if isinstance(event.payload, StepFailed)] == [StepFailed]


def cycle() -> list[Any]:
    items: list[Any] = [1]
    items.append(items)
    return items


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (Place("A"), {"text": "Place A", "type": PLACE_TYPE}),
        ({"to": [Place("A"), 1]}, {"to": [{"text": "Place A", "type": PLACE_TYPE}, 1]}),
        ({1: "a"}, {"text": "{1: 'a'}", "type": "dict"}),
        ({"a": {1, 2}}, {"a": {"text": "{1, 2}", "type": "set"}}),
        (float("nan"), {"text": "nan", "type": "float"}),
        (b"\x00a", {"text": "b'\\x00a'", "type": "bytes"}),
        (cycle(), [1, {"text": "[1, [...]]", "type": "list"}]),
        ("\ud800", "�"),
        (None, None),
    ],
    ids=["object", "nested", "keys", "set", "nan", "bytes", "cycle", "surrogate", "none"],
)
def test_what_json_cannot_hold_is_text_with_its_type(value: Any, kept: object) -> None:
    @traced("tool", capture=True)
    def echo(value: Any) -> Any:
        return value

    memory = record(lambda: echo(value))
    assert (inputs(memory), outputs(memory)) == ([{"value": kept}], [kept])


class Mute:
    """Its text cannot be made."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_a_value_without_a_text_disturbs_nothing() -> None:
    @traced("plan", capture=True)
    def echo(value: Any) -> Any:
        return value

    mute = Mute()
    results: list[object] = []
    memory = record(lambda: results.append(echo(mute)))
    assert results == [mute]
    assert outputs(memory) == [{"text": "(its text cannot be made: RuntimeError)", "type": f"{Place.__module__}.Mute"}]


@pytest.mark.parametrize("kind", ["tool", "plan"])
def test_a_large_value_is_kept_in_the_library(kind: str, tmp_path: Path) -> None:
    library = ArtifactLibrary(tmp_path)

    @traced(kind, capture=True)
    def echo(text: str) -> str:
        return text

    memory = record(lambda: echo(LARGE), artifacts=library)
    (given,), (result,) = inputs(memory), outputs(memory)
    assert json.loads(library.load(given["artifact_ref"])) == {"text": LARGE}
    assert json.loads(library.load(result["artifact_ref"])) == LARGE
    created = [event.payload for event in memory.events() if isinstance(event.payload, ArtifactCreated)]
    types = {"tool": ["tool_arguments", "tool_result"], "plan": ["step_input", "step_output"]}[kind]
    assert [artifact.artifact_type for artifact in created] == types
    for event in memory.events():
        if isinstance(event.payload, ToolCallSucceeded):
            assert event.payload.artifact_id == created[1].artifact_id


def test_a_large_value_is_kept_whole_in_its_event_without_a_library() -> None:
    @traced("plan", capture=True)
    def echo(text: str) -> str:
        return text

    memory = record(lambda: echo(LARGE))
    assert (inputs(memory), outputs(memory)) == ([{"text": LARGE}], [LARGE])


class AwayStore:
    """A store that takes nothing."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def refuse(*_: object) -> Any:
            raise Unavailable("the store is away", 1.0)

        return {"uri": lambda name: name}.get(name, refuse)


@pytest.mark.parametrize("library", [None, ArtifactLibrary(AwayStore())], ids=["none", "away"])
def test_a_value_larger_than_an_event_is_cut_with_a_mark(library: ArtifactLibrary | None) -> None:
    @traced("tool", capture=True)
    def echo(text: str, place: str) -> str:
        return text

    memory = record(lambda: echo(HUGE, "A"), artifacts=library)
    (given,), (result,) = inputs(memory), outputs(memory)
    assert given == {
        "text": {"text": f'"{HUGE[: (8 << 10) - 1]}…', "type": "str", "bytes": len(HUGE) + 2},
        "place": "A",
    }
    assert result == {"text": f'"{HUGE[: (16 << 10) - 1]}…', "type": "str", "bytes": len(HUGE) + 2}


def test_many_values_that_do_not_fit_together_are_cut() -> None:
    @traced("tool", capture=True)
    def take(**values: str) -> None: ...

    memory = record(lambda: take(**{f"v{number}": "\x01" * (32 << 10) for number in range(64)}))
    assert inputs(memory)[0]["values"]["type"] == "dict"


def test_the_store_s_fault_is_told() -> None:
    client, memory = memory_client(artifacts=ArtifactLibrary(AwayStore()))
    errors: list[Exception] = []
    client.core.services = client.core.services._replace(on_error=errors.append)

    @traced("tool", capture=True)
    def echo(text: str) -> str:
        return text

    with client, client.session(user_id="u"):
        echo(HUGE)
    assert len(errors) == 2
    assert all("the store is away" in f"{error}" for error in errors)
    assert len(outputs(memory)) == 1


def test_a_failed_call_has_its_arguments_and_no_result() -> None:
    @traced("tool", capture=True)
    def fail(text: str) -> None:
        raise KeyError(text)

    def call() -> None:
        with pytest.raises(KeyError):
            fail("a")

    memory = record(call)
    assert (inputs(memory), outputs(memory)) == ([{"text": "a"}], [])
    assert sum(isinstance(event.payload, ToolCallFailed) for event in memory.events()) == 1


@traced("plan", capture=True)
def numbers(count: int) -> Iterator[dict[str, int]]:
    item = {"n": 0}
    for number in range(count):
        item["n"] = number
        yield item


@pytest.mark.parametrize(
    ("use", "kept"),
    [
        (lambda: list(numbers(3)), [{"n": 0}, {"n": 1}, {"n": 2}]),
        (lambda: list(numbers(0)), []),
        (lambda: next(numbers(3)), [{"n": 0}]),
    ],
    ids=["whole", "empty", "left"],
)
def test_what_a_generator_yields_is_its_result(use: Callable[[], object], kept: object) -> None:
    memory = record(use)
    assert (outputs(memory), len(inputs(memory))) == ([kept], 1)


def test_a_generator_is_used_as_before() -> None:
    @traced("plan", capture=True)
    def talk() -> Iterator[str]:
        try:
            heard = yield "a"
            yield f"heard {heard}"
        except KeyError:
            yield "caught"
        return "end"  # type: ignore[return-value]

    found: list[object] = []

    def use() -> None:
        generator: Any = talk()
        found.extend([next(generator), generator.send(1), generator.throw(KeyError())])
        with pytest.raises(StopIteration) as ended:
            next(generator)
        found.append(ended.value.value)

    memory = record(use)
    assert found == ["a", "heard 1", "caught", "end"]
    assert outputs(memory) == [["a", "heard 1", "caught"]]


def test_of_a_long_generator_the_beginning_is_kept() -> None:
    @traced("plan", capture=True)
    def texts() -> Iterator[str]:
        for _ in range(2_000):
            yield "x" * (1 << 10)

    (found,) = outputs(record(lambda: list(texts())))
    assert found[-1] == "… 1,745 more"
    assert found[:-1] == ["x" * (1 << 10)] * 255


@pytest.mark.parametrize("with_library", [False, True])
def test_calls_in_asyncio_are_kept(with_library: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[bool] = []
    library = ArtifactLibrary(tmp_path)
    save = ArtifactLibrary.save

    def save_where(*args: Any, **kwargs: Any) -> Any:
        threads.append(asyncio._get_running_loop() is None)
        return save(*args, **kwargs)

    monkeypatch.setattr(ArtifactLibrary, "save", save_where)

    @traced("tool", capture=True, omit="key")
    async def fetch(text: str, key: str) -> str:
        await asyncio.sleep(0)
        return text

    @traced("plan", capture=True)
    async def stream(count: int) -> AsyncIterator[int]:
        for number in range(count):
            await asyncio.sleep(0)
            yield number

    async def main() -> InMemoryTransport:
        sync_client, memory = memory_client(artifacts=library if with_library else None)
        async with AsyncSessionClient.wrap(sync_client) as client, client.session(user_id="u"):
            assert await fetch(LARGE, "s3cr3t") == LARGE
            assert [number async for number in stream(3)] == [0, 1, 2]
        return memory

    memory = asyncio.run(main())
    assert outputs(memory)[1] == [0, 1, 2]
    assert inputs(memory)[1] == {"count": 3}
    if with_library:
        assert json.loads(library.load(inputs(memory)[0]["artifact_ref"])) == {"text": LARGE}
    assert threads == [True, True] * with_library


def test_a_call_outside_any_session_keeps_nothing() -> None:
    @traced("plan", capture=True)
    def echo(text: str) -> str:
        return text

    assert echo("a") == "a"


def test_events_of_a_captured_call_expire_with_personal_data() -> None:
    client, memory = memory_client()

    @traced("tool", capture=True)
    def echo(text: str) -> str:
        return text

    with client, client.session(user_id="u", data_classes=("personal",)):
        echo("a")
    kept = [event for event in memory.events() if isinstance(event.payload, ToolCallStarted | ToolCallSucceeded)]
    assert [event.envelope.data_classes for event in kept] == [("personal",)] * 2
    assert isinstance(client, SessionClient)
