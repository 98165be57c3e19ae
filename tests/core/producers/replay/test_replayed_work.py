"""What a replay answers and does again: failures, steps, questions, large values, time, agents."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import copy_context
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sessionary.producers import (
    AsyncSession,
    AsyncSessionClient,
    Rejected,
    Retry,
    Session,
    SessionClient,
    tool,
    traced,
)
from sessionary.producers.artifacts import ArtifactLibrary
from sessionary.producers.process.safe_text import JSON_BYTES_MAX
from sessionary.producers.replay.answers import ReplayCounts
from sessionary.producers.replay.errors import NotReplayable, ReplayMiss
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.schemas.events import SessionActivity, StepStarted, ToolCallStarted
from tests.core.producers.tasks.test_tasks import Stage

made = Counter[str]()


@pytest.fixture(autouse=True)
def no_calls() -> None:
    made.clear()


class OutOfStock(Exception):
    """An error of the agent's own."""


@tool(effect="read", retry=Retry(retries=2, base_ms=1))
def stock(item: str) -> int:
    made["stock"] += 1
    if item == "none":
        raise OutOfStock("no such item")
    if made["stock"] == 1:
        raise ConnectionError("the line is down")
    return made["stock"]


def count_stock(session: Session) -> list[object]:
    found: list[object] = [stock("screws")]
    try:
        stock("none")
    except OutOfStock as error:
        found.append(f"{error}")
    return found


def test_failures_happen_again_with_their_classes_and_retries() -> None:
    client, _ = memory_client()
    with client.session(user_id="u1") as session:
        outcome = count_stock(session)
    assert outcome == [2, "no such item"]
    assert made == {"stock": 3}
    with client.replay(session) as replay, replay.session() as again:
        assert count_stock(again) == outcome
    assert replay.difference is None
    assert (replay.counts, made) == (ReplayCounts(served=3), {"stock": 3})
    assert [each.event_type for each in replay.record.faults] == ["tool_call_failed"] * 2
    assert len(replay.record.calls) == 3


@traced("llm")
def ask_uncaptured(prompt: str) -> str:
    made["llm"] += 1
    return prompt


@traced("llm", capture=True)
def ask_captured(prompt: str) -> str:
    made["llm"] += 1
    return f"{prompt}!"


def call_uncaptured(session: Session) -> None:
    ask_uncaptured("hello")


def call_bare_block(session: Session) -> None:
    with session.llm("m-1") as call:
        made["llm"] += 1
        call.tokens_in = 5


@pytest.mark.parametrize("agent", [call_uncaptured, call_bare_block])
def test_a_call_without_a_recorded_result_is_not_replayable_and_says_what_to_do(agent: Any) -> None:
    client, _ = memory_client()
    with client.session(user_id="u1") as session:
        agent(session)
    replay = client.replay(session)
    with pytest.raises(NotReplayable, match=r"is not replayable: .*capture=True"), replay, replay.session() as again:
        agent(again)
    assert (replay.counts, made) == (ReplayCounts(missed=1), {"llm": 1})


def test_a_block_of_a_model_is_replayed_by_the_captured_function_in_it() -> None:
    def agent(session: Session) -> str:
        with session.llm("m-1") as call:
            answer = ask_captured("hello")
            call.tokens_in, call.tokens_out = 5, len(answer)
        return answer

    client, _ = memory_client()
    with client.session(user_id="u1") as session:
        agent(session)
    with client.replay(session) as replay, replay.session() as again:
        assert agent(again) == "hello!"
    assert (replay.difference, replay.counts, made) == (None, ReplayCounts(served=1), {"llm": 1})
    assert replay.record.tokens == 11


