"""Every verb for asyncio, cancelled while it waits: what comes later changes nothing."""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from sessionary.producers import AsyncSession, Run
from sessionary.producers.ports import Json
from sessionary.producers.run_ports import RunView
from sessionary.producers.session.view import canonical_json
from sessionary.producers.testing import InMemoryTransport
from sessionary.producers.testing.memory_runs import MemoryRuns
from sessionary.schemas.events import LlmDecision, SessionPaused, SessionStartFailed, SessionTerminated
from tests.core.producers.gated_memory import cancel_while_it_waits, new_rig, open_soon
from tests.core.producers.sent_events import sent_types
from tests.core.producers.test_public_surface import GROUP_VERBS, GROUPS, PLAIN, SESSION
from tests.support.waiting import wait_until

LARGE_TEXT = "x" * 20_000  # an artifact


class Case(NamedTuple):
    """How a verb is called, and what is done before it."""

    call: Callable[[AsyncSession], Awaitable[object]]
    prepare: Callable[[AsyncSession], Awaitable[object]] | None = None
    waits: bool = False  # also if there is room for its event
    starts: bool = True


async def fail(session: AsyncSession) -> None:
    await session.error(TimeoutError(), retryable=True)


async def register_agents(session: AsyncSession) -> None:
    for agent_id in ("a", "b"):
        await session.agents.get(agent_id, "writer")


ENDS = [SessionTerminated, SessionStartFailed]
CASES = {
    "emit": Case(lambda s: s.emit(LlmDecision(chosen_tools=("search",)))),
    "activity": Case(lambda s: s.activity("llm")),
    "access": Case(lambda s: s.access("file:///x")),
    "info": Case(lambda s: s.info("x")),
    "progress": Case(lambda s: s.progress(1)),
    "usage": Case(lambda s: s.usage(model="m")),
    "update_state": Case(lambda s: s.update_state({"n": 2}), waits=True),
    "snapshot": Case(lambda s: s.snapshot()),
    "decision": Case(lambda s: s.decision(tools=["search"])),
    "save_checkpoint": Case(lambda s: s.save_checkpoint("import", {"n": 2}), waits=True),
    "load_checkpoint": Case(lambda s: s.load_checkpoint("import"), waits=True),
    "rollback": Case(lambda s: s.rollback(s.snapshot_id or ""), lambda s: s.snapshot(), waits=True),
    "message": Case(lambda s: s.message("user", LARGE_TEXT), waits=True),
    "conversation.add_result": Case(lambda s: s.conversation.add_result("search", LARGE_TEXT), waits=True),
    "conversation.read": Case(lambda s: s.conversation.read(), waits=True),
    "records.execution": Case(lambda s: s.records.execution(), waits=True),
    "records.artifacts": Case(lambda s: s.records.artifacts(), waits=True),
    "records.verify": Case(lambda s: s.records.verify(), waits=True),
    "start_task": Case(lambda s: s.start_task("train", timeout_s=20.0), waits=True),
    "start": Case(lambda s: s.start(), starts=False),
    "lifecycle.fail_start": Case(lambda s: s.lifecycle.fail_start("invalid_config"), starts=False),
    "lifecycle.enter_phase": Case(lambda s: s.lifecycle.enter_phase("updating")),
    "pause": Case(lambda s: s.pause()),
    "ask": Case(lambda s: s.ask("may I?"), waits=True),
    "agents.get": Case(lambda s: s.agents.get("a", "writer"), waits=True),
    "agents.list": Case(lambda s: s.agents.list(), waits=True),
    "agents.handoff": Case(lambda s: s.agents.handoff(to="b", from_agent="a"), register_agents, waits=True),
    "resume": Case(lambda s: s.resume(), lambda s: s.pause(), waits=True),
    "error": Case(fail),
    "recover": Case(lambda s: s.recover(), fail, waits=True),
    "migration.move": Case(lambda s: s.migration.move(to="elsewhere"), waits=True),
    "sync": Case(lambda s: s.sync(), waits=True),
    "complete": Case(lambda s: s.complete()),
    "cancel": Case(lambda s: s.cancel()),
    "lifecycle.force_close": Case(lambda s: s.lifecycle.force_close()),
    "close": Case(lambda s: s.close()),
}


def test_each_verb_that_may_wait_has_a_case() -> None:
    verbs = {name: getattr(AsyncSession, name) for name in SESSION}
    for verb in GROUP_VERBS:
        group, name = verb.split(".")
        verbs[verb] = getattr(GROUPS[group][1], name)
    names = {name for name, verb in verbs.items() if inspect.iscoroutinefunction(verb)}
    assert CASES.keys() == names
    others = {name.split(".")[-1] for name in verbs.keys() - names if callable(verbs[name])}
    assert others <= PLAIN  # the blocks among them, `llm`, `run` and `resume_run`, have tests below


