"""What a client reads of runs and conversations: the same of the memory, and of the real API."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sessionary.producers import (
    ArtifactLibrary,
    Limits,
    ProducerSettings,
    RunGone,
    Session,
    SessionClient,
    SessionLost,
    TookEffect,
    Verdict,
    tool,
)
from sessionary.producers.control.http_control import HttpControl
from sessionary.producers.control.http_runs import HttpRuns
from sessionary.producers.run_ports import (
    ArtifactView,
    CallView,
    CheckpointView,
    ExecutionView,
    MessageView,
    RunAtWork,
    RunReads,
    RunView,
    StepView,
)
from sessionary.producers.testing import InMemoryTransport, memory_ports
from sessionary.producers.testing.memory_runs import MemoryRuns
from sessionary.schemas.events import MessageAppended, RunResumed, RunRunning
from sessionary.schemas.ids import new_session_id
from sessionary.schemas.types import Checkpoint, ErrorInfo
from tests.core.producers.served_memory import new_memory, serve_memory

TIMEOUT_S = 60.0
BROKEN = ErrorInfo("fatal", "ValueError", "bad month")


@pytest.fixture
def memory() -> InMemoryTransport:
    return new_memory()


@pytest.fixture(params=["memory", "http"])
def reads(request: pytest.FixtureRequest, memory: InMemoryTransport, tmp_path: Path) -> Iterator[RunReads]:
    """What answers: both must tell the same."""
    if request.param == "memory":
        yield MemoryRuns(memory)
        return
    with serve_memory(memory, tmp_path) as url:
        settings = ProducerSettings.from_env({}, control_url=url, api_token="token")
        yield HttpRuns(HttpControl(settings, "acme"))


@pytest.fixture
def client(memory: InMemoryTransport, reads: RunReads) -> Iterator[SessionClient]:
    """A client whose own questions about runs go to `reads`."""
    settings = ProducerSettings.from_env({})
    ports = memory_ports(memory)._replace(runs=reads)
    with SessionClient(tenant_id="acme", service_id="s", agent_id="a", settings=settings, ports=ports) as made:
        yield made


def fail_in_write(session: Session) -> None:
    def write() -> None:
        raise ValueError("bad month")

    def work() -> None:
        run.step("collect/a", send, "x")
        run.checkpoint("draft_made", "report", processed_count=3, last_item_id="i", bytes_written=7)
        run.step("write", write)

    send = tool(name="send", effect="write", key=lambda text: f"order/{text}")(str.upper)
    run = session.run("report", input={"month": 1}, plan=["collect", "write"], run_id="r/1")
    with pytest.raises(ValueError, match="bad month"), run:
        work()


def test_a_run_is_reported_with_its_contents_and_its_last_checkpoint(
    client: SessionClient, reads: RunReads, memory: InMemoryTransport
) -> None:
    with client.session(user_id="u") as session:
        fail_in_write(session)
        found = reads.fetch_run(session.session_id, "r/1", None, TIMEOUT_S)
    assert found is not None
    assert found.checkpoint is not None
    at = found.checkpoint.at
    assert found == RunView(
        *("r/1", "attached", "report", "failed", BROKEN, '{"month":1}', '["collect","write"]', None, None, None),
        Checkpoint(found.checkpoint.checkpoint_id, "report", at, "draft_made", None, 3, "i", 7),
        "ValueError",
    )
    assert abs(at - memory.now_ms) < 60_000


def test_steps_and_calls_are_reported_in_order_and_without_contents(client: SessionClient, reads: RunReads) -> None:
    with client.session(user_id="u") as session:
        fail_in_write(session)
        of_run = session.session_id, "r/1"
        collected, written = reads.fetch_steps(*of_run, TIMEOUT_S)
        assert collected == StepView("collect/a", "succeeded", 1)
        assert written == StepView("write", "failed", 1, BROKEN)
        assert reads.fetch_step(*of_run, "collect/a", TIMEOUT_S) == collected._replace(
            output_json='"X"', input_json='{"args":["x"]}'
        )
        (call,) = reads.fetch_calls(*of_run, TIMEOUT_S)
        assert call == CallView("send", "order/x", "succeeded", 1, side_effect=True)
        assert reads.fetch_call(*of_run, "order/x", None, TIMEOUT_S) == call._replace(result_json='"X"')


def test_a_call_of_no_run_is_its_session_s(client: SessionClient, reads: RunReads) -> None:
    send = tool(name="send", effect="write", key=lambda text: text)(str.upper)
    with client.session(user_id="u") as session:
        send("k")
        found = reads.fetch_call(session.session_id, None, "k", None, TIMEOUT_S)
    assert found == CallView("send", "k", "succeeded", 1, side_effect=True, result_json='"K"')


def test_a_call_that_runs_names_its_reservation(
    client: SessionClient, reads: RunReads, memory: InMemoryTransport
) -> None:
    found: list[CallView | None] = []

    @tool(name="look", effect="read", key=lambda: "k")
    def look() -> None:
        found.append(reads.fetch_call(session.session_id, None, "k", None, TIMEOUT_S))

    with client.session(user_id="u") as session:
        look()
    (started,) = (event for event in memory.events() if event.envelope.event_type == "tool_call_started")
    assert found == [
        CallView("look", "k", "running", 1, side_effect=False, reservation=started.envelope.event_id),
    ]


def test_a_verdict_is_reported_with_the_record(
    client: SessionClient, reads: RunReads, memory: InMemoryTransport
) -> None:
    with client.session(user_id="u") as session, session.run("report", run_id="r") as run:
        run.report_progress(0.5)
        applied = memory.verdicts()[-1]
        session.emit(RunRunning(), run_id="unknown")
        rejected = memory.verdicts()[-1]
        for event, verdict in (
            (applied, Verdict(applied=True, reason=None)),
            (rejected, Verdict(applied=False, reason="unknown_run")),
        ):
            after = event.partition, event.offset
            found = reads.fetch_run(session.session_id, "r", after, TIMEOUT_S)
            assert found is not None
            assert found.verdict == verdict


def test_what_does_not_exist_is_none(client: SessionClient, reads: RunReads) -> None:
    with client.session(user_id="u") as session:
        assert reads.fetch_run(session.session_id, "r", None, TIMEOUT_S) is None
        assert list(reads.fetch_steps(session.session_id, "r", TIMEOUT_S)) == []
        assert list(reads.fetch_calls(session.session_id, "r", TIMEOUT_S)) == []
        assert reads.fetch_call(session.session_id, None, "k", None, TIMEOUT_S) is None
        with session.run("report", run_id="r"):
            assert reads.fetch_step(session.session_id, "r", "collect", TIMEOUT_S) is None
            assert reads.fetch_call(session.session_id, "r", "k", None, TIMEOUT_S) is None


def test_turns_are_reported_in_order_and_only_the_last_ones(client: SessionClient, reads: RunReads) -> None:
    with client.session(user_id="u") as session:
        session.message("user", "Hello")
        with session.run("report", run_id="r/1"):
            session.conversation.add_result("look", {"n": 1})
        session.emit(MessageAppended("assistant", artifact_id="a-1"))
        first, second, third = reads.fetch_messages(session.session_id, 200, None, TIMEOUT_S)
        assert list(reads.fetch_messages(session.session_id, 2, None, TIMEOUT_S)) == [second, third]
        assert list(reads.fetch_messages(session.session_id, 0, None, TIMEOUT_S)) == []
    assert first._replace(at_ms=0) == MessageView(1, "user", "Hello", agent_id="a", service_id="s")
    assert second._replace(at_ms=0) == MessageView(
        2, "tool", '{"n":1}', "look", run_id="r/1", agent_id="a", service_id="s"
    )
    assert third._replace(at_ms=0) == MessageView(3, "assistant", None, artifact_id="a-1", agent_id="a", service_id="s")
    assert first.at_ms <= second.at_ms <= third.at_ms


def test_artifacts_are_reported_with_their_run_or_session(
    client: SessionClient, reads: RunReads, tmp_path: Path
) -> None:
    library = ArtifactLibrary(tmp_path)
    with client.session(user_id="u") as session:
        with session.run("report", run_id="r/1"):
            saved = library.save(session, "text", "markdown", file_name="a.md", media_type="text/markdown")
        stream = library.stream(session, "log")
        stream.append(b"12345")
        (of_run,) = reads.fetch_artifacts(session.session_id, "r/1", None, TIMEOUT_S)
        (of_session,) = reads.fetch_artifacts(session.session_id, None, None, TIMEOUT_S)
        assert list(reads.fetch_artifacts(session.session_id, "r/2", None, TIMEOUT_S)) == []
    file = ("a.md", "text/markdown")
    assert of_run == ArtifactView(saved.artifact_id, "markdown", saved.uri, "complete", 4, saved.sha256, "r/1", *file)
    assert of_session == ArtifactView(stream.artifact_id, "log", stream.uri, "open", 5, None)


def test_checkpoints_are_reported_with_their_run_or_session(client: SessionClient, reads: RunReads) -> None:
    with client.session(user_id="u") as session:
        first = session.save_checkpoint("a/b", [1])
        second = session.save_checkpoint("a/b", [1, 2], stage="half")
        with session.run("report", run_id="r/1") as run:
            of_run = run.checkpoint("draft_made", "write", processed_count=3, last_item_id="c", data={})
        (known,) = reads.fetch_checkpoints(session.session_id, "r/1", "write", None, TIMEOUT_S)
        found = reads.fetch_checkpoints(session.session_id, None, "a/b", None, TIMEOUT_S)
        heads = reads.fetch_checkpoints(session.session_id, None, None, None, TIMEOUT_S)
        assert list(reads.fetch_checkpoints(session.session_id, None, "write", None, TIMEOUT_S)) == []
        assert list(reads.fetch_checkpoints(session.session_id, "r/2", None, None, TIMEOUT_S)) == []
    assert known._replace(at_ms=0) == CheckpointView("write", of_run, 0, "draft_made", None, 3, "c", None, "{}")
    assert [(each.checkpoint_id, each.stage, each.data_json) for each in found] == [
        (first, None, "[1]"),
        (second, "half", "[1,2]"),
    ]
    assert heads == [each._replace(data_json=None) for each in found]


def test_what_a_session_is_at_is_reported_without_contents(client: SessionClient, reads: RunReads) -> None:
    send = tool(name="send", effect="write", key=lambda text: text)(str.upper)
    with client.session(user_id="u") as session:
        send("k")
        fail_in_write(session)
        with session.run("report", run_id="r/2", input={"month": 2}) as run:
            run.step("send", send, "x")
            found = reads.fetch_execution(session.session_id, None, TIMEOUT_S)
    in_run, outside = (CallView("send", key, "succeeded", 1, side_effect=True) for key in ("x", "k"))
    run_view = RunView("r/2", "attached", "report", "running", reason_code="running")
    at_work = RunAtWork(run_view, [StepView("send", "succeeded", 1)], [in_run])
    (reported,) = found.runs
    assert reported.run.checkpoint is not None
    assert reported._replace(run=reported.run._replace(checkpoint=None)) == at_work
    assert found == ExecutionView([reported], [outside])


def test_the_parts_of_an_unknown_session_are_lost(reads: RunReads) -> None:
    session_id = new_session_id()
    with pytest.raises(SessionLost):
        reads.fetch_messages(session_id, 1, None, TIMEOUT_S)
    with pytest.raises(SessionLost):
        reads.fetch_artifacts(session_id, None, None, TIMEOUT_S)
    with pytest.raises(SessionLost):
        reads.fetch_execution(session_id, None, TIMEOUT_S)


def test_a_run_and_a_task_are_there_for_thirty_days_then_gone_for_fourteen_and_then_unknown(
    client: SessionClient, reads: RunReads, memory: InMemoryTransport
) -> None:
    with client.session(user_id="u") as session:
        task_id = session.start_task("report")
        with session.run("report", run_id="r", mode="detached"):
            pass
    of_run = session.session_id, "r"
    memory.advance(86_400 + 120)  # nothing was heard of the task, so it failed
    finished = reads.fetch_run(session.session_id, task_id, None, TIMEOUT_S)
    assert finished is not None
    assert finished.state == "failed"
    memory.advance(28 * 86_400)
    assert reads.fetch_run(*of_run, None, TIMEOUT_S) is not None
    memory.advance(2 * 86_400 + 3_600)
    for run_id in ("r", task_id):
        with pytest.raises(RunGone):
            reads.fetch_run(session.session_id, run_id, None, TIMEOUT_S)
    for ask in (reads.fetch_steps, reads.fetch_calls):
        with pytest.raises(RunGone):
            ask(*of_run, TIMEOUT_S)
    with pytest.raises(RunGone):
        reads.fetch_step(*of_run, "s", TIMEOUT_S)
    with pytest.raises(RunGone):
        reads.fetch_call(*of_run, "k", None, TIMEOUT_S)
    with pytest.raises(RunGone):
        reads.fetch_artifacts(*of_run, None, TIMEOUT_S)
    asked = client if isinstance(reads, MemoryRuns) else client_of(reads, memory)
    for ask_task in (asked.check_task_status, asked.get_task_results):
        assert ask_task(task_id) == {"error": "task no longer kept"}
    with pytest.raises(RunGone):
        asked.find_task(task_id)
    memory.advance(16 * 86_400)
    assert reads.fetch_run(*of_run, None, TIMEOUT_S) is None
    assert asked.check_task_status(task_id) == {"error": "task not found"}


def client_of(reads: RunReads, memory: InMemoryTransport) -> SessionClient:
    """Return a client whose questions about tasks go by HTTP."""
    assert isinstance(reads, HttpRuns)
    ports = memory_ports(memory)._replace(runs=reads, tasks=reads._control)
    settings = ProducerSettings.from_env({})
    return SessionClient(tenant_id="acme", service_id="s", agent_id="a", settings=settings, ports=ports)


def test_a_failed_run_may_be_resumed_for_a_day_and_its_call_is_answered_again_as_long(
    client: SessionClient, memory: InMemoryTransport
) -> None:
    sent: list[str] = []
    send = tool(name="send", effect="write", key=lambda text: text)(sent.append)
    limits = Limits(model_ms=10**9, idle_ms=10**9, max_duration_ms=10**9, override=True)

    def lose_after_send(session: Session, run_id: str) -> None:
        with session.run("report", run_id=run_id, mode="detached") as run:
            run.step("send", send, run_id)
            raise ConnectionError("lost")

    with client.session(user_id="u", limits=limits) as session:
        for run_id in ("early", "late"):
            with pytest.raises(ConnectionError):
                lose_after_send(session, run_id)
        memory.advance(86_400 - 60)
        with session.resume_run("early") as again:
            again.step("send", send, "early")
        assert sent == ["early", "late"]
        memory.advance(120)
        session.emit(RunResumed(), run_id="late")
        assert (memory.verdicts()[-1].outcome, memory.verdicts()[-1].reason) == ("rejected", "resume_expired")


def test_an_interrupted_run_goes_on_by_what_is_reported(client: SessionClient, memory: InMemoryTransport) -> None:
    calls: list[str] = []

    @tool(name="order", effect="write", deadline=1, query=lambda key: TookEffect("sent"))
    def order(text: str) -> str:
        calls.append(text)
        raise KeyboardInterrupt

    with client.session(user_id="u") as session:
        run = session.run("report", run_id="r", plan=["collect", "order"])
        run.__enter__()
        done = list(run.items(range(7), name="collect"))
        with pytest.raises(KeyboardInterrupt):
            run.step("order", order, "x")
        run._leave_metadata()
        memory.advance(2)
        plan = session.resume_run("r").resume_plan()
        assert (plan.state, plan.done, plan.to_retry, plan.next) == ("paused", ("collect",), ("order",), "order")
        assert len(plan.unresolved) == 1
        with session.resume_run("r") as resumed:
            assert list(resumed.items(range(7), name="collect")) == []
            assert resumed.step("order", order, "x") == "sent"
        assert session.resume_run("r").resume_plan().calls_done == plan.unresolved
    assert (len(done), calls) == (7, ["x"])