def test_runs_that_are_at_work_at_the_same_time_have_their_own_answers() -> None:
    """In a replay each may be the first one to begin, and to make a call that all of them make."""

    @tool(effect="read")
    def count() -> int:
        made["count"] += 1
        return made["count"]

    def agent(session: Session, numbers: list[int]) -> dict[int, list[object]]:
        found: dict[int, list[object]] = {}
        for number in numbers:
            with session.run("double", input={"number": number}) as run:
                plain = run.step("work", partial(int.__mul__, number, 2))
                deep = {key: run.step("count", count, key=key) for key in (str(each) for each in numbers)}
                found[number] = [run.run_id, session.random(), plain, count(), deep]
        return found

    client, _ = memory_client()
    with client.session(user_id="u1") as session:
        outcome = agent(session, [1, 2, 3])
    calls = made["count"]
    with client.replay(session) as replay, replay.session() as again:
        assert agent(again, [3, 1, 2]) == outcome
    assert (replay.difference, made["count"]) == (None, calls)
    with client.replay(session, mode="fork") as fork, fork.session() as again:
        forked = agent(again, [2, 3, 1])
    assert [forked[number][2:] for number in (1, 2, 3)] == [outcome[number][2:] for number in (1, 2, 3)]
    assert (fork.counts.executed, made["count"]) == (0, calls)


def test_what_the_processor_rejected_is_rejected_again_and_is_no_difference() -> None:
    client, memory = memory_client()

    def agent(session: Session) -> list[object]:
        refused: list[object] = []
        try:
            session.rollback("snap_000000000000")
        except Rejected as error:
            refused.append(error.reason)
        return [*refused, ask_captured(session.now().isoformat())]

    with client.session(user_id="u1") as session:
        outcome = agent(session)
    assert [judged.event_type for judged in memory.rejections()] == ["session_rolled_back"]
    with client.replay(session) as replay, replay.session() as again:
        assert agent(again) == outcome
    assert (replay.difference, replay.counts) == (None, ReplayCounts(served=1))
    with client.replay(session) as replay, replay.session() as again:
        ask_captured(f"{outcome[1]}".removesuffix("!"))
    assert replay.difference is None, "an event that was rejected may be missing"


class Reply:
    """A model's answer, as libraries of models have it."""

    def __init__(self, content: str) -> None:
        self.content = content

    def __str__(self) -> str:
        return f"Reply({self.content})"


@traced("llm", capture=True)
def ask_library(prompt: str) -> Reply:
    return Reply(prompt)


@traced("llm", capture=True)
def note_answer(answer: object) -> str:
    return f"{answer}"


@traced("llm", capture=True)
def stream_replies(prompt: str) -> Iterator[Reply]:
    yield Reply(prompt)


@tool(effect="read")
def count_words(text: str) -> dict[int, float]:
    return {len(text): float("nan")}


def use_attribute(session: Session) -> object:
    return ask_library("hello").content


def use_item(session: Session) -> object:
    return next(iter(stream_replies("hello"))).content


def use_key(session: Session) -> object:
    return count_words("hello").get(5)


def use_number(session: Session) -> object:
    return list(count_words("hello"))


@pytest.mark.parametrize("agent", [use_attribute, use_item, use_key, use_number])
def test_a_result_of_which_the_record_has_the_text_alone_is_not_given_as_another_value(agent: Any) -> None:
    client, _ = memory_client()
    with client.session(user_id="u1") as session:
        agent(session)
    replay = client.replay(session)
    is_told = pytest.raises(NotReplayable, match=r"the record has the result of .* as text only")
    with is_told, replay, replay.session() as again, contextlib.suppress(Exception):
        agent(again)
    assert replay.counts.executed == 0


def test_the_text_of_a_result_is_answered_and_not_a_number_is_one_again() -> None:
    @tool(effect="read")
    def measure() -> float:
        return float("nan")

    def agent(session: Session) -> list[object]:
        answer = ask_library("hello")
        return [f"{answer}", note_answer(answer), f"{count_words('hello')}", f"{measure() + 1}"]

    client, _ = memory_client()
    with client.session(user_id="u1") as session:
        outcome = agent(session)
    assert outcome == ["Reply(hello)", "Reply(hello)", "{5: nan}", "nan"]
    with client.replay(session) as replay, replay.session() as again:
        assert agent(again) == outcome
    assert (replay.difference, replay.counts) == (None, ReplayCounts(served=4))


