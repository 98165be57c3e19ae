"""What a client reads of runs: the same of the memory, and by HTTP of the real API's pages."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sessionary.producers import ProducerSettings, Session, SessionClient, TookEffect, Verdict, tool
from sessionary.producers.control.http_control import HttpControl
from sessionary.producers.control.http_runs import HttpRuns
from sessionary.producers.run_ports import CallView, RunReads, RunView, StepView
from sessionary.producers.testing import InMemoryTransport, memory_ports
from sessionary.producers.testing.memory_runs import MemoryRuns
from sessionary.schemas.events import RunRunning
from sessionary.schemas.types import Checkpoint, ErrorInfo
from tests.core.producers.served_memory import new_memory, serve_memory

TIMEOUT_S = 20.0
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


def test_a_run_is_told_with_its_contents_and_its_last_checkpoint(
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
    )
    assert abs(at - memory.now_ms) < 60_000


def test_steps_and_calls_are_told_in_order_and_without_contents(client: SessionClient, reads: RunReads) -> None:
    with client.session(user_id="u") as session:
        fail_in_write(session)
        of_run = session.session_id, "r/1"
        collected, written = reads.fetch_steps(*of_run, TIMEOUT_S)
        assert collected == StepView("collect/a", "succeeded", 1)
        assert written == StepView("write", "failed", 1, BROKEN)
        assert reads.fetch_step(*of_run, "collect/a", TIMEOUT_S) == collected._replace(output_json='"X"')
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


def test_a_verdict_is_told_with_the_record(client: SessionClient, reads: RunReads, memory: InMemoryTransport) -> None:
    with client.session(user_id="u") as session, session.run("report", run_id="r") as run:
        run.report_progress(0.5)
        applied = memory.verdicts()[-1]
        session.emit(RunRunning(), run_id="unknown")
        refused = memory.verdicts()[-1]
        for event, verdict in (
            (applied, Verdict(applied=True, reason=None)),
            (refused, Verdict(applied=False, reason="unknown_run")),
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


def test_an_interrupted_run_goes_on_by_what_is_told(client: SessionClient, memory: InMemoryTransport) -> None:
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
        run._leave_marks()
        memory.advance(2)
        plan = session.resume_run("r").resume_plan()
        assert (plan.state, plan.done, plan.to_retry, plan.next) == ("paused", ("collect",), ("order",), "order")
        assert len(plan.unresolved) == 1
        with session.resume_run("r") as resumed:
            assert list(resumed.items(range(7), name="collect")) == []
            assert resumed.step("order", order, "x") == "sent"
        assert session.resume_run("r").resume_plan().calls_done == plan.unresolved
    assert (len(done), calls) == (7, ["x"])
