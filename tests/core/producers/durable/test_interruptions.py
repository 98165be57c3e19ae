"""What is left of work that stood still for long: its plan, its place, and its results.

All in one process: an interruption that leaves no event stands for its death.
"""

from collections.abc import Callable
from contextvars import Context

import pytest

from sessionary.producers import Limits, Run, Session, SessionClient, tool
from sessionary.producers.tasks.worker import TaskFunction
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.schemas.events import StateUpdated, StepStarted
from tests.core.producers.tasks.test_tasks import FUNCTIONS, Stage

LONG_GRACE = Limits(grace_ms=3_600_000)
PAGES = [f"page-{number}" for number in range(200)]


def die_in(session: Session, work: Callable[[Run], object]) -> None:
    """Interrupt run `r` in its work; nothing says that it ended."""

    def live() -> None:
        run = session.run("report", run_id="r", input={"question": "how is it?"}, plan=["plan", "parse", "sum"])
        run.__enter__()
        with pytest.raises(KeyboardInterrupt):
            work(run)

    Context().run(live)  # so that its run is not the current one of what follows


def started_steps(memory: InMemoryTransport) -> list[str]:
    return [event.payload.name for event in memory.events() if isinstance(event.payload, StepStarted)]


class Model:
    """Plans in one way, or in another."""

    def __init__(self, *answer: str) -> None:
        self.answer = list(answer)
        self.asked = 0

    def plan(self) -> list[str]:
        self.asked += 1
        return self.answer

    def carry_out(self, run: Run, dies_in: str | None = None) -> None:
        """Do the steps of the plan in its order."""

        def work(name: str) -> str:
            if name == dies_in:
                raise KeyboardInterrupt
            return name

        for name in run.step("plan", self.plan):
            run.step(name, work, name)


def test_a_model_that_would_plan_otherwise_now_is_not_asked_again() -> None:
    client, memory = memory_client()
    first, second = Model("search", "write", "send"), Model("apologise")
    with client, client.session(user_id="u") as session:
        die_in(session, lambda run: first.carry_out(run, dies_in="write"))
        with session.resume_run("r") as run:
            second.carry_out(run)
    assert started_steps(memory) == ["plan", "search", "write", "write", "send"]
    assert (first.asked, second.asked) == (1, 0)
    assert memory.rejections() == []


def test_after_half_an_hour_of_silence_a_run_goes_on_at_its_last_checkpoint() -> None:
    """R-004-01. Its session has timed out meanwhile; who resumes it is told what was going on.

    A checkpoint has the place in the list, not the pages parsed before: the caller keeps those.
    """
    client, memory = memory_client()
    parsed: list[str] = []

    def parse(run: Run, dies_after: int | None = None) -> None:
        for page in run.items(PAGES, name="parse"):
            if len(parsed) == dies_after:
                raise KeyboardInterrupt
            parsed.append(page)

    session = client.session(user_id="u", limits=LONG_GRACE)

    def work(run: Run) -> None:
        run.step("plan", lambda: "as ever")
        parse(run, dies_after=72)

    die_in(session, work)
    memory.silence(session)
    memory.advance(30 * 60)
    assert memory.find_row(session.session_id).state == "Timeout"

    again, _ = memory_client(agent_id="again", memory=memory)
    found = again.attach(session.session_id)
    found.resume()
    plan = found.resume_run("r").resume_plan()
    assert (plan.request, plan.done, plan.to_retry, plan.next) == (
        *({"question": "how is it?"}, ("plan",)),
        *(("parse",), "parse"),
    )
    with found.resume_run("r") as run:
        assert run.last_checkpoint is not None
        assert run.last_checkpoint.processed_count == 70
        parse(run)
        run.step("sum", len, parsed)
    assert parsed == [*PAGES[:72], *PAGES[70:]]
    assert memory.rejections() == []


def test_three_runs_of_one_user_side_by_side_have_states_of_their_own() -> None:
    client, memory = memory_client()
    with client:
        sessions = [client.session(user_id="ann") for _ in range(3)]

        def begin(number: int) -> None:
            run = sessions[number].run("report", run_id="r", input=number)
            run.__enter__()
            for step in range(number + 1):
                run.step(f"step-{step}", lambda: number)

        for number in range(3):
            Context().run(begin, number)
        for number, session in enumerate(sessions):
            ((run, steps, _),) = session.records.execution().runs
            assert (run.run_id, run.state) == ("r", "running")
            assert [step.name for step in steps] == [f"step-{step}" for step in range(number + 1)]
            assert session.resume_run("r").resume_plan().request == number
    assert memory.rejections() == []


def test_each_of_ten_tool_calls_reads_what_the_one_before_wrote() -> None:
    client, memory = memory_client()
    session = client.session(user_id="u", state={"notes": []})
    others: list[SessionClient] = [memory_client(agent_id=f"a{n}", memory=memory)[0] for n in range(2)]

    @tool(effect="read")
    def note(number: int) -> int:
        """Add a note, in one client or in the other, to what that one reads."""
        own = others[number % 2].attach(session.session_id)
        own.sync()
        assert own.state == {"notes": [*range(number)]}
        version = own.update_state({"notes": [*range(number + 1)]})
        own.lifecycle.detach()
        return version

    with client, session:
        assert [note(number) for number in range(10)] == [*range(2, 12)]
    updates = [event.payload for event in memory.events() if isinstance(event.payload, StateUpdated)]
    assert [(update.base_version, update.new_version) for update in updates] == [(n, n + 1) for n in range(1, 11)]
    assert memory.rejections() == []


@pytest.mark.parametrize("age_s", [10 * 60, 5 * 3_600, 20 * 86_400], ids=["minutes", "hours", "days"])
def test_the_result_of_a_task_is_the_same_whenever_it_is_asked_for(age_s: int) -> None:
    stage = Stage()
    task_id, request = stage.start()
    tasks: dict[str, TaskFunction] = dict(FUNCTIONS)
    stage.attempt(request).carry_out(tasks)
    result = stage.client.get_task_results(task_id)
    assert result == {"task_id": task_id, "status": "completed", "result": {"accuracy": 0.9, "epochs": 4}}
    stage.memory.silence(stage.session)
    stage.memory.advance(age_s)
    later, _ = memory_client(agent_id="later", memory=stage.memory)
    assert later.get_task_results(task_id) == result