@pytest.mark.parametrize("may_block", [False, True], ids=["", "block"])
@pytest.mark.parametrize("verb", CASES)
def test_a_session_that_is_left_by_a_cancelled_verb_ends_once_and_is_silent(
    verb: str, may_block: bool, tmp_path: Path
) -> None:
    rig, case = new_rig(tmp_path, may_block=may_block), CASES[verb]
    memory = rig.memory
    # A question that was asked stays open.
    last_state, ends = ("Paused", [SessionPaused]) if verb == "ask" else ("Terminated", ENDS)

    async def main() -> AsyncSession:
        session = await rig.client.create(user_id="u", state={"n": 1})
        if case.starts:
            await session.start()
        if case.prepare is not None:
            await case.prepare(session)

        async def leave() -> None:
            async with session:
                assert await cancel_while_it_waits(rig, lambda: case.call(session)) == (may_block or case.waits)
                open_soon(rig)
                raise asyncio.CancelledError

        with pytest.raises(asyncio.CancelledError):
            await leave()
        assert session.local_state == last_state
        return session

    session = asyncio.run(main())  # returns once no thread of its executor is at work any more
    wait_until(lambda: memory.view_session(session).state == last_state, 60, "the end")
    view = memory.view_session(session)
    content = {"n": 1 if verb == "rollback" else view.version}  # an update makes n its version; 1 is the snapshot's
    assert (session.version, session.state) == (view.version, content)
    applied = [type(each.event.payload) for each in memory.verdicts() if each.outcome == "applied"]
    assert [kind for kind in applied if kind in ends] == applied[-1:]
    # What was sent to end a session that was resumed after all came from the epoch before.
    rejected = [each.reason for each in memory.rejections()]
    assert rejected == (["stale_epoch"] if verb in ("resume", "recover") else [])
    memory.advance(600)
    assert (memory.heartbeats(), rig.errors) == ([], [])
    rig.client.sync_client.close()


