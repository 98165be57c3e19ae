"""A process that was told that another one has its session: all verbs stop there."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sessionary.producers import AsyncSession, AsyncSessionClient, Session, SessionClient, SessionFenced, tool
from sessionary.producers.artifacts import ArtifactLibrary
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.schemas.events import SessionActivity
from tests.core.producers.judged_memory import JudgedMemory

_CALLS: list[str] = []


@tool(effect="write")
def _send_mail(to: str) -> str:
    _CALLS.append(to)
    return "sent"


def _call_tool(session: Session) -> None:
    with session:
        _send_mail("a@example.org")


def _enter_llm(session: Session) -> None:
    with session.llm("large"):
        pytest.fail("the model was called")


def _enter_run(session: Session) -> None:
    with session.run("report"):
        pytest.fail("the run began")


VERBS: dict[str, Callable[[Session], object]] = {
    "emit": lambda session: session.emit(SessionActivity("llm", None)),
    "activity": lambda session: session.activity("llm"),
    "info": lambda session: session.info("hello"),
    "progress": lambda session: session.progress(0.5),
    "usage": lambda session: session.usage(tokens_in=1),
    "message": lambda session: session.message("user", "hello"),
    "result": lambda session: session.conversation.add_result("search", {"n": 1}),
    "read": lambda session: session.conversation.read(),
    "update": lambda session: session.update_state({"n": 1}),
    "snapshot": lambda session: session.snapshot(),
    "llm": _enter_llm,
    "run": _enter_run,
    "resume_run": lambda session: session.resume_run("r-1").__enter__(),
    "tool": _call_tool,
    "task": lambda session: session.start_task("train"),
    "ask": lambda session: session.ask("Deploy?"),
    "pause": lambda session: session.pause(),
    "resume": lambda session: session.resume(),
    "error": lambda session: session.error(ValueError("x")),
    "recover": lambda session: session.recover(),
    "sync": lambda session: session.sync(),
    "complete": lambda session: session.complete(),
    "close": lambda session: session.close(),
    "phase": lambda session: session.lifecycle.enter_phase("processing"),
    "cancel": lambda session: session.cancel(),
    "force_close": lambda session: session.lifecycle.force_close(),
    "agent": lambda session: session.agents.get("a-1", "writer"),
    "agents": lambda session: session.agents.list(),
    "move": lambda session: session.migration.move(to="other"),
    "execution": lambda session: session.records.execution(),
    "artifacts": lambda session: session.records.artifacts(),
    "verify": lambda session: session.records.verify(),
}


def _claim_by_own_service(memory: InMemoryTransport, session: Session) -> None:
    memory_client(memory=memory, service_id="billing")[0].claim(session.session_id)


def _take_over_by_another_service(memory: InMemoryTransport, session: Session) -> None:
    session.core.beats.stop()  # as in a process that hung for a while
    memory.advance(30)
    memory_client(memory=memory, service_id="shop")[0].attach(session.session_id, take_over=True)


def _claim_by_operator(memory: InMemoryTransport, session: Session) -> None:
    memory.operator.claim(session, "shop")


def _migrate_by_another_object(memory: InMemoryTransport, session: Session) -> None:
    memory_client(memory=memory, service_id="shop")[0].accept_migrations(lambda moved: None)
    memory_client(memory=memory, service_id="billing")[0].attach(session.session_id).migration.move(to="shop")


def _migrate(memory: InMemoryTransport, session: Session) -> None:
    memory_client(memory=memory, service_id="shop")[0].accept_migrations(lambda moved: None)
    session.migration.move(to="shop")


WAYS: dict[str, Callable[[InMemoryTransport, Session], None]] = {
    "claim": _claim_by_own_service,
    "other service": _take_over_by_another_service,
    "operator": _claim_by_operator,
    "migrated elsewhere": _migrate_by_another_object,
    "migrated": _migrate,
}


def _fenced_client() -> tuple[SessionClient, InMemoryTransport, list[Exception]]:
    told: list[Exception] = []
    client, memory = memory_client(
        service_id="billing", on_error=told.append, on_rejected=lambda _: None, on_fenced=told.append
    )
    return client, memory, told


@pytest.mark.parametrize("way", WAYS)
def test_once_told_each_verb_raises_and_nothing_is_sent(way: str, tmp_path: Path) -> None:
    client, memory, told = _fenced_client()
    session = client.session(user_id="u")
    WAYS[way](memory, session)
    memory.advance(1)  # it polls
    assert [type(each) for each in told] == [SessionFenced] * (way != "migrated")
    assert session.lost
    _CALLS.clear()
    sent, library = len(memory.events()), ArtifactLibrary(tmp_path)

    def save(session: Session) -> object:
        return library.save(session, "text", "report")

    for name, verb in [*VERBS.items(), ("save", save)]:
        with pytest.raises(SessionFenced) as raised:
            verb(session)
        assert raised.value.epoch == 2, name
    assert (len(memory.events()), _CALLS) == (sent, [])
    beats = len(memory.heartbeats())
    assert not session.core.beats.send_heartbeat()
    assert len(memory.heartbeats()) == beats


@pytest.mark.parametrize("way", WAYS)
def test_the_advice_suits_whose_the_session_is_now(way: str) -> None:
    client, memory, _ = _fenced_client()
    session = client.session(user_id="u")
    WAYS[way](memory, session)
    memory.advance(1)
    texts: list[str] = []
    for verb in (VERBS["activity"], VERBS["sync"]):
        with pytest.raises(SessionFenced) as raised:
            verb(session)
        texts.append(f"{raised.value}")
        assert raised.value.moved_to == (None if way == "claim" else "shop")
    for text in texts:
        assert ("take_over=True" in text) == (way == "claim"), text
        assert ("service shop" in text) == (way != "claim"), text


def test_work_that_is_under_way_stops_at_its_next_event() -> None:
    client, memory, _ = _fenced_client()
    done: list[str] = []

    sent: list[int] = []

    def report(session: Session) -> None:
        with session.run("report") as run:
            run.step("first", done.append, "first")
            _claim_by_own_service(memory, session)
            memory.advance(1)
            sent.append(len(memory.events()))
            run.step("second", done.append, "second")

    with client.session(user_id="u") as session, pytest.raises(SessionFenced):
        report(session)
    assert (done, len(memory.events())) == (["first"], sent[0])


def test_the_asyncio_client_stops_too() -> None:
    async def use() -> list[str]:
        memory = InMemoryTransport()
        inner = memory_client(memory=memory, service_id="billing", on_error=lambda _: None)[0]
        client, stopped = AsyncSessionClient.wrap(inner), list[str]()
        async with client.session(user_id="u") as session:
            verbs: dict[str, Callable[[AsyncSession], Any]] = {
                "emit": lambda session: session.emit(SessionActivity("llm", None)),
                "activity": lambda session: session.activity("llm"),
                "update": lambda session: session.update_state({"n": 1}),
                "message": lambda session: session.message("user", "hello"),
                "llm": lambda session: session.llm("large").__aenter__(),
                "run": lambda session: session.run("report").__aenter__(),
                "pause": lambda session: session.pause(),
                "sync": lambda session: session.sync(),
                "read": lambda session: session.conversation.read(),
                "close": lambda session: session.close(),
            }
            _claim_by_own_service(memory, session.sync_session)
            memory.advance(1)
            for name, verb in verbs.items():
                try:
                    await verb(session)
                except SessionFenced:
                    stopped.append(name)
            assert stopped == list(verbs)
        return stopped

    assert len(asyncio.run(use())) == 10


def test_a_poll_of_the_control_api_stops_it_and_another_object_can_take_it_back() -> None:
    kafka = JudgedMemory()
    client = kafka.polling_client(on_error=lambda _: None)
    session = client.session(user_id="u")
    kafka.client()[0].claim(session.session_id)
    client.core.watch.poll_now()
    with pytest.raises(SessionFenced, match="take_over=True"):
        session.activity("llm")
    back = client.claim(session.session_id)
    back.activity("llm")
    assert kafka.outcomes[-1] == "applied"
    with pytest.raises(SessionFenced):
        session.activity("llm")