def test_a_step_is_answered_whole_or_by_the_calls_in_it() -> None:
    def work(session: Session) -> list[object]:
        with session.run("work") as run:
            plain = run.step("plain", lambda: made.update(["plain"]) or 7)
            bare = run.step("bare", lambda: [ask_uncaptured("x"), made.update(["bare"])][0])
            deep = run.step("deep", lambda: made.update(["deep"]) or ask_captured("y"))
            listed = [run.step("each", ask_captured, item) for item in run.items("abc", name="letters", every=2)]
            run.result = [plain, bare, deep]
        return [plain, bare, deep, listed]

    client, _ = memory_client()
    with client.session(user_id="u1") as session:
        outcome = work(session)
    assert outcome == [7, "x", "y!", ["a!", "b!", "c!"]]
    once = dict(made)
    with client.replay(session) as replay, replay.session() as again:
        assert work(again) == outcome
    assert replay.difference is None
    # The agent's own code around recorded calls runs again; nothing else does.
    assert made == {**once, "deep": 2}
    assert replay.counts == ReplayCounts(served=6)


def test_a_question_is_answered_as_it_was() -> None:
    def agent(session: Session) -> list[bool]:
        first = session.ask("Deploy?").approved
        with session.run("deploy") as run:
            second = run.step("sure", lambda: session.ask("Sure?").approved)
        return [first, second]

    client, memory = memory_client()
    memory.operator.answer_with(lambda question: question == "Deploy?")
    with client.session(user_id="u1") as session:
        assert agent(session) == [True, False]
    with client.replay(session) as replay, replay.session() as again:
        assert agent(again) == [True, False]
    assert (replay.difference, replay.counts.missed) == (None, 0)
    assert sum(not each.is_own for each in replay.record.interactions) == 2


def test_time_and_chance_are_those_of_the_record() -> None:
    """Trap 18: times have a zone."""

    def agent(session: Session) -> list[object]:
        session.activity("a")
        drawn: list[object] = [session.now(), session.random(), session.random()]
        with session.run("draw") as run:
            drawn += run.step("in", lambda: [session.random(), ask_captured(f"{session.now()}")])
        return drawn

    client, memory = memory_client()
    with client.session(user_id="u1") as session:
        outcome = agent(session)
    memory.advance(5)
    assert len(set(map(str, outcome))) == 5
    assert isinstance(outcome[0], datetime)
    assert (outcome[0].tzinfo, outcome[0].utcoffset()) == (UTC, timedelta(0))
    for mode in ("strict", "fork"):
        with client.replay(session, mode=mode) as replay, replay.session() as again:
            assert agent(again) == outcome
        assert replay.counts == ReplayCounts(served=1)
    with client.session(user_id="u1") as other:
        assert agent(other)[1:3] != outcome[1:3]