@pytest.mark.parametrize("may_block", [False, True], ids=["", "block"])
def test_a_cancelled_update_comes_before_a_later_one_or_never(
    may_block: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread is slow: it has not sent the update yet when the caller gives up."""
    rig, slow, release = new_rig(tmp_path, may_block=may_block), threading.Event(), threading.Event()

    def text_of_late(state: dict[str, Json]) -> str:
        if state == {"n": 2} and threading.current_thread() is not threading.main_thread():
            slow.set()
            assert release.wait(60)
        return canonical_json(state)

    monkeypatch.setattr("sessionary.producers.session.updates.canonical_json", text_of_late)

    async def main() -> AsyncSession:
        session = await rig.client.create(user_id="u", state={"n": 1})
        await session.start()
        task = asyncio.create_task(session.update_state({"n": 2}))
        while not slow.is_set() and sent_types(rig.memory)[-1] != "state_updated":
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.wait([task])
        later = asyncio.create_task(session.update_state({"n": 3}))
        await asyncio.wait([later], timeout=0.05)
        release.set()
        await later
        return session

    session = asyncio.run(main())
    assert session.state == {"n": 3}
    view = rig.memory.view_session(session.session_id)
    assert (view.state_json, view.version, rig.memory.rejections()) == ('{"n":3}', session.version, [])


@pytest.mark.parametrize("may_block", [False, True], ids=["", "block"])
def test_a_large_message_that_was_cancelled_is_no_turn_later(may_block: bool, tmp_path: Path) -> None:
    rig = new_rig(tmp_path, may_block=may_block)

    async def main() -> str:
        session = await rig.client.create(user_id="u")
        await session.start()
        assert await cancel_while_it_waits(rig, lambda: session.message("user", LARGE_TEXT))
        rig.memory.open_gate()
        await session.message("user", "the same, shorter")
        return session.session_id

    session_id = asyncio.run(main())
    turns = rig.client.sync_client.attach(session_id).conversation.read(load_artifacts=False)
    assert [turn.content for turn in turns] == ["the same, shorter"]


def test_an_end_for_which_no_thread_was_free_is_sent_all_the_same(tmp_path: Path) -> None:
    rig = new_rig(tmp_path, may_block=True)

    async def main() -> str:
        session = await rig.client.create(user_id="u")
        await session.start()
        other = await rig.client.create(user_id="u")
        rig.gate.shut()
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        blocked = asyncio.create_task(other.info("it has the only thread"))
        await asyncio.sleep(0)
        assert rig.gate.waiting.wait(60)
        task = asyncio.create_task(session.complete())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        rig.memory.open_gate()
        await blocked
        return session.session_id

    assert rig.memory.view_session(asyncio.run(main())).state == "Terminated"


def beats_of_run(memory: InMemoryTransport, run_id: str) -> int:
    return sum(beat.envelope.run_id == run_id for beat in memory.heartbeats())


def run_of(memory: InMemoryTransport, session_id: str, run_id: str) -> RunView | None:
    return MemoryRuns(memory).fetch_run(session_id, run_id, None, 1.0)


def test_under_policy_block_a_run_whose_entry_was_cancelled_is_cancelled(tmp_path: Path) -> None:
    rig = new_rig(tmp_path, may_block=True)
    memory = rig.memory

    async def main() -> tuple[str, Run]:
        session = await rig.client.create(user_id="u")
        await session.start()
        run = session.run("report", run_id="r")
        assert await cancel_while_it_waits(rig, run.__aenter__)
        memory.open_gate()
        return session.session_id, run

    session_id, _run = asyncio.run(main())
    found = run_of(memory, session_id, "r")
    assert found is not None
    assert (found.state, memory.rejections()) == ("cancelled", [])
    memory.advance(30)
    assert beats_of_run(memory, "r") == 0
    assert memory.view_session(session_id).state == "Active"


@pytest.mark.parametrize("may_block", [False, True], ids=["", "block"])
def test_a_run_whose_resumption_was_cancelled_is_silent_and_may_be_resumed(may_block: bool, tmp_path: Path) -> None:
    rig = new_rig(tmp_path, may_block=may_block)
    memory = rig.memory

    async def main() -> tuple[str, list[Run]]:
        session = await rig.client.create(user_id="u")
        await session.start()
        lost = session.run("report", run_id="r")
        await lost.__aenter__()
        lost._beats.stop()  # its process died
        left = session.resume_run("r")
        assert await cancel_while_it_waits(rig, left.__aenter__)
        memory.open_gate()
        return session.session_id, [lost, left]

    session_id, _runs = asyncio.run(main())
    memory.advance(30)
    assert beats_of_run(memory, "r") == 0

    async def resume() -> None:
        session = await rig.client.attach(session_id)
        async with session.resume_run("r") as run:
            run.result = "done"

    asyncio.run(resume())
    found = run_of(memory, session_id, "r")
    assert found is not None
    assert (found.state, memory.rejections()) == ("completed", [])


def test_a_run_that_begins_after_its_caller_has_left_does_not_beat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = new_rig(tmp_path, may_block=False)
    begin, begun, left = Run._begin, threading.Event(), threading.Event()

    def begin_late(run: Run) -> None:
        begun.set()
        assert left.wait(60)
        begin(run)

    async def main() -> Run:
        session = await rig.client.create(user_id="u")
        await session.start()
        monkeypatch.setattr(Run, "_begin", begin_late)
        run = session.run("report", run_id="r", resume=True)
        task = asyncio.create_task(run.__aenter__())
        assert await asyncio.to_thread(begun.wait, 60)
        task.cancel()
        await asyncio.wait([task])
        left.set()
        return run

    _run = asyncio.run(main())
    assert sent_types(rig.memory)[-2:] == ["run_started", "run_running"]
    rig.memory.advance(30)
    assert beats_of_run(rig.memory, "r") == 0


@pytest.mark.parametrize("block", ["run", "llm"])
def test_under_policy_block_a_block_whose_end_was_cancelled_ends(block: str, tmp_path: Path) -> None:
    rig = new_rig(tmp_path, may_block=True)
    memory = rig.memory

    async def main() -> str:
        session = await rig.client.create(user_id="u")
        await session.start()
        entered = session.run("report", run_id="r") if block == "run" else session.llm("large")
        await entered.__aenter__()
        assert await cancel_while_it_waits(rig, lambda: entered.__aexit__(None, None, None))
        memory.open_gate()
        return session.session_id

    session_id = asyncio.run(main())
    assert sent_types(memory)[-1] == ("run_completed" if block == "run" else "usage_recorded")
    memory.advance(30)
    assert (beats_of_run(memory, "r"), memory.rejections()) == (0, [])
    assert memory.view_session(session_id).state == "Active"


@pytest.mark.parametrize("may_block", [False, True], ids=["", "block"])
def test_a_step_that_was_cancelled_while_it_is_recorded_leaves_a_run_that_ends(may_block: bool, tmp_path: Path) -> None:
    rig = new_rig(tmp_path, may_block=may_block)
    memory = rig.memory

    async def collect() -> str:
        return "facts"

    async def main() -> str:
        session = await rig.client.create(user_id="u")
        await session.start()

        async def leave() -> None:
            async with session.run("report", run_id="r") as run:
                assert await cancel_while_it_waits(rig, lambda: run.step("collect", collect))
                open_soon(rig)
                raise asyncio.CancelledError

        with pytest.raises(asyncio.CancelledError):
            await leave()
        await asyncio.to_thread(wait_until, lambda: run_of(memory, session.session_id, "r"), 60, "the run")
        return session.session_id

    session_id = asyncio.run(main())
    found = run_of(memory, session_id, "r")
    assert found is not None
    assert (found.state, memory.rejections()) == ("cancelled", [])
    memory.advance(30)
    assert beats_of_run(memory, "r") == 0


def test_a_cancelled_attach_adopts_nothing_and_does_not_beat(tmp_path: Path) -> None:
    rig = new_rig(tmp_path, may_block=False)
    memory = rig.memory
    holder = rig.client.sync_client.session(user_id="u")
    holder.lifecycle.detach()

    async def main() -> None:
        assert await cancel_while_it_waits(rig, lambda: rig.client.attach(holder.session_id))
        memory.open_gate()

    asyncio.run(main())
    memory.advance(30)
    assert [beat for beat in memory.heartbeats() if beat.envelope.session_id == holder.session_id] == []
