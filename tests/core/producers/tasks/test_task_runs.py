"""A task is a run in full: its function works in its session, for as long as the task is its."""

import asyncio
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from sessionary.producers import (
    AsyncSession,
    AsyncSessionClient,
    Invalid,
    Session,
    SessionClient,
    TaskStopped,
    TookEffect,
    ToolCallUnresolved,
    Unavailable,
    current_session,
    current_tool_key,
    tool,
)
from sessionary.producers.ports import Json
from sessionary.producers.tasks.context import TaskContext
from sessionary.producers.tasks.worker import TaskTimes
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.producers.testing.memory_runs import MemoryRuns
from sessionary.schemas.events import (
    CheckpointSaved,
    RunCancelled,
    RunFailed,
    RunResumed,
    ToolCallResolved,
    ToolCallStarted,
)
from sessionary.schemas.types import ErrorInfo, Limits
from tests.core.producers.tasks.test_tasks import Stage
from tests.support.waiting import wait_until

LOOKING = TaskTimes(beat_s=0.01, lease_s=0.05)


class Dead(BaseException):
    """The worker dies here."""


class Service:
    """Counts its effects."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.keys: list[str | None] = []
        self.send = tool(name="send", effect="write", deadline=2)(self._send)

    def _send(self, text: str) -> int:
        self.keys.append(current_tool_key())
        self.sent.append(text)
        return len(self.sent)


def carry_out(stage: Stage, function: Callable[..., Any], task_type: str = "work") -> str:
    """Carry out a task with a function; return its id."""
    task_id, request = stage.start(task_type)
    stage.attempt(request).carry_out({task_type: function})
    return task_id


def rejected(stage: Stage) -> list[tuple[str, str | None]]:
    return [(each.event.envelope.event_type, each.reason) for each in stage.memory.rejections()]


def test_a_tool_with_an_effect_is_called_once_although_its_worker_died_after_it() -> None:
    stage, service = Stage(), Service()
    task_id, request = stage.start("work")
    repeated: list[bool] = []

    def work(ctx: TaskContext, given: Json) -> Json:
        repeated.append(ctx.is_repeated)
        numbers = [service.send("hello"), service.send("hello")]
        if not ctx.is_repeated:
            raise Dead
        return numbers

    with pytest.raises(Dead):
        stage.attempt(request).carry_out({"work": work})
    stage.attempt(request).carry_out({"work": work})
    assert repeated == [False, True]
    assert stage.client.get_task_results(task_id)["result"] == [1, 2]
    assert service.sent == ["hello", "hello"]
    assert None not in service.keys
    started = [payload for payload in stage.payloads(task_id) if isinstance(payload, ToolCallStarted)]
    assert [call.idem_key for call in started] == service.keys
    assert rejected(stage) == []


def test_a_function_works_in_its_session_and_its_events_name_the_task() -> None:
    stage = Stage()

    def work(ctx: TaskContext, given: Json) -> Json:
        session = current_session()
        assert isinstance(session, Session)
        session.activity("llm")
        session.update_state({"done": 1})
        in_thread: list[object] = []

        def note() -> None:
            in_thread.append(current_session())

        thread = threading.Thread(target=session.bind(note))
        thread.start()
        thread.join()
        assert in_thread == [session]
        return session.session_id

    outside = current_session()
    task_id = carry_out(stage, work)
    assert stage.client.get_task_results(task_id)["result"] == stage.session.session_id
    assert current_session() is outside
    named = {event.envelope.event_type for event in stage.memory.events() if event.envelope.run_id == task_id}
    assert {"session_activity", "state_updated"} <= named
    stage.session.sync()
    assert stage.session.state == {"done": 1}
    assert rejected(stage) == []


def test_a_coroutine_function_has_a_session_of_asyncio() -> None:
    stage = Stage()
    sent: list[str] = []

    @tool(effect="write")
    async def send(text: str) -> None:
        await asyncio.sleep(0)
        sent.append(text)

    async def work(ctx: TaskContext, given: Json) -> Json:
        session = current_session()
        assert isinstance(session, AsyncSession)
        await session.activity("llm")
        await asyncio.gather(send("a"), send("b"))
        doubled: Json = await ctx.run.step("double", double, 21)
        async for item in ctx.run.items([1, 2], name="list"):
            await send(f"{item}")
        if not ctx.is_repeated:
            raise Dead
        return doubled

    async def double(value: int) -> int:
        sent.append("double")
        return 2 * value

    task_id, request = stage.start("work")
    with pytest.raises(Dead):
        stage.attempt(request).carry_out({"work": work})
    stage.attempt(request).carry_out({"work": work})
    assert stage.client.get_task_results(task_id)["result"] == 42
    assert sorted(sent) == ["1", "2", "a", "b", "double"]
    assert rejected(stage) == []


def test_a_checkpoint_of_the_context_keeps_the_place_in_a_list() -> None:
    stage = Stage()
    task_id, request = stage.start("work")
    seen: list[int] = []

    def work(ctx: TaskContext, given: Json) -> None:
        last = ctx.run.last_checkpoint
        assert (last is None) != ctx.is_repeated
        assert ctx.load_checkpoint() == ({"at": 3} if ctx.is_repeated else None)
        for item in ctx.run.items([1, 2, 3, 4], name="list", every=1):
            seen.append(item)
            ctx.save_checkpoint({"at": item}, f"stage {item}")
            if item == 3 and not ctx.is_repeated:
                raise Dead

    with pytest.raises(Dead):
        stage.attempt(request).carry_out({"work": work})
    stage.attempt(request).carry_out({"work": work})
    assert seen == [1, 2, 3, 3, 4]
    saved = [payload for payload in stage.payloads(task_id) if isinstance(payload, CheckpointSaved)]
    assert ("task", "stage 3", None, '{"at":3}') in {
        (each.operation, each.stage, each.processed_count, each.data_json) for each in saved
    }


def test_a_plan_is_recorded_again_by_the_next_worker() -> None:
    stage = Stage()
    task_id, request = stage.start("work")

    def work(ctx: TaskContext, given: Json) -> None:
        ctx.record_plan(["load", "train"])
        if not ctx.is_repeated:
            raise Dead

    with pytest.raises(Dead):
        stage.attempt(request).carry_out({"work": work})
    stage.attempt(request).carry_out({"work": work})
    view = stage.client.find_task(task_id)
    assert view is not None
    assert (view.state, view.plan_json) == ("completed", '["load","train"]')
    assert rejected(stage) == []


# A worker whose lease is over


class Overtaken:
    """A worker that stands still in its function while another one has the task."""

    def __init__(self, *, finishes: bool) -> None:
        self.stage, self.service = Stage(), Service()
        self.task_id, self.request = self.stage.start("work")
        self.finishes = finishes
        self.told: list[str] = []

    def stand_still(self) -> None:
        """Let another worker take the task over, and carry it out if it is to finish."""
        other = self.stage.attempt(self.request)
        if self.finishes:
            other.carry_out({"work": lambda ctx, given: "other"})
        else:
            assert other._claim()


@pytest.mark.parametrize("finishes", [True, False])
@pytest.mark.parametrize("verb", ["step", "tool", "result"])
def test_a_worker_whose_lease_is_over_completes_nothing(verb: str, finishes: bool) -> None:
    rig = Overtaken(finishes=finishes)

    def work(ctx: TaskContext, given: Json) -> Json:
        if ctx.is_repeated:
            return "own again"
        rig.stand_still()
        if verb == "step":
            ctx.run.step("late", lambda: 1)
        if verb == "tool":
            rig.service.send("late")
        return "late"

    rig.stage.attempt(rig.request).carry_out({"work": work})
    # If the other one does not finish it is lost, too: then the task is taken back.
    assert rig.stage.client.get_task_results(rig.task_id)["result"] == ("other" if finishes else "own again")
    assert rig.service.sent == []
    reason = "illegal_transition" if finishes else "task_taken_over"
    assert {why for _, why in rejected(rig.stage)} == {reason}
    if not finishes:
        (stopped,) = rig.stage.errors
        assert isinstance(stopped, TaskStopped)
        assert (stopped.task_id, stopped.state) == (rig.task_id, "taken_over")


def test_a_worker_whose_lease_is_over_is_told_by_its_beats_and_every_verb() -> None:
    rig = Overtaken(finishes=True)
    told: list[str] = []

    def work(ctx: TaskContext, given: Json) -> str:
        rig.stand_still()
        wait_until(lambda: ctx.is_cancelled, 30, "the worker to be told", pause_s=0.001)
        session = current_session()
        assert isinstance(session, Session)
        verbs: Sequence[Callable[[], object]] = (
            lambda: ctx.report_progress(1),
            lambda: ctx.info("late"),
            lambda: ctx.save_checkpoint(1),
            lambda: ctx.record_plan([]),
            lambda: ctx.run.step("late", lambda: 1),
            lambda: rig.service.send("late"),
            lambda: session.activity("llm"),
            lambda: session.start_task("late"),
        )
        for verb in verbs:
            with pytest.raises(TaskStopped, match=r"is completed|is another worker's now"):
                verb()
            told.append("told")
        return "late"

    rig.stage.attempt(rig.request, times=LOOKING).carry_out({"work": work})
    assert told == ["told"] * 8
    assert rig.stage.client.get_task_results(rig.task_id)["result"] == "other"
    assert rig.service.sent == []
    assert len(rig.stage.memory.tasks()) == 1


def test_the_outcome_of_a_call_that_a_late_worker_made_is_taken() -> None:
    rig = Overtaken(finishes=False)
    sent: list[str] = []

    @tool(effect="write", deadline=600)
    def send(text: str) -> str:
        sent.append(text)
        rig.stand_still()
        return "sent"

    def work(ctx: TaskContext, given: Json) -> Json:
        return send("once")

    rig.stage.attempt(rig.request).carry_out({"work": work})
    assert sent == ["once"]
    assert rig.stage.client.get_task_results(rig.task_id)["result"] == "sent"


def test_a_program_that_does_not_have_a_task_reports_nothing_of_it() -> None:
    stage = Stage()
    task_id, request = stage.start("work")
    other, _ = memory_client(agent_id="other", memory=stage.memory)
    attached = other.attach(stage.session.session_id)

    def work(ctx: TaskContext, given: Json) -> str:
        attached.emit(RunFailed(ErrorInfo("fatal", "no", "no")), run_id=task_id)
        attached.usage(model="m", tokens_in=1, run_id=task_id)  # what was used is used
        return "mine"

    stage.attempt(request).carry_out({"work": work})
    assert stage.client.get_task_results(task_id)["result"] == "mine"
    assert rejected(stage) == [("run_failed", "task_taken_over")]


# Cancellation


def test_a_task_that_waits_is_cancelled_and_never_carried_out() -> None:
    stage = Stage()
    task_id, request = stage.start("work")
    other, _ = memory_client(service_id="another", memory=stage.memory)
    assert other.cancel_task(task_id, "not wanted") == {"task_id": task_id, "status": "cancelled"}
    assert other.check_task_status(task_id)["status"] == "cancelled"
    assert stage.payloads(task_id) == [RunCancelled("not wanted")]
    stage.attempt(request).carry_out({"work": lambda ctx, given: pytest.fail("it was cancelled")})
    assert stage.client.cancel_task(task_id) == {"error": "task already cancelled"}
    assert len(stage.payloads(task_id)) == 1


def test_a_worker_is_told_that_its_task_is_cancelled_and_stops() -> None:
    stage = Stage()
    task_id, request = stage.start("work")
    seen: list[bool] = []

    def work(ctx: TaskContext, given: Json) -> None:
        assert not ctx.is_cancelled
        stage.client.cancel_task(task_id)
        wait_until(lambda: ctx.is_cancelled, 30, "the worker to be told", pause_s=0.001)
        seen.append(ctx.is_cancelled)
        ctx.report_progress(1)

    stage.attempt(request, times=LOOKING).carry_out({"work": work})
    assert seen == [True]
    assert stage.client.check_task_status(task_id)["status"] == "cancelled"
    assert stage.payloads(task_id)[-1] == RunCancelled(None)
    assert stage.errors == []
    assert rejected(stage) == []


def test_a_worker_is_told_by_the_next_tool_that_its_task_is_cancelled() -> None:
    stage, service = Stage(), Service()
    task_id, request = stage.start("work")

    def work(ctx: TaskContext, given: Json) -> None:
        service.send("before")
        stage.client.cancel_task(task_id)
        service.send("after")

    stage.attempt(request).carry_out({"work": work})
    assert service.sent == ["before"]
    assert stage.client.check_task_status(task_id)["status"] == "cancelled"
    assert stage.errors == []
    assert rejected(stage) == [("tool_call_started", "illegal_transition")]


def test_a_coroutine_function_is_cancelled_with_its_task() -> None:
    stage = Stage()
    task_id, request = stage.start("work")
    ended: list[str] = []

    async def work(ctx: TaskContext, given: Json) -> None:
        try:
            await asyncio.to_thread(stage.client.cancel_task, task_id)
            await asyncio.sleep(3_600)
        finally:
            ended.append("cleaned up")

    stage.attempt(request, times=LOOKING).carry_out({"work": work})
    assert ended == ["cleaned up"]
    assert stage.client.check_task_status(task_id)["status"] == "cancelled"
    assert stage.errors == []


def test_a_coroutine_function_that_cancels_itself_has_failed() -> None:
    stage = Stage()

    async def work(ctx: TaskContext, given: Json) -> None:
        raise asyncio.CancelledError

    view = stage.client.find_task(carry_out(stage, work))
    assert view is not None
    assert view.error is not None
    assert (view.state, "by itself" in view.error.message) == ("failed", True)


def test_the_answers_to_a_cancellation_say_the_truth() -> None:
    stage = Stage()
    done = carry_out(stage, lambda ctx, given: 1)
    failed = carry_out(stage, lambda ctx, given: 1 / 0)
    assert stage.client.cancel_task(done) == {"error": "task not cancelled. Current status: completed"}
    assert stage.client.cancel_task(failed) == {"error": "task not cancelled. Current status: failed"}
    assert stage.client.cancel_task("no id") == {"error": "task not found"}
    foreign, _ = memory_client("another", memory=stage.memory)
    task_id, _ = stage.start("work")
    assert foreign.cancel_task(task_id) == {"error": "task not found"}
    assert foreign.check_task_status(task_id) == {"error": "task not found"}
    assert stage.client.check_task_status(task_id)["status"] == "started"
    stage.memory.silence_control(silent=True)
    with pytest.raises(Unavailable):
        stage.client.cancel_task(task_id)
    stage.memory.silence_control(silent=False)
    with pytest.raises(Invalid):
        stage.client.cancel_task(task_id, "x" * (2 << 20))
    stage.memory.advance(40 * 86_400)
    assert stage.client.cancel_task(done) == {"error": "task no longer kept"}


def test_a_cancellation_that_comes_too_late_says_so() -> None:
    stage = Stage()
    task_id, request = stage.start("work")
    reads = stage.client.core.ports.tasks
    assert reads is not None
    fetch, asked = reads.fetch_task, 0

    def fetch_late(*args: Any) -> Any:
        nonlocal asked
        found, asked = fetch(*args), asked + 1
        if asked == 1:  # between the look and the event
            stage.attempt(request).carry_out({"work": lambda ctx, given: "done"})
        return found

    reads.fetch_task = fetch_late  # type: ignore[method-assign, assignment]
    assert stage.client.cancel_task(task_id) == {"error": "task not cancelled. Current status: completed"}
    assert rejected(stage) == [("run_cancelled", "illegal_transition")]


def test_a_paused_task_and_one_of_an_ended_session_are_cancelled() -> None:
    stage = Stage()
    task_id, request = stage.start("work")
    with pytest.raises(Dead):
        stage.attempt(request).carry_out({"work": _die})
    stage.session.close()
    assert stage.memory.find_row(stage.session.session_id).state == "Terminated"
    assert stage.client.cancel_task(task_id)["status"] == "cancelled"
    assert rejected(stage) == []


def _die(ctx: TaskContext, given: Json) -> None:
    raise Dead


# Lists


def ids(tasks: Any) -> list[str]:
    return sorted(view.task_id for view in tasks)


def test_tasks_are_listed_by_user_and_state_and_only_the_tenants() -> None:
    stage = Stage()
    done, open_task = carry_out(stage, lambda ctx, given: 1), stage.start("work")[0]
    other, _ = memory_client(service_id="another", memory=stage.memory)
    with other.session(user_id="u2") as theirs, theirs.run("no task", mode="detached"):
        their_task = theirs.start_task("work")
        foreign, _ = memory_client("foreign", memory=stage.memory)
        foreign_task = foreign.session(user_id="u1").start_task("work")
        client = stage.client
        assert ids(client.list_tasks()) == sorted([done, open_task, their_task])
        assert ids(client.list_tasks(user="u1")) == sorted([done, open_task])
        assert ids(client.list_tasks(user="u1", state="completed")) == [done]
        assert ids(client.list_tasks(state="queued")) == sorted([open_task, their_task])
        assert ids(client.list_tasks(user="u9")) == []
        assert ids(foreign.list_tasks()) == [foreign_task]
    (view,) = client.list_tasks(state="completed")
    assert (view.user_id, view.task_type, view.state, view.result_json) == ("u1", "work", "completed", None)


def test_a_list_has_as_many_parts_as_it_needs() -> None:
    stage = Stage()
    started = [stage.session.start_task("work") for _ in range(40)]
    others = [stage.client.session(user_id="u2").start_task("work") for _ in range(3)]
    for size in (1, 7, 43, 100):
        assert ids(_in_parts(stage.client, size)) == sorted([*started, *others])


def _in_parts(client: SessionClient, size: int) -> Any:
    tasks = client.core.ports.tasks
    assert tasks is not None
    fetch = tasks.fetch_tasks
    tasks.fetch_tasks = lambda wanted, timeout_s: fetch(wanted._replace(limit=size), timeout_s)  # type: ignore[method-assign]
    try:
        return list(client.list_tasks())
    finally:
        tasks.fetch_tasks = fetch  # type: ignore[method-assign]


def test_what_no_list_can_be_asked_for_is_an_error() -> None:
    stage = Stage()
    with pytest.raises(Invalid, match="state is 'done': use one of queued, started"):
        stage.client.list_tasks(state="done")
    with pytest.raises(Invalid, match="user_id is ''"):
        stage.client.list_tasks(user="")
    stage.memory.silence_control(silent=True)
    with pytest.raises(Unavailable):
        list(stage.client.list_tasks())


def test_the_verbs_of_asyncio_list_and_cancel() -> None:
    async def live(client: AsyncSessionClient, memory: InMemoryTransport) -> None:
        async with client, client.session(user_id="u1") as session:
            task_id = await session.start_task("work")
            assert [view.task_id async for view in client.list_tasks(user="u1")] == [task_id]
            assert await client.cancel_task(task_id) == {"task_id": task_id, "status": "cancelled"}
            assert [view.state async for view in client.list_tasks(state="cancelled")] == ["cancelled"]

    client, memory = memory_client()
    asyncio.run(live(AsyncSessionClient.wrap(client), memory))


# The session's life, and outages


@pytest.mark.parametrize("state", ["Paused", "Timeout", "Error", "Terminated"])
def test_a_task_works_in_full_whatever_became_of_its_session(state: str) -> None:
    stage, service = Stage(), Service()
    task_id, request = stage.start("work")
    if state == "Paused":
        stage.session.pause("manual")
    elif state == "Error":
        stage.session.error(ErrorInfo("retryable", "broken", "broken"))
    elif state == "Terminated":
        stage.session.close()
    else:
        stage.session = stage.client.session(
            user_id="u1", limits=Limits(grace_ms=10**9, hold_ms=10**9, recovery_ms=10**9, override=True)
        )
        task_id, request = stage.start("work")
        stage.memory.silence(stage.session)
        stage.memory.advance(600)
    assert stage.memory.find_row(stage.session.session_id).state == state

    def work(ctx: TaskContext, given: Json) -> Json:
        ctx.run.step("first", service.keys.append, "a step")
        done = [service.send(item) for item in ctx.run.items(["a", "b"], name="list")]
        if not ctx.is_repeated:
            raise Dead
        return done

    with pytest.raises(Dead):
        stage.attempt(request).carry_out({"work": work})
    stage.attempt(request).carry_out({"work": work})
    assert stage.client.get_task_results(task_id)["result"] == []
    assert service.sent == ["a", "b"]
    assert service.keys.count("a step") == 1
    assert rejected(stage) == []


def test_a_session_is_not_archived_before_its_tasks_have_ended() -> None:
    stage, service = Stage(), Service()
    task_id, request = stage.start("work")
    with pytest.raises(Dead):
        stage.attempt(request).carry_out({"work": _die})
    stage.session.close()
    stage.memory.advance(20 * 3_600)
    stage.attempt(request).carry_out({"work": lambda ctx, given: service.send("late")})
    assert stage.client.get_task_results(task_id)["result"] == 1


def test_a_task_goes_on_after_an_outage_in_which_nothing_could_be_asked() -> None:
    stage = Stage()
    task_id, request = stage.start("work")
    calls: list[str] = []
    sent: dict[str | None, str] = {}

    @tool(effect="write", deadline=2, query=lambda key: TookEffect(len(sent)) if key in sent else None)
    def send(text: str) -> int:
        sent[current_tool_key()] = text
        return len(sent)

    def work(ctx: TaskContext, given: Json) -> Json:
        calls.append("called")
        first = send("before")
        if len(calls) <= 3:
            stage.memory.silence_control(silent=True)
        try:
            return [first, send("after")]
        finally:
            stage.memory.silence_control(silent=False)

    stage.attempt(request).carry_out({"work": work})
    assert len(calls) == 4
    assert stage.client.get_task_results(task_id)["result"] == [1, 2]
    assert [*sent.values()] == ["before", "after"]


def test_a_function_that_takes_no_notice_of_an_open_call_is_called_again() -> None:
    stage = Stage()
    task_id, request = stage.start("work")
    effects: list[str] = []

    @tool(name="fragile", effect="write", deadline=2)
    def fragile() -> str:
        effects.append("one")
        raise TimeoutError("did it happen?")

    def work(ctx: TaskContext, given: Json) -> str:
        try:
            return fragile()
        except ToolCallUnresolved:  # as agents do
            stage.memory.advance(3)
            return "nothing happened"

    attempt = stage.attempt(request)
    decided = _resolve_when_unknown(stage, task_id)
    attempt._recorder = attempt._recorder._replace(waits=attempt._recorder.waits._replace(pause=decided))
    attempt.carry_out({"work": work})
    assert effects == ["one"]
    assert [type(error) for error in stage.errors] == [ToolCallUnresolved]
    assert stage.client.get_task_results(task_id)["result"] == "it did"


def _resolve_when_unknown(stage: Stage, task_id: str) -> Callable[[float], None]:
    def pause(seconds: float) -> None:
        stage.memory.pause(seconds)
        for call in MemoryRuns(stage.memory).fetch_calls(stage.session.session_id, task_id, 1.0):
            if call.state == "unknown":
                found = ToolCallResolved("c", call.tool_name, call.idem_key, "succeeded", '"it did"', "ann")
                stage.session.emit(found, run_id=task_id)

    return pause


def test_tasks_of_a_task_are_asked_for_once_and_equal_ones_are_two() -> None:
    stage = Stage()
    _, request = stage.start("work")
    asked: list[list[str]] = []

    def work(ctx: TaskContext, given: Json) -> None:
        session = current_session()
        assert isinstance(session, Session)
        asked.append([session.start_task("child", {"n": 1}), session.start_task("child", {"n": 1})])
        asked[-1].append(ctx.run.step("inner", session.start_task, "child", {"n": 1}))
        if not ctx.is_repeated:
            raise Dead

    with pytest.raises(Dead):
        stage.attempt(request).carry_out({"work": work})
    stage.attempt(request).carry_out({"work": work})
    first, second = asked
    assert first == second
    assert len(set(first)) == 3
    assert [request.run_id for request in stage.memory.tasks()[1:]] == first
    assert rejected(stage) == []


def test_a_resumed_run_asks_for_its_task_once() -> None:
    stage = Stage()
    run = stage.session.run("work", run_id="r")
    run.__enter__()
    first = stage.session.start_task("child")
    run.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
    with stage.session.run("work", run_id="r", resume=True, actor="ann"):
        assert stage.session.start_task("child") == first
    assert stage.session.start_task("child") != stage.session.start_task("child")
    assert len(stage.memory.tasks()) == 3


def test_a_question_of_a_task_is_answered() -> None:
    stage = Stage()
    stage.memory.operator.answer_with(lambda question: True)
    answers: list[bool] = []

    def work(ctx: TaskContext, given: Json) -> Json:
        session = current_session()
        assert isinstance(session, Session)
        answers.append(session.ask("Send it?", deadline=60).approved)
        return ctx.run.step("after", lambda: "sent")

    task_id = carry_out(stage, work)
    assert answers == [True]
    assert stage.client.get_task_results(task_id)["result"] == "sent"


def test_a_task_goes_on_while_its_session_asks_a_person() -> None:
    stage, done = Stage(), list[str]()
    task_id, request = stage.start("work")

    def work(ctx: TaskContext, given: Json) -> Json:
        ctx.report_progress(0.5)
        return ctx.run.step("step", lambda: stage.memory.view_session(stage.session).state)

    def carry_out_meanwhile(question: str) -> bool:
        done.append(question)
        assert len(done) == 1, "the task waits for the answer"
        stage.attempt(request).carry_out({"work": work})
        return True

    stage.memory.operator.answer_with(carry_out_meanwhile)
    assert stage.session.ask("Send it?", deadline=60).approved
    assert stage.client.get_task_results(task_id)["result"] == "Paused"
    assert (stage.errors, rejected(stage)) == ([], [])


def test_a_worker_that_takes_over_a_task_with_a_question_leaves_its_session_where_it_is() -> None:
    stage, answers = Stage(), list[bool]()
    task_id, request = stage.start("work")

    def work(ctx: TaskContext, given: Json) -> Json:
        session = current_session()
        assert isinstance(session, Session)
        answers.append(session.ask("Send it?", deadline=60).approved)
        return None

    def die(question: str) -> bool:
        raise Dead

    stage.memory.operator.answer_with(die)
    with pytest.raises(Dead):
        stage.attempt(request).carry_out({"work": work})
    stage.memory.operator.answer_with(lambda question: True)
    stage.attempt(request).carry_out({"work": work})
    assert (answers, stage.client.check_task_status(task_id)["status"]) == ([True], "completed")
    stage.session.sync()
    stage.session.message("assistant", "sent")
    assert rejected(stage) == []


def test_workers_of_one_name_share_no_task() -> None:
    stage = Stage()
    task_id, request = stage.start("work")
    done: list[str] = []
    second = stage.attempt(request)

    def work(ctx: TaskContext, given: Json) -> str:
        # The other one asks for the task, too, before its lease is over.
        assert not second._is_granted(RunResumed())
        done.append("one")
        return "one"

    stage.attempt(request, clock_s=itertools.count(0.0, 0.0001).__next__).carry_out({"work": work})
    second.carry_out({"work": lambda ctx, given: done.append("two")})
    assert done == ["one"]
    assert stage.client.get_task_results(task_id)["result"] == "one"
    assert rejected(stage) == [("run_resumed", "illegal_transition")]
