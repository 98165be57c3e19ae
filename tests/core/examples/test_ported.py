"""The ported agents go on where a process died more than a minute ago: the session timed out."""

import asyncio
import difflib
import importlib
import re
from collections import Counter
from pathlib import Path

import pytest

from examples.ported import graph, loop
from sessionary.producers import AsyncSessionClient, Session
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.schemas.events import RunCompleted, ToolCallStarted
from tests.style.project import ROOT

PAGE = (ROOT / "docs" / "learn" / "adopting.md").read_text("utf-8")
NAMES = ("loop", "graph", "chat", "jobs")


def die_in(memory: InMemoryTransport, session: Session) -> None:
    """Let the process that holds a session die, and let the session time out."""
    memory.silence(session)
    memory.advance(61)
    assert memory.view_session(session).state == "Timeout"
    memory.silence(session, silent=False)


def test_the_loop_books_nothing_twice(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    client, memory = memory_client(on_error=lambda error: None)

    async def book_and_die() -> Session:
        session = await AsyncSessionClient.wrap(client).open("trip to Paris", user_id="ada")
        await session.__aenter__()
        await loop.get_weather("Paris")
        await loop.book_hotel("Paris", 2)
        return session.sync_session

    die_in(memory, asyncio.run(book_and_die()))
    new_client = memory_client(memory=memory)[0]
    monkeypatch.setattr(loop, "AsyncSessionClient", lambda **_names: AsyncSessionClient.wrap(new_client))
    asyncio.run(loop.main("Paris"))
    calls = Counter(e.payload.tool_name for e in memory.events() if isinstance(e.payload, ToolCallStarted))
    assert calls == {"get_weather": 1, "book_hotel": 1}
    assert capsys.readouterr().out.startswith("Booked a hotel in Paris: ")


@pytest.mark.parametrize("has_died", [False, True])
def test_the_graph_runs_to_its_end(
    has_died: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client, memory = memory_client(on_error=lambda error: None)
    memory.operator.answer_with(lambda question: question == "refund 1200?")
    if has_died:
        die_in(memory, client.open("thread-1", user_id="ada"))
    monkeypatch.setattr(graph, "SessionClient", lambda **_names: memory_client(memory=memory)[0])
    graph.main("thread-1")
    assert "refunded 1200" in capsys.readouterr().out
    assert sum(isinstance(event.payload, RunCompleted) for event in memory.events()) == 1


def test_the_chat_takes_the_next_message(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fastapi")
    monkeypatch.setenv("SESSIONARY_DISABLED", "1")
    chat = importlib.import_module("examples.ported.chat")
    client, memory = memory_client(on_error=lambda error: None)
    session = client.open("thread-1", user_id="ada")
    session.turn().__enter__()
    session.message("user", "hello")
    die_in(memory, session)
    monkeypatch.setattr(chat, "client", memory_client(memory=memory)[0])
    answered = chat.chat(chat.Message(chat_id="thread-1", user_id="ada", text="are you there?"))
    assert answered == {"chat_id": "thread-1", "text": "answer 2"}


def code_of(path: Path) -> list[str]:
    """Return a program's lines after its docstring."""
    return path.read_text("utf-8").split('"""', 2)[2].splitlines()


@pytest.mark.parametrize("name", NAMES)
def test_a_ported_agent_has_as_many_new_lines_as_the_page_says(name: str) -> None:
    folder = ROOT / "examples" / "ported"
    before, after = code_of(folder / f"{name}_before.py"), code_of(folder / f"{name}.py")
    marks = [line[0] for line in difflib.unified_diff(before, after, lineterm="", n=0)][2:]
    said = re.search(rf"`{name}\.py` \| \+(\d+) -(\d+) \|", PAGE)
    assert said is not None
    assert (marks.count("+"), marks.count("-")) == (int(said[1]), int(said[2]))


def test_each_of_the_four_stands_on_the_page() -> None:
    assert re.findall(r"`(\w+)\.py` \| \+", PAGE) == list(NAMES)