def test_large_values_are_loaded_only_when_they_are_asked_for(tmp_path: Path) -> None:
    """R-003-67: 1,000 steps run no tool, are read in batches, and load the asked payloads only."""

    class CountingLibrary(ArtifactLibrary):
        loads = 0

        def load(self, artifact: Any) -> bytes:
            CountingLibrary.loads += 1
            return super().load(artifact)

    def read_page(number: int) -> str:
        made["page"] += 1
        return "x" * (300_000 if number % 500 == 0 else 1)

    def agent(session: Session, pages: int) -> int:
        with session.run("read") as run:
            return sum(len(run.step("page", read_page, number)) for number in range(pages))

    library = CountingLibrary(tmp_path)
    client, memory = memory_client(artifacts=library)
    with client.session(user_id="u1") as session:
        total = agent(session, 1_000)
    assert total == 2 * 300_000 + 998
    made.clear()
    CountingLibrary.loads = 0
    bodies = sorted(tmp_path.rglob("*"))
    with client.replay(session) as replay, replay.session() as again:
        assert CountingLibrary.loads == 0
        assert agent(again, 1_000) == total
    assert (replay.difference, made) == (None, {})
    assert replay.counts == ReplayCounts(served=1_000)
    assert replay.record.batches == -(-len(memory.core.log.entries) // 500)
    assert CountingLibrary.loads == 2
    assert sorted(tmp_path.rglob("*")) == bodies  # nothing is written there either
    with client.replay(session, at=replay.record.events[40].offset) as short, short.session() as again:
        agent(again, 1_000)
    assert (short.is_reached, short.difference, CountingLibrary.loads) == (True, None, 3)


def test_all_five_classes_of_the_history_are_in_the_record() -> None:
    """R-003-10: calls, reasoning, context, interactions and faults match what was done."""
    client, memory = memory_client()
    memory.operator.answer_with(lambda question: True)
    with client.session(user_id="u1") as session, session.turn():
        session.message("user", "go")
        session.ask("Go?")
        with session.run("r") as run:
            run.step("think", lambda: 1)
        ask_captured("p")
        count_stock(session)
        session.message("assistant", "done")
        session.error(ConnectionError("gone"))
        session.recover()
    with client.replay(session) as replay:
        record = replay.record
    assert [(call.kind, call.name) for call in record.calls] == [
        ("step", "think"),
        ("traced", "llm ask_captured"),
        *[("tool", "stock")] * 3,
    ]
    assert [call.result_json for call in record.calls][:2] == ["1", '"p!"']
    assert [each.event_type for each in record.reasoning] == ["step_started", "step_succeeded"] * 2
    offsets = [each.offset for each in record.events if each.event_type == "message_appended"]
    assert [[each.content for each in record.context(offset)] for offset in offsets] == [["go"], ["go", "done"]]
    outside = [each.event_type for each in record.interactions]
    assert outside == [
        "session_resumed",
        *("tool_call_started", "tool_call_failed", "tool_call_started", "tool_call_succeeded"),
        *("tool_call_started", "tool_call_failed"),
    ]
    assert [each.event_type for each in record.faults] == [
        *("session_resumed", "tool_call_failed", "tool_call_failed", "session_errored", "session_recovered"),
    ]


@tool(effect="write")
async def send(text: str) -> str:
    made["send"] += 1
    return text.upper()


@traced("llm", capture=True)
async def stream(prompt: str) -> AsyncIterator[str]:
    made["stream"] += 1
    for word in prompt.split():
        yield word


@traced("llm", capture=True)
async def ask_async(prompt: str) -> str:
    made["ask"] += 1
    return f"{prompt}?"


async def async_agent(session: AsyncSession) -> list[object]:
    async with session.turn():
        words = [word async for word in stream("a b c")]
        async with session.run("send") as run:
            sent = await asyncio.gather(*(run.step("send", send, word, key=word) for word in words))
    return [words, sent, await ask_async("x"), session.random()]


def test_an_asyncio_agent_is_replayed_and_forked() -> None:
    async def replay_all(client: AsyncSessionClient) -> None:
        async with client.session(user_id="u1") as session:
            outcome = await async_agent(session)
        assert outcome[:3] == [["a", "b", "c"], ["A", "B", "C"], "x?"]
        once = dict(made)

        async def baseline(replay: Any) -> None:
            async with replay.session() as again:
                await async_agent(again)

        async with client.replay(session) as replay, replay.session() as again:
            assert await async_agent(again) == outcome
        assert (replay.difference, replay.counts, made) == (None, ReplayCounts(served=5), once)
        async with client.replay(session, mode="fork", baseline=baseline) as fork, fork.session() as again:
            assert await async_agent(again) == outcome
            assert await ask_async("y") == "y?"
        assert (fork.is_valid, fork.counts) == (True, ReplayCounts(served=5, missed=1, executed=1))
        assert made == {**once, "ask": 2}

    client, _ = memory_client()
    asyncio.run(replay_all(AsyncSessionClient.wrap(client)))


def agents_of(client: SessionClient, session_id: str) -> dict[str, tuple[str, str | None, tuple[str, ...], list[str]]]:
    session = client.attach(session_id)
    return {
        each.agent_id: (
            each.role,
            each.current_task,
            tuple(each.completed_tasks),
            [f"{key}={value}" for key, value in session.agents.get(each.agent_id).view().visible_context.items()],
        )
        for each in session.agents.list()
    }


def record_team() -> tuple[SessionClient, InMemoryTransport, str, list[Any]]:
    client, memory = memory_client()
    seen = []
    session = client.session(user_id="u1")
    researcher = session.agents.get("researcher_1", "researcher")
    analyzer = session.agents.get("analyzer_1", "analyzer")
    writer = session.agents.get("writer_1", "writer")
    for agent, task, result in (
        (researcher, "gather_papers", ["p1", "p2", "p3"]),
        (analyzer, "analyze_papers", ["insight1", "insight2"]),
        (writer, "create_report", "report"),
    ):
        agent.begin(task)
        agent.finish(result)
        seen.append((memory.verdicts()[-1].offset, agents_of(client, session.session_id)))
    session.close()
    return client, memory, session.session_id, seen


def test_several_agents_are_replayed_to_a_target_with_true_roles_and_results() -> None:
    """R-003-50: the state equals that recorded at the target; R-003-51: to the analyzer's end."""
    client, _, session_id, seen = record_team()
    for offset, state in seen:
        with client.replay(session_id, at=offset) as replay:
            assert agents_of(replay.past, session_id) == state
    with client.replay(session_id, at=seen[1][0]) as replay:
        agents = agents_of(replay.past, session_id)
    assert {name: agent[:3] for name, agent in agents.items()} == {
        "researcher_1": ("researcher", None, ("gather_papers",)),
        "analyzer_1": ("analyzer", None, ("analyze_papers",)),
        "writer_1": ("writer", None, ()),
    }


@traced("llm", capture=True)
def stream_words(text: str) -> Iterator[str]:
    made["llm"] += 1
    yield from text.split()
    if text == "cut off":
        raise OutOfStock("no further words")


@traced("llm", capture=True)
async def stream_words_async(text: str) -> AsyncIterator[str]:
    made["llm"] += 1
    for word in text.split():
        yield word
    if text == "cut off":
        raise OutOfStock("no further words")


def join_words(session: Session) -> None:
    for text in ("two words", "cut off"):
        try:
            session.message("assistant", "-".join(stream_words(text)))
        except OutOfStock as error:
            session.message("system", f"{error}")


def test_a_generator_gives_its_recorded_items_and_fails_again() -> None:
    client, _ = memory_client()
    with client.session(user_id="u1") as session:
        join_words(session)
    with client.replay(session) as replay, replay.session() as again:
        join_words(again)
    assert (replay.difference, replay.counts, made) == (None, ReplayCounts(served=2), {"llm": 2})


def test_an_asynchronous_generator_gives_its_recorded_items_and_fails_again() -> None:
    async def agent(session: AsyncSession) -> None:
        for text in ("two words", "cut off"):
            try:
                await session.message("assistant", "-".join([word async for word in stream_words_async(text)]))
            except OutOfStock as error:
                await session.message("system", f"{error}")

    async def run() -> Any:
        client = AsyncSessionClient.wrap(memory_client()[0])
        async with client.session(user_id="u1") as session:
            await agent(session)
        async with client.replay(session) as replay, replay.session() as again:
            await agent(again)
        return replay

    replay = asyncio.run(run())
    assert (replay.difference, replay.counts, made) == (None, ReplayCounts(served=2), {"llm": 2})


@tool(effect="write", key=lambda amount, account: account)
def pay(amount: object, account: str) -> str:
    made["pay"] += 1
    return f"paid to {account}"


def test_calls_with_arguments_that_json_cannot_hold_are_answered() -> None:
    held = []  # so that each object has an address of its own, as in another process

    def agent(session: Session) -> list[object]:
        held.append(object())
        with session.run("payment") as run:
            rate = run.step("rate", lambda rate: f"{rate}", Decimal("1.5"))
            other = run.step("other", lambda _: "done", {"service": held[-1]})
            return [rate, other, pay(held[-1], "a-1"), pay(Decimal(2), "a-2")]

    client, _ = memory_client()
    with client.session(user_id="u1") as session:
        outcome = agent(session)
    assert outcome == ["1.5", "done", "paid to a-1", "paid to a-2"]
    with client.replay(session) as replay, replay.session() as again:
        assert agent(again) == outcome
    assert (replay.difference, replay.counts, made) == (None, ReplayCounts(served=4), {"pay": 2})


def test_other_arguments_that_json_cannot_hold_are_another_call() -> None:
    client, _ = memory_client()
    with client.session(user_id="u1") as session:
        pay(Decimal(2), "a-1")
    replay = client.replay(session)
    with pytest.raises(ReplayMiss, match=r'expected pay\(.*"2".*came pay\(.*"3"'), replay, replay.session():
        pay(Decimal(3), "a-1")


def test_calls_whose_arguments_were_too_large_to_keep_are_answered_by_their_name() -> None:
    large = "x" * JSON_BYTES_MAX

    def agent(session: Session) -> list[object]:
        with session.run("payment") as run:
            return [run.step("length", len, large), pay(large, "a-1")]

    client, _ = memory_client()
    with client.session(user_id="u1") as session:
        assert agent(session) == [JSON_BYTES_MAX, "paid to a-1"]
    with client.replay(session) as replay, replay.session() as again:
        assert agent(again) == [JSON_BYTES_MAX, "paid to a-1"]
    assert (replay.difference, replay.counts, made) == (None, ReplayCounts(served=2), {"pay": 1})


@pytest.mark.parametrize("stored", [False, True])
def test_captured_calls_with_arguments_beyond_an_event_are_answered(stored: bool, tmp_path: Path) -> None:
    library = ArtifactLibrary(tmp_path) if stored else None
    large, other = "x" * (2 * JSON_BYTES_MAX), "y" * (2 * JSON_BYTES_MAX)

    @traced("llm", capture=True)
    def count(prompt: object, more: str, of: object) -> int:
        made["count"] += 1
        return len(more) + made["count"]

    def agent(session: Session) -> list[int]:
        return [count(Decimal(1), large, [1]), count("p", other, 2), count(Decimal(1), large, [1])]

    client, _ = memory_client(artifacts=library)
    with client.session(user_id="u1") as session:
        outcome = agent(session)
    assert len(set(outcome)) == 3
    with client.replay(session) as replay, replay.session() as again:
        assert agent(again) == outcome
    assert (replay.difference, replay.counts, made) == (None, ReplayCounts(served=3), {"count": 3})
    for changed in (large + "x", other[:-1]):  # of another size, or another beginning
        with pytest.raises(ReplayMiss), client.replay(session) as replay, replay.session():
            count("p", changed, 2)


@tool(effect="read")
def look(number: int) -> int:
    return number


def add_up(session: Session) -> object:
    with session.run("sum", run_id="run-1", resume=True) as run:
        first = run.step("first", look, 1)
        return first + run.step("rest", lambda: look(2) + look(3))


def test_a_run_that_another_process_resumed_is_replayed_as_one() -> None:
    client, memory = memory_client()
    session = client.session(user_id="u1")

    def die_in_a_call() -> None:
        run = session.run("sum", run_id="run-1", resume=True).__enter__()
        run.step("first", look, 1)
        step_id = session.emit(StepStarted("rest", 1, "{}"), step_id="step-2")
        call = ToolCallStarted("call-2", "look", "call-2", '{"number":2}', 1, side_effect=False, queryable=False)
        session.emit(call, step_id="step-2", causation_id=step_id)

    copy_context().run(die_in_a_call)
    with memory_client(memory=memory)[0].claim(session.session_id, user_id="u1") as continued:
        assert add_up(continued) == 6
    with client.replay(session) as replay, replay.session() as again:
        assert add_up(again) == 6
    assert (replay.difference, replay.counts) == (None, ReplayCounts(served=3))


def test_a_decision_among_a_model_s_scores_is_made_again_whatever_their_order() -> None:
    """The record keeps a captured answer with its names sorted; a model has another order."""

    @traced("llm", capture=True)
    def score(_question: str) -> dict[str, float]:
        return {"yes": 0.9, "later": 0.5, "no": 0.1}

    def agent(session: Session) -> None:
        session.decision("yes", candidates=score("now?"))

    client, _ = memory_client()
    with client:
        with client.session(user_id="u") as session:
            agent(session)
        with client.replay(session) as replay, replay.session() as again:
            agent(again)
    assert replay.difference is None


def test_tasks_outside_of_runs_have_their_recorded_results() -> None:
    stage = Stage()

    def carry_out() -> None:
        for request in stage.memory.tasks():
            stage.attempt(request).carry_out({"train": lambda ctx, given: made.update(["train"]) or given["epochs"]})

    def agent(client: SessionClient, session: Session, wait: Callable[[], None]) -> list[object]:
        ids = [session.start_task("train", {"epochs": epochs}) for epochs in (2, 4)]
        wait()
        results = [client.get_task_results(task_id).get("result") for task_id in ids]
        session.message("assistant", f"{results}")
        return results

    outcome = agent(stage.client, stage.session, carry_out)
    stage.session.close()
    assert outcome == [2, 4]
    with stage.client.replay(stage.session) as replay, replay.session() as again:
        assert agent(replay.client, again, lambda: None) == outcome
    assert (replay.difference, replay.counts.executed, made) == (None, 0, {"train": 2})


def test_each_snapshot_of_an_agent_is_a_point_the_first_one_too() -> None:
    client, _ = memory_client()
    with client.session(user_id="u1") as session:
        researcher = session.agents.get("r1", "researcher")
        snapshots = [researcher.snapshot_id]
        for task in ("gather", "read"):
            researcher.begin(task)
            snapshots.append(researcher.snapshot_id)
    tasks = []
    for snapshot_id in snapshots:
        with client.replay(session, at=snapshot_id) as replay:
            (row,) = replay.past.attach(session.session_id).agents.list()
            tasks.append((row.snapshot_id, row.current_task))
    assert tasks == [*zip(snapshots, (None, "gather", "read"), strict=True)]


def test_time_goes_on_in_a_fork_that_has_left_the_record_and_is_the_records_in_it() -> None:
    """Else code that waits for a time of the session waits for ever."""
    minute = timedelta(minutes=1)

    def agent(session: Session, waits: int = 0) -> list[datetime]:
        times = [session.now()]
        began = datetime.now(UTC)
        for number in range(1, waits + 1):
            session.emit(SessionActivity("wait"), occurred_at=began + number * minute)
            times.append(session.now())
        ask_captured(f"it is {times[0]}")
        return [*times, session.now()]

    client, _ = memory_client()
    with client.session(user_id="u1") as session:
        recorded = agent(session)
    with client.replay(session, mode="fork") as fork, fork.session() as again:
        first, *waited, last = agent(again, waits=3)
        assert [first, last] == recorded
        assert [round((each - first) / minute) for each in waited] == [1, 2, 3]
    assert fork.counts.executed == 0
