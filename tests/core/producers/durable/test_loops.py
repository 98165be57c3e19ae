"""Tools in a model's loop: each call is a call, and a restart is answered call by call."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sessionary.producers import (
    Invalid,
    Retry,
    Run,
    Session,
    SessionClient,
    ToolCallUnresolved,
    current_tool_key,
    tool,
)
from sessionary.producers.durable.call_keys import idempotency_key
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.schemas.events import ToolCallFailed, ToolCallStarted

SEEN = [("read", "a", "v1"), ("edit", "v2"), ("read", "a", "v2"), ("edit", "v1"), ("edit", "v2"), ("read", "a", "v2")]


class Files:
    """A file that an agent reads and edits; each call is noted."""

    def __init__(self) -> None:
        self.content = "v1"
        self.calls: list[tuple[str, ...]] = []
        self.keys: list[str | None] = []
        self.read = tool(name="read", effect="read")(self._read)
        self.edit = tool(name="edit", effect="write")(self._edit)

    def loop(self) -> list[str]:
        first = self.read("a")
        self.edit("v2")
        second = self.read("a")
        self.edit("v1")
        self.edit("v2")
        return [first, second, self.read("a")]

    def _read(self, name: str) -> str:
        self.keys.append(current_tool_key())
        self.calls.append(("read", name, self.content))
        return self.content

    def _edit(self, content: str) -> str:
        self.keys.append(current_tool_key())
        self.calls.append(("edit", content))
        self.content = content
        return "ok"


def in_session(session: Session, work: Callable[[], Any]) -> Any:
    return work()


def in_run(session: Session, work: Callable[[], Any]) -> Any:
    with session.run("chat"):
        return work()


def in_step(session: Session, work: Callable[[], Any]) -> Any:
    with session.run("chat") as run:
        return run.step("loop", work)


def in_inner_step(session: Session, work: Callable[[], Any]) -> Any:
    with session.run("chat") as run:
        return run.step("outer", lambda: run.step("inner", work))


PLACES = pytest.mark.parametrize("place", [in_session, in_run, in_step, in_inner_step])


def started_calls(memory: InMemoryTransport) -> list[ToolCallStarted]:
    return [event.payload for event in memory.events() if isinstance(event.payload, ToolCallStarted)]


def other_process(memory: InMemoryTransport, session: Session) -> tuple[SessionClient, Session]:
    client, _ = memory_client(memory=memory)
    return client, client.attach(session.session_id)


def leave_run(session: Session, work: Callable[[Run], Any]) -> None:
    """Let the process of run `r` die: nothing says that it ended."""
    run = session.run("chat", run_id="r")
    run.__enter__()
    work(run)
    run._leave_metadata()


@PLACES
def test_each_call_of_a_loop_is_made(place: Callable[[Session, Callable[[], Any]], Any]) -> None:
    files = Files()
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        assert place(session, files.loop) == ["v1", "v2", "v2"]
    assert files.calls == SEEN
    assert len(set(files.keys)) == len(files.keys) == len(started_calls(memory))
    assert memory.rejections() == []


@PLACES
def test_each_call_of_a_loop_in_asyncio_is_made(place: Callable[[Session, Callable[[], Any]], Any]) -> None:
    calls: list[str] = []

    @tool(effect="write")
    async def send(text: str) -> int:
        await asyncio.sleep(0)
        calls.append(text)
        return len(calls)

    async def loop() -> list[int]:
        return [await send("a"), await send("b"), await send("a"), await send("a")]

    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        assert place(session, lambda: asyncio.run(loop())) == [1, 2, 3, 4]
    assert calls == ["a", "b", "a", "a"]
    assert memory.rejections() == []


def test_the_first_of_equal_calls_has_the_key_of_its_arguments() -> None:
    files = Files()
    client, _ = memory_client()
    with client, client.session(user_id="u"):
        files.loop()
    assert files.keys[0] == idempotency_key("acme", None, None, "read", {"name": "a"})


@PLACES
def test_a_call_that_failed_keeps_its_key(place: Callable[[Session, Callable[[], Any]], Any]) -> None:
    keys: list[str | None] = []
    failures: list[Exception] = [ConnectionRefusedError("1"), ConnectionRefusedError("2")]

    @tool(effect="write", retry=Retry(retries=0))
    def send(text: str) -> str:
        keys.append(current_tool_key())
        if failures and len(keys) > 1:
            raise failures.pop()
        return text

    def loop() -> None:
        send("a")
        for _ in range(2):
            with pytest.raises(ConnectionRefusedError):
                send("a")
        send("a")
        send("a")

    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        place(session, loop)
    first, *failed, last = keys
    assert failed == [failed[0]] * 3
    assert len({first, failed[0], last}) == 3
    assert memory.rejections() == []


def test_a_call_of_unknown_outcome_keeps_its_key() -> None:
    failures = [TimeoutError("no answer")]
    keys: list[str | None] = []

    @tool(effect="write", deadline=1)
    def send() -> None:
        keys.append(current_tool_key())
        if failures:
            raise failures.pop()

    client, memory = memory_client()
    with client, client.session(user_id="u"):
        for _ in range(2):
            with pytest.raises(ToolCallUnresolved) as raised:
                send()
            assert raised.value.idem_key == keys[0]
            memory.advance(2)
    assert len(keys) == 1
    assert memory.rejections() == []


def test_a_read_that_failed_for_good_is_made_anew_and_a_write_is_not() -> None:
    found: list[str] = []

    @tool(effect="read")
    def look() -> str:
        if not found:
            raise FileNotFoundError("no such file")
        return found[0]

    client, memory = memory_client()
    with client, client.session(user_id="u") as session, session.run("chat", run_id="r") as run:

        def loop() -> str:
            with pytest.raises(FileNotFoundError):
                look()
            found.append("here")
            return look()

        assert run.step("loop", loop) == "here"
    assert [event.payload.error.error_class for event in memory.events() if isinstance(event.payload, ToolCallFailed)]
    assert memory.rejections() == []


def test_a_step_that_is_tried_again_repeats_no_effect_of_its_loop() -> None:
    files, failures = Files(), [ConnectionError("gone")]

    def loop() -> list[str]:
        result = files.loop()
        if failures:
            raise failures.pop()
        return result

    client, memory = memory_client()
    with client, client.session(user_id="u") as session, session.run("chat") as run:
        with pytest.raises(ConnectionError):
            run.step("loop", loop)
        assert run.step("loop", loop) == ["v1", "v2", "v2"]
        assert files.calls == SEEN
        assert run.step("loop", loop) == ["v2", "v2", "v2"]  # the next one of that name
    assert len(files.calls) == 2 * len(SEEN)
    assert memory.rejections() == []


@pytest.mark.parametrize("in_steps", [False, True])
@pytest.mark.parametrize("dies_after", range(1, 6))
def test_a_resumed_run_is_answered_call_by_call(dies_after: int, in_steps: bool) -> None:
    files = Files()

    def walk(run: Run) -> Any:
        def call(name: str, given: str) -> str:
            if len(files.calls) == dies_after and not died:
                died.append(True)
                raise KeyboardInterrupt
            return files.read(given) if name == "read" else files.edit(given)

        calls = [("read", "a"), ("edit", "v2"), ("read", "a"), ("edit", "v1"), ("edit", "v2"), ("read", "a")]
        if in_steps:
            return [run.step("call", call, *each) for each in calls]
        return [call(*each) for each in calls]

    def die(run: Run) -> None:
        with pytest.raises(KeyboardInterrupt):
            walk(run)

    died: list[bool] = []
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        leave_run(session, die)
        again, same = other_process(memory, session)
        with again, same:
            with same.resume_run("r") as run:
                assert walk(run) == ["v1", "ok", "v2", "ok", "ok", "v2"]
            same.lifecycle.detach()
    assert files.calls == SEEN
    assert memory.rejections() == []


def test_a_restarted_process_is_answered_call_by_call_outside_of_runs() -> None:
    files = Files()
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        files.loop()
        again, same = other_process(memory, session)
        with again, same:
            assert files.loop() == ["v1", "v2", "v2"]
            assert files.calls == SEEN
            assert files.read("a") == "v2"
            assert len(files.calls) == len(SEEN) + 1
            same.lifecycle.detach()
    assert memory.rejections() == []


def test_a_session_that_is_attached_for_each_request_goes_on_counting() -> None:
    files = Files()
    client, memory = memory_client()
    session = client.create(user_id="u")
    session.start()
    with client:
        for content in ("v1", "v2", "v3"):
            files.content = content
            with client.attach(session.session_id) as same:
                assert files.read("a") == content
                same.lifecycle.detach()
    assert memory.rejections() == []


def test_equal_calls_at_the_same_time_are_counted_as_they_begin() -> None:
    keys: dict[int, str | None] = {}

    @tool(effect="write")
    async def send(text: str) -> int:
        number = len(keys)
        keys[number] = current_tool_key()
        await asyncio.sleep(0.001 * (3 - number))
        return number

    async def at_once() -> list[int]:
        return list(await asyncio.gather(*(send("a") for _ in range(3))))

    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        results = list[list[int]]()
        leave_run(session, lambda run: results.append(asyncio.run(at_once())))
        again, same = other_process(memory, session)
        with again, same:
            with same.resume_run("r"):
                results.append(asyncio.run(at_once()))
            same.lifecycle.detach()
    assert results[0] == results[1]
    assert len(set(keys.values())) == len(keys) == 3
    assert memory.rejections() == []


def test_equal_calls_of_threads_each_have_a_key() -> None:
    keys: list[str | None] = []
    barrier = threading.Barrier(4)

    @tool(effect="write")
    def send(text: str) -> str:
        keys.append(current_tool_key())
        barrier.wait(60)
        return text

    client, memory = memory_client()
    with client, client.session(user_id="u") as session, session.run("chat"), ThreadPoolExecutor(4) as pool:
        assert [future.result(60) for future in [pool.submit(send, "a") for _ in range(4)]] == ["a"] * 4
    assert len(set(keys)) == 4
    assert memory.rejections() == []


@PLACES
def test_the_id_that_a_model_gave_wins(place: Callable[[Session, Callable[[], Any]], Any]) -> None:
    calls: list[str] = []
    ids: list[str | None] = []

    @tool(effect="write")
    def send(text: str) -> int:
        calls.append(text)
        return len(calls)

    @tool(effect="write")
    def note(text: str, tool_call_id: str | None = None) -> str:
        ids.append(tool_call_id)
        return text

    def loop() -> list[int]:
        note("a", tool_call_id="n1")
        note("b", tool_call_id="n1")
        note("a")
        note("a")
        call: Any = send
        return [call("a", tool_call_id="c1"), call("b", tool_call_id="c1"), call("a", tool_call_id="c2"), call("a")]

    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        assert place(session, loop) == [1, 1, 2, 3]
    assert calls == ["a", "a", "a"]
    assert ids == ["n1", None, None]
    assert [call.idem_key for call in started_calls(memory) if call.tool_name == "send"][:2] == ["c1", "c2"]
    assert memory.rejections() == []


def test_outside_of_sessions_a_model_s_id_is_not_the_function_s() -> None:
    call: Any = tool(effect="write")(str.upper)
    assert call("a", tool_call_id="c1") == "A"


def test_a_write_that_must_happen_once_in_its_run_does() -> None:
    calls: list[str] = []

    @tool(effect="write", once=True)
    def pay(order: str) -> int:
        calls.append(order)
        return len(calls)

    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        with session.run("chat") as run:
            assert [pay("o1"), pay("o1"), run.step("pay", pay, "o1"), pay("o2")] == [1, 1, 1, 2]
        with session.run("chat"):
            assert pay("o1") == 3
        assert [pay("o1"), pay("o1")] == [4, 4]
    assert memory.rejections() == []


def test_a_tool_that_calls_itself_has_a_key_for_each_call() -> None:
    depth: list[int] = []

    @tool(effect="write")
    def dig(place: str) -> int:
        depth.append(1)
        return len(depth) if len(depth) == 3 else dig(place)

    client, memory = memory_client()
    with client, client.session(user_id="u"):
        assert dig("here") == 3
    assert len({call.idem_key for call in started_calls(memory)}) == 3


def test_an_argument_of_which_no_key_can_be_made_is_named() -> None:
    @tool(effect="read")
    def read(page: str, where: object) -> str:
        return page

    client, _ = memory_client()
    with client, client.session(user_id="u"), pytest.raises(Invalid, match=r"argument 'where' .* object .*key="):
        read("a", object())


@pytest.mark.parametrize("in_step", [False, True])
@pytest.mark.parametrize("dies_after", range(1, 13))
def test_equal_calls_of_a_list_are_made_for_each_item(dies_after: int, in_step: bool) -> None:
    sent: list[str] = []
    parsed: list[int] = []
    died: list[bool] = []

    @tool(effect="write")
    def send(text: str) -> str:
        sent.append(text)
        return text

    def live() -> None:
        if len(sent) + len(parsed) == dies_after and not died:
            died.append(True)
            raise KeyboardInterrupt

    def parse() -> None:
        parsed.append(len(parsed))

    def work(run: Run) -> None:
        for _ in run.items(range(4), name="pages", every=3):
            for _ in range(2):
                live()
                send("done")
            live()
            run.step("parse", parse)

    def walk(run: Run) -> None:
        if in_step:
            run.step("all", lambda: work(run))
        else:
            work(run)

    def die(run: Run) -> None:
        if dies_after == 12:
            walk(run)
            return
        with pytest.raises(KeyboardInterrupt):
            walk(run)

    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        leave_run(session, die)
        again, same = other_process(memory, session)
        with again, same:
            with same.resume_run("r") as run:
                walk(run)
            same.lifecycle.detach()
    assert (len(sent), len(parsed)) == (8, 4)
    assert memory.rejections() == []
