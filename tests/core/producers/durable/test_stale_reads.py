"""Resuming a run although reads are late: the processor shows an event only if it is waited for."""

from collections.abc import Callable, Sequence
from contextvars import copy_context

import pytest

from sessionary.producers import Run, SessionClient, TookEffect, tool
from sessionary.producers.run_ports import LOG_END, CallView, LogPosition, RunView, SessionView
from sessionary.producers.testing import InMemoryTransport, memory_client, memory_ports
from sessionary.producers.testing.memory_runs import MemoryRuns
from tests.core.producers.durable.test_tool import crash_in_call
from tests.support.crash_points import Killed, Life


class LateRuns(MemoryRuns):
    """Tells of a run what it reported first, unless an event is waited for."""

    def __init__(self, memory: InMemoryTransport) -> None:
        super().__init__(memory)
        self._first: RunView | None = None

    def fetch_run(self, session_id: str, run_id: str, after: LogPosition | None, timeout_s: float) -> RunView | None:
        view = super().fetch_run(session_id, run_id, after, timeout_s)
        if after is None:
            self._first = view = self._first or view
        return view


class UnjudgedRuns(MemoryRuns):
    """Tells of a run only if an event is waited for: nothing else is judged yet."""

    def fetch_run(self, session_id: str, run_id: str, after: LogPosition | None, timeout_s: float) -> RunView | None:
        return None if after is None else super().fetch_run(session_id, run_id, after, timeout_s)


@pytest.mark.parametrize("may_begin", [False, True])
def test_a_run_that_failed_just_now_goes_on_in_the_same_process(may_begin: bool) -> None:
    memory = InMemoryTransport()
    ports = memory_ports(memory, "acme", "service")._replace(runs=UnjudgedRuns(memory))
    done: list[str] = []

    def carry_out(run: Run) -> None:
        run.step("one", done.append, "one")
        if done.count("two") == 0:
            done.append("two")
            raise ConnectionError
        run.result = "done"

    with SessionClient(tenant_id="acme", service_id="service", agent_id="agent", ports=ports) as client:
        session = client.create(user_id="u")
        session.start()
        with pytest.raises(ConnectionError), session.run("report", run_id="r") as run:
            carry_out(run)
        resumed = session.run("report", run_id="r", resume=True) if may_begin else session.resume_run("r")
        with resumed as run:
            carry_out(run)
    assert done == ["one", "two"]
    assert memory.rejections() == []
    sent = [verdict.event.envelope.event_type for verdict in memory.verdicts()]
    assert (sent.count("run_started"), sent.count("run_resumed"), sent.count("run_completed")) == (1, 1, 1)


def test_a_run_that_goes_on_once_its_call_is_resolved_is_not_resumed_again() -> None:
    def die(value: object) -> object:
        raise KeyboardInterrupt

    send = tool(name="late send", effect="write", query=lambda key: TookEffect("sent"), deadline=5)(die)
    client, memory = memory_client()
    session = client.create(user_id="u")
    session.start()
    with client:
        crash_in_call(session, send)
        memory.advance(6)
        ports = memory_ports(memory, "acme", "service")._replace(runs=LateRuns(memory))
        with (
            SessionClient(tenant_id="acme", service_id="service", agent_id="second", ports=ports) as second,
            second.attach(session.session_id).resume_run("r") as run,
        ):
            run.result = "done"
    assert memory.rejections() == []
    assert memory.verdicts()[-1].event.envelope.event_type == "run_completed"


class OvertakenRuns(MemoryRuns):
    """Lets time pass once a run was read: a call of the dead process is over only then."""

    def __init__(self, memory: InMemoryTransport) -> None:
        super().__init__(memory)
        self._waits, self._is_over = memory, False

    def fetch_calls(self, session_id: str, run_id: str, timeout_s: float) -> Sequence[CallView]:
        calls = super().fetch_calls(session_id, run_id, timeout_s)
        if not self._is_over:
            self._is_over = True
            self._waits.advance(6)
        return calls


def in_a_step(run: Run, send: Callable[[str], str]) -> list[str]:
    return [run.step("send", send, "x")]


def in_a_list(run: Run, send: Callable[[str], str]) -> list[str]:
    return [send(item) for item in run.items(["x"], name="letters")]


@pytest.mark.parametrize(("work", "once_it_is_complete"), [(in_a_step, ["sent"]), (in_a_list, [])])
def test_a_step_whose_beginning_is_refused_begins_once_the_run_goes_on(
    work: Callable[[Run, Callable[[str], str]], list[str]], once_it_is_complete: list[str]
) -> None:
    """A refused attempt that went on left a completed run without its step."""
    sent: list[str] = []
    life, memory = Life(None), InMemoryTransport()

    def die(value: str) -> str:
        sent.append(value)
        life.is_dead = True
        raise Killed

    send = tool(name="overtaken send", effect="write", query=lambda key: TookEffect("sent"), deadline=5)(die)
    ports = memory_ports(memory, "acme", "service")
    first = SessionClient(
        tenant_id="acme", service_id="service", agent_id="a", ports=ports._replace(**life.guard_ports(ports))
    )
    session = first.create(user_id="u")
    session.start()

    def work_until_killed() -> None:
        with pytest.raises(Killed), session.run("report", run_id="r") as run:
            work(run, send)

    copy_context().run(work_until_killed)  # a killed process leaves none
    ports = ports._replace(runs=OvertakenRuns(memory))
    with SessionClient(tenant_id="acme", service_id="service", agent_id="second", ports=ports) as second:
        again = second.attach(session.session_id)
        with again.run("report", run_id="r", resume=True) as run:
            run.result = work(run, send)
        assert run.result == ["sent"]
        with again.run("report", run_id="r", resume=True) as run:
            assert work(run, send) == once_it_is_complete
        assert run.result == ["sent"]
    assert sent == ["x"]
    refused = [judged.event.envelope.event_type for judged in memory.rejections()]
    assert refused == ["run_running", "step_started"]


class AskedControl:
    """Notes from where on a session is read."""

    def __init__(self, memory: InMemoryTransport) -> None:
        self._memory = memory
        self.asked: list[LogPosition | None] = []

    def check_configured(self) -> None:
        self._memory.check_configured()

    def fetch_session(self, session_id: str, after: LogPosition | None, timeout_s: float) -> SessionView:
        self.asked.append(after)
        return self._memory.fetch_session(session_id, after, timeout_s)


@pytest.mark.parametrize("opens", [False, True])
def test_who_goes_on_with_a_session_reads_all_that_others_have_sent(opens: bool) -> None:
    memory = InMemoryTransport()
    control = AskedControl(memory)
    first, _ = memory_client(memory=memory)
    session = first.create(user_id="u", session_id="conversation")
    session.start()
    ports = memory_ports(memory, "acme", "service")._replace(control=control)
    with SessionClient(tenant_id="acme", service_id="service", agent_id="second", ports=ports) as second:
        if opens:
            second.open("conversation", user_id="u")
        else:
            second.attach("conversation")
    assert control.asked == [LOG_END]
