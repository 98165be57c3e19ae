"""A run, a step or an artifact for which there is no room raises before any work is done."""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from sessionary.producers import (
    ArtifactLibrary,
    AsyncSession,
    AsyncSessionClient,
    BoundReached,
    EventRejected,
    ProducerSettings,
    QueueFull,
    QuotaExceeded,
    Rejected,
    Run,
    RunNotFound,
    Session,
    SessionClient,
    Unavailable,
    tool,
)
from sessionary.producers.durable import large_values
from sessionary.producers.run_ports import ArtifactView
from sessionary.producers.testing import InMemoryTransport, MemoryQuota, memory_client
from sessionary.producers.testing.clients import memory_ports
from sessionary.producers.testing.memory_runs import MemoryRuns
from sessionary.producers.verdicts import begun_work
from sessionary.schemas.events import RunStarted
from sessionary.schemas.limits import RUNS_OPEN_MAX
from sessionary.stream_processors.core.session import children as judge

FEW = 4
NAMES = [f"step {number}" for number in range(FEW + 2)]
LARGE = "x" * (large_values.VALUE_BYTES_MAX + 1)


@pytest.fixture
def _few_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let client and processor have room for four children."""
    monkeypatch.setattr(begun_work, "CHILDREN_MAX", FEW)
    monkeypatch.setattr(judge, "CHILDREN_MAX", FEW)


def new_session(
    refused: list[EventRejected], library: ArtifactLibrary | None = None
) -> tuple[SessionClient, Session, InMemoryTransport]:
    client, memory = memory_client(on_rejected=refused.append, artifacts=library)
    session = client.session(user_id="ada")
    return client, session, memory


def do_steps(run: Run, names: Sequence[str], ran: list[str]) -> None:
    """Do steps that note their names."""
    for name in names:
        run.step(name, ran.append, name)


def open_and_kill(session: Session, run_id: str, steps: Sequence[str], ran: list[str]) -> None:
    """Do steps of a run whose process is killed: nothing more is reported."""

    def begin() -> None:
        run = session.run("report", mode="detached", run_id=run_id)
        run.__enter__()
        do_steps(run, steps, ran)

    contextvars.copy_context().run(begin)


@pytest.mark.interpreted
@pytest.mark.usefixtures("_few_children")
def test_a_step_without_room_raises_before_its_function_is_called() -> None:
    refused: list[EventRejected] = []
    _, session, memory = new_session(refused)
    ran: list[str] = []
    with pytest.raises(BoundReached) as raised, session.run("report", run_id="r1") as run:
        do_steps(run, NAMES, ran)
    assert ran == NAMES[:FEW]
    assert raised.value.reason == "too_many_children"
    assert raised.value.detail == (
        "run r1 has 4 steps, reserved calls and artifacts, which is the most: step 'step 4' was not begun; "
        "continue in another run"
    )
    with session.run("report", run_id="r2") as run:
        assert run.step("step 4", lambda: 4, key="a") == 4
        assert run.step("step 4", lambda: 5, key="a") == 4
    memory.advance(20)
    assert not refused


@pytest.mark.interpreted
@pytest.mark.usefixtures("_few_children")
def test_a_step_without_room_beside_its_input_does_not_claim_that_nothing_was_sent(tmp_path: Path) -> None:
    refused: list[EventRejected] = []
    _, session, memory = new_session(refused, ArtifactLibrary(tmp_path))
    ran: list[str] = []
    with session.run("report", run_id="r1") as run:
        do_steps(run, NAMES[: FEW - 1], ran)
        with pytest.raises(BoundReached) as raised:
            run.step("the last", ran.append, LARGE)
    assert ran == NAMES[: FEW - 1]
    sent = [verdict.event.envelope.event_type for verdict in memory.verdicts()]
    assert "artifact_completed" in sent
    assert "sent" not in raised.value.detail


@pytest.mark.interpreted
@pytest.mark.usefixtures("_few_children")
def test_a_killed_run_that_is_full_repeats_nothing_when_it_is_resumed() -> None:
    refused: list[EventRejected] = []
    client, session, memory = new_session(refused)
    ran: list[str] = []
    with pytest.raises(BoundReached):
        open_and_kill(session, "r1", NAMES, ran)
    memory.advance(1)
    heir, _ = memory_client(memory=memory, on_rejected=refused.append)
    for _ in range(2):
        with (
            pytest.raises(BoundReached),
            heir.attach(session.session_id, take_over=True).resume_run("r1", actor="ada") as run,
        ):
            do_steps(run, NAMES, ran)
    assert ran == NAMES[:FEW]
    memory.advance(20)
    assert not refused
    del client


@pytest.mark.interpreted
@pytest.mark.usefixtures("_few_children")
def test_a_resumed_run_counts_the_calls_and_artifacts_that_it_had(tmp_path: Path) -> None:
    refused: list[EventRejected] = []
    library = ArtifactLibrary(tmp_path)
    _, session, memory = new_session(refused, library)

    @tool(effect="read")
    def look(what: str) -> str:
        return what

    def begin() -> None:
        session.__enter__()
        run = session.run("report", mode="detached", run_id="r1")
        run.__enter__()
        look("a")
        library.save(session, "text", "note")

    contextvars.copy_context().run(begin)
    memory.advance(1)
    heir, _ = memory_client(memory=memory, on_rejected=refused.append, artifacts=library)
    resumed = heir.attach(session.session_id, take_over=True).resume_run("r1")
    with pytest.raises(BoundReached, match="step 'third' was not begun"), resumed as run:
        do_steps(run, ("first", "second", "third"), [])


class RunsWithoutArtifacts(MemoryRuns):
    """Stands for a control API that fails as it lists artifacts."""

    def fetch_artifacts(self, *_given: object) -> list[ArtifactView]:
        raise Unavailable("the artifacts cannot be read now", 1.0)


def test_a_run_whose_artifacts_cannot_be_read_is_not_resumed() -> None:
    refused: list[EventRejected] = []
    _, session, memory = new_session(refused)
    with pytest.raises(ConnectionError), session.run("report", run_id="r1"):
        raise ConnectionError
    ports = memory_ports(memory, "acme", "service")._replace(runs=RunsWithoutArtifacts(memory))
    with SessionClient(tenant_id="acme", service_id="service", agent_id="heir", ports=ports) as heir:
        with pytest.raises(Unavailable), heir.attach(session.session_id).resume_run("r1"):
            raise AssertionError("it cannot be counted")
        types = [verdict.event.envelope.event_type for verdict in memory.verdicts()]
    assert "run_failed" in types
    assert "run_resumed" not in types


@pytest.mark.interpreted
@pytest.mark.usefixtures("_few_children")
def test_the_output_of_a_step_is_kept_without_room_for_its_artifact(tmp_path: Path) -> None:
    refused: list[EventRejected] = []
    _, session, memory = new_session(refused, ArtifactLibrary(tmp_path))
    ran: list[int] = []

    def write(number: int) -> str:
        ran.append(number)
        return LARGE if number == FEW - 1 else f"{number}"

    with session.run("report", run_id="r1", mode="detached") as run:
        for number in range(FEW):
            run.step(f"step {number}", write, number)
    with session.run("report", run_id="r1", resume=True) as run:
        assert run.step(f"step {FEW - 1}", write, FEW - 1) == LARGE
    assert ran == list(range(FEW))
    memory.advance(20)
    assert [each.event_type for each in refused] == ["artifact_created", "artifact_completed"]


@pytest.mark.interpreted
@pytest.mark.usefixtures("_few_children")
def test_an_artifact_of_a_full_session_raises_and_a_call_has_its_verdict(tmp_path: Path) -> None:
    refused: list[EventRejected] = []
    library = ArtifactLibrary(tmp_path)
    _, session, memory = new_session(refused)
    called: list[str] = []

    @tool(effect="write", once=True)
    def pay(what: str) -> str:
        called.append(what)
        return what

    session.agents.get("ada", "writer")
    session.message("user", "Hello")
    with session:
        assert [pay("a"), pay("a")] == ["a", "a"]
        library.save(session, "text", "note")
        with pytest.raises(BoundReached, match=r"has 4 .* turns without a run, .*: artifact .* continue in a run"):
            library.save(session, "more", "note")
        with pytest.raises(Rejected, match="too_many_children"):
            pay("b")
        assert pay("a") == "a"
        with session.run("report"):
            library.save(session, "more", "note")
        session.message("user", "There is always room for a turn.")
        memory.advance(20)
    assert called == ["a"]
    assert [each.event_type for each in refused] == ["tool_call_started"] * len(refused)


def test_a_run_too_many_raises_and_one_that_ended_makes_room() -> None:
    refused: list[EventRejected] = []
    _, session, memory = new_session(refused)
    runs = [session.run("part", run_id=f"r{number}") for number in range(RUNS_OPEN_MAX)]

    def begin() -> None:
        for run in runs:
            run.__enter__()

    contextvars.copy_context().run(begin)
    done: list[int] = []
    with pytest.raises(BoundReached) as raised, session.run("part", run_id="more"):
        done.append(1)
    assert not done
    assert raised.value.reason == "too_many_runs"
    assert (
        f"session {session.session_id} has 64 open runs in this process, which is the most: run more was not begun. "
        in f"{raised.value}"
    )
    session.emit(RunStarted("attached", "part"), run_id="r0")  # the processor has a word for that one
    contextvars.copy_context().run(runs[0]._send_end, None)
    with session.run("part", run_id="more"):
        done.append(1)
    assert done
    memory.advance(20)
    assert [each.reason for each in refused] == ["illegal_transition"]


def test_a_run_whose_block_was_not_entered_takes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(begun_work, "RUNS_OPEN_MAX", FEW)
    client, memory = memory_client(quota=MemoryQuota(1, "reject"))
    session = client.session(user_id="ada")
    with session.run("holds the only slot"):
        for _ in range(FEW + 1):
            with pytest.raises(QuotaExceeded), session.run("report"):
                raise AssertionError("it has no slot")
    for _ in range(FEW + 1):
        with pytest.raises(RunNotFound), session.resume_run("absent"):
            raise AssertionError("there is none")
    for _ in range(FEW + 1):
        first, again = (session.run("report", run_id="a run") for _ in range(2))
        with pytest.raises(Rejected), first, again:
            raise AssertionError("it is open already")
    with session.run("report"):
        pass
    memory.advance(20)


def test_a_run_whose_block_raised_as_it_began_takes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(begun_work, "RUNS_OPEN_MAX", FEW)
    client, _ = memory_client()
    session = client.session(user_id="ada")

    def fail(self: Run) -> None:
        raise QueueFull("no room")

    async def enter(run: Run) -> None:
        async with run:
            raise AssertionError("it has no room")

    with monkeypatch.context() as patched:
        patched.setattr(Run, "_begin", fail)
        for _ in range(FEW + 1):
            with pytest.raises(QueueFull), session.run("report"):
                raise AssertionError("it has no room")
            with pytest.raises(QueueFull):
                asyncio.run(enter(session.run("report")))
    with session.run("report"):
        pass


def test_runs_that_others_end_take_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(begun_work, "RUNS_OPEN_MAX", FEW)
    refused: list[EventRejected] = []
    _, session, memory = new_session(refused)
    for number in range(FEW + 1):
        session.emit(RunStarted("detached", "part"), run_id=f"r{number}")
    with session.run("report"):
        pass
    memory.advance(20)
    assert not refused


@pytest.mark.interpreted
@pytest.mark.usefixtures("_few_children")
def test_a_step_of_asyncio_raises_alike() -> None:
    async def do_all(session: AsyncSession, step: Callable[[int], Awaitable[int]]) -> None:
        async with session.run("report") as run:
            for number in range(FEW + 1):
                await run.step(f"step {number}", step, number)

    async def main() -> list[int]:
        ran: list[int] = []

        async def step(number: int) -> int:
            ran.append(number)
            return number

        client = AsyncSessionClient(
            tenant_id="acme",
            service_id="service",
            agent_id="agent",
            settings=ProducerSettings.from_env({}),
            ports=memory_ports(InMemoryTransport()),
        )
        async with client, client.session(user_id="ada") as session:
            with pytest.raises(BoundReached, match="step 'step 4' was not begun"):
                await do_all(session, step)
        return ran

    assert asyncio.run(main()) == list(range(FEW))


def test_the_types_of_stored_values_are_those_of_recorded_work() -> None:
    types = {
        getattr(large_values, name)
        for name in ("TOOL_ARGUMENTS", "TOOL_RESULT", "STEP_INPUT", "STEP_OUTPUT", "RUN_RESULT", "CHECKPOINT_DATA")
    }
    assert types == begun_work.VALUE_TYPES
