"""`Run.plan`: a resumed run carries out its recorded plan; only a plan that failed is replaced."""

import asyncio
from contextlib import suppress

import pytest

from sessionary.producers import AsyncSessionClient, Invalid, Json, Run, RunOver, Session
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.schemas.events import PlanRecorded, PlanReplaced
from tests.core.producers.durable.test_run_steps import kinds, payloads


class Planner:
    """A model that plans, and counts how often it was asked; each plan has one more step."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def plan(self, question: str) -> Json:
        self.asked.append(question)
        return {"steps": [f"step {n}" for n in range(1, len(self.asked) + 2)]}

    async def plan_later(self, question: str) -> Json:
        await asyncio.sleep(0)
        return self.plan(question)


def carry_out(run: Run, plan: Json, done: list[str], dies_after: int | None = None) -> None:
    for name in plan["steps"]:
        run.step(name, done.append, name)
        if len(done) == dies_after:
            raise KeyboardInterrupt


def plans(memory: InMemoryTransport) -> list[PlanRecorded | PlanReplaced]:
    return [payload for payload in payloads(memory) if isinstance(payload, PlanRecorded | PlanReplaced)]


def die(session: Session, planner: Planner, done: list[str]) -> None:
    """Let a process plan, carry out the first step, and die."""
    run = session.run("report", run_id="r")
    run.__enter__()
    with pytest.raises(KeyboardInterrupt):
        carry_out(run, run.plan(planner.plan, "q"), done, dies_after=1)
    run._leave_metadata()


def test_a_resumed_run_carries_out_its_recorded_plan_and_asks_for_no_other() -> None:
    client, memory = memory_client()
    planner, done = Planner(), list[str]()
    with client, client.session(user_id="u") as session:
        die(session, planner, done)
        with session.resume_run("r") as run:
            assert run.resume_plan().next == "step 2"
            carry_out(run, run.plan(planner.plan, "q"), done)
            assert run.plan(planner.plan, "q") == {"steps": ["step 1", "step 2"]}
    assert (planner.asked, done) == (["q"], ["step 1", "step 2"])
    assert plans(memory) == [PlanRecorded('{"steps":["step 1","step 2"]}')]
    assert memory.rejections() == []


@pytest.mark.parametrize("failed", ["the tool search is gone", LookupError("the tool search is gone")])
def test_a_plan_that_failed_is_replaced_once_with_the_cause(failed: str | BaseException) -> None:
    client, memory = memory_client()
    planner, done = Planner(), list[str]()
    with client, client.session(user_id="u") as session:
        die(session, planner, done)
        with session.resume_run("r") as run:
            plan = run.plan(planner.plan, "q")
            plan = run.plan(planner.plan, "q", failed=failed)
            carry_out(run, plan, done)
        with session.resume_run("r") as again:
            assert again.plan(planner.plan, "q") == {"steps": ["step 1", "step 2", "step 3"]}
    assert (planner.asked, done) == (["q", "q"], ["step 1", "step 2", "step 3"])
    _, replaced = plans(memory)
    assert isinstance(replaced, PlanReplaced)
    assert (replaced.plan_json, "the tool search is gone" in replaced.reason) == (
        '{"steps":["step 1","step 2","step 3"]}',
        True,
    )
    assert len(plans(memory)) == 2
    assert memory.rejections() == []


@pytest.mark.parametrize("again", [[], ["step 2"]])
def test_a_run_whose_process_dies_under_its_second_plan_goes_on_with_that(again: list[str]) -> None:
    """Its failed step ends the run only if the new plan has it, too."""
    client, memory = memory_client()
    steps = ["step 1", "other", *again]

    def fail() -> None:
        raise LookupError("gone")

    with client, client.session(user_id="u") as session:
        run = session.run("report", run_id="r")
        run.__enter__()
        assert run.plan(lambda: ["step 1", "step 2"]) == ["step 1", "step 2"]
        run.step("step 1", str)
        with pytest.raises(LookupError):
            run.step("step 2", fail)
        run.plan(lambda: steps, failed="step 2 is gone")
        run._leave_metadata()
        if again:
            with pytest.raises(RunOver):
                session.resume_run("r").__enter__()
            return
        with session.resume_run("r") as resumed:
            found = resumed.resume_plan()
            assert (found.done, found.next, found.to_retry, found.stop) == (("step 1",), "other", (), None)
            assert resumed.plan(fail) == steps
            resumed.step("other", str)
    assert memory.rejections() == []


def test_a_plan_that_the_run_began_with_is_its_plan() -> None:
    client, memory = memory_client()
    planner = Planner()
    with client, client.session(user_id="u") as session, session.run("report", plan=["a"]) as run:
        assert run.plan(planner.plan, "q") == ["a"]
        run.record_plan(["b"], "a is gone")
        assert run.plan(planner.plan, "q") == ["b"]
    assert planner.asked == []
    assert kinds(list(plans(memory))) == [PlanReplaced]


def test_a_plan_of_no_json_is_refused_and_none_is_made_for_a_run_that_is_over() -> None:
    client, memory = memory_client()
    planner = Planner()
    with client, client.session(user_id="u") as session:
        with session.run("report", run_id="r") as run, pytest.raises(Invalid, match="plan"):
            run.plan(object)
        with session.resume_run("r") as run, pytest.raises(RunOver):
            run.plan(planner.plan, "q")
    assert (planner.asked, plans(memory)) == ([], [])


def test_with_asyncio_a_coroutine_function_plans() -> None:
    planner = Planner()

    async def work() -> InMemoryTransport:
        sync_client, memory = memory_client()
        async with AsyncSessionClient.wrap(sync_client) as client, client.session(user_id="u") as session:
            with suppress(TimeoutError):
                async with session.run("report", run_id="r") as run:
                    assert await run.plan(planner.plan_later, "q") == {"steps": ["step 1", "step 2"]}
                    raise TimeoutError
            async with session.run("report", run_id="r", resume=True) as run:
                assert await run.plan(planner.plan_later, "q") == {"steps": ["step 1", "step 2"]}
        return memory

    memory = asyncio.run(work())
    assert planner.asked == ["q"]
    assert memory.rejections() == []
