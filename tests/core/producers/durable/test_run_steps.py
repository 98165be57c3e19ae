"""`Run.step` and resumed runs: what succeeded is not done again."""

import asyncio
from collections.abc import Callable

import pytest

from sessionary.producers import (
    AsyncSessionClient,
    Invalid,
    Json,
    Run,
    RunNotFound,
    RunOver,
    Session,
    ToolCallUnresolved,
    tool,
)
from sessionary.producers.durable.resume_plan import describe_retry
from sessionary.producers.run_ports import StepView
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.schemas.events import (
    CheckpointSaved,
    Payload,
    RunCompleted,
    RunFailed,
    RunResumed,
    RunRunning,
    RunStarted,
    StepFailed,
    StepSkipped,
    StepStarted,
    StepSucceeded,
    ToolCallFailed,
    ToolCallStarted,
    ToolCallSucceeded,
)

PLAN = ["collect", "write", "publish"]


class Work:
    """Steps that count how often they were done, and fail as a test wants."""

    def __init__(self, **failures: BaseException) -> None:
        self.done: list[str] = []
        self.failures = failures

    def do(self, run: Run) -> Json:
        facts = run.step("collect", self._step, "collect", 1)
        text = run.step("write", self._step, "write", facts)
        return run.step("publish", self._step, "publish", text)

    def _step(self, name: str, given: int) -> int:
        self.done.append(name)
        if name in self.failures:
            raise self.failures.pop(name)
        return given * 10


def payloads(memory: InMemoryTransport, since: int = 0) -> list[Payload]:
    """Return the payloads of the events of runs, from an index on."""
    return [event.payload for event in memory.events()[since:] if event.envelope.run_id is not None]


def kinds(found: list[Payload]) -> list[type[Payload]]:
    return [type(payload) for payload in found]


def first_attempt(session: Session, work: Work, error: type[BaseException]) -> None:
    expected = next(iter(work.failures.values()))
    run = session.run("report", input={"month": "2026-10"}, plan=PLAN, run_id="r")
    with pytest.raises(error) as raised, run:
        work.do(run)
    assert raised.value is expected


def die_in(session: Session, work: Callable[[Run], object]) -> None:
    """Let the process of run `r` die: nothing says that it ended."""
    run = session.run("report", plan=PLAN, run_id="r")
    run.__enter__()
    with pytest.raises(KeyboardInterrupt):
        work(run)
    run._leave_metadata()


@pytest.mark.parametrize(
    ("args", "kwargs", "recorded"),
    [
        ((), {}, "{}"),
        ((1,), {"of": 2}, '{"args":[1],"kwargs":{"of":2}}'),
        (
            (1, {2}),
            {"of": b"x"},
            '{"args":[1,{"text":"{2}","type":"set"}],"kwargs":{"of":{"text":"b\'x\'","type":"bytes"}}}',
        ),
    ],
)
def test_the_input_of_a_step_is_its_arguments_also_those_that_json_cannot_hold(
    args: tuple[object, ...], kwargs: dict[str, object], recorded: str
) -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session, session.run("report") as run:
        run.step("none", lambda *given, **named: None, *args, **kwargs)
    (started,) = [payload for payload in payloads(memory) if isinstance(payload, StepStarted)]
    assert started == StepStarted("none", 1, recorded)


def test_a_step_is_recorded_and_its_output_handed_on() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session, session.run("report") as run:
        assert Work().do(run) == 1_000
    started, succeeded = payloads(memory)[2:4]
    assert started == StepStarted("collect", 1, '{"args":["collect",1]}')
    assert succeeded == StepSucceeded("collect", 1, "10")
    events = [event.envelope for event in memory.events() if event.envelope.event_type.startswith("step_")]
    ids = [envelope.step_id for envelope in events]
    assert ids[0::2] == ids[1::2]
    assert len(set(ids)) == 3
    assert memory.rejections() == []


def test_what_happens_in_a_step_belongs_to_it() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session, session.run("report") as run:
        run.step("collect", session.info, "inside")
    events = {event.envelope.event_type: event.envelope for event in memory.events()}
    assert events["session_activity"].step_id == events["step_started"].step_id
    assert events["session_activity"].causation_id == events["step_started"].event_id


def test_a_step_without_output_stores_null() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session, session.run("report") as run:
        assert run.step("wait", lambda: None, key="first") is None
        assert run.step("wait", lambda: 7, key="first") is None
    assert StepSucceeded("wait [first]", 1, "null") in payloads(memory)
    assert memory.rejections() == []


def test_a_failed_step_raises_its_error_and_fails_its_run() -> None:
    client, memory = memory_client()
    error = ValueError("bad month")
    with client, client.session(user_id="u") as session:
        first_attempt(session, Work(write=error), ValueError)
    failed, run_failed = payloads(memory)[-2:]
    assert isinstance(failed, StepFailed)
    assert isinstance(run_failed, RunFailed)
    assert failed.error == run_failed.error
    assert (failed.error.error_class, failed.error.message) == ("fatal", "bad month")


@pytest.mark.parametrize(
    "error",
    [
        Invalid("invalid_value", "month is 13"),
        PermissionError("not yours"),
        FileNotFoundError("no such folder"),
        FileExistsError("a ticket of this name exists"),
    ],
    ids=["validation", "permission", "missing", "conflict"],
)
def test_what_cannot_pass_by_itself_is_tried_once_and_ends_the_run(error: Exception) -> None:
    client, memory = memory_client()
    tries: list[int] = []

    @tool(key=lambda: "ticket", effect="write")
    def open_ticket() -> None:
        tries.append(1)
        raise error

    with client, client.session(user_id="u") as session:
        with pytest.raises(type(error)), session.run("report", run_id="r", plan=["open"]) as run:
            run.step("open", open_ticket)
        with pytest.raises(RunOver), session.run("report", run_id="r", resume=True) as run:
            run.step("open", open_ticket)
    assert tries == [1]
    sent = payloads(memory)
    assert kinds(sent).count(ToolCallStarted) == kinds(sent).count(StepStarted) == 1
    failed = [payload for payload in sent if isinstance(payload, ToolCallFailed | StepFailed | RunFailed)]
    assert [(type(payload), payload.error.error_class) for payload in failed] == [
        (ToolCallFailed, "fatal"),
        (StepFailed, "fatal"),
        (RunFailed, "fatal"),
    ]


def test_an_output_that_json_cannot_hold_fails_the_step() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session, pytest.raises(Invalid, match="output"):  # noqa: SIM117
        with session.run("report") as run:
            run.step("collect", object)
    assert kinds(payloads(memory))[-2:] == [StepFailed, RunFailed]


def test_a_resumed_run_retries_what_failed_and_skips_what_succeeded() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        first_attempt(session, Work(write=TimeoutError("slow")), TimeoutError)
        before, again = len(memory.events()), Work()
        with session.run("report", run_id="r", resume=True) as run:
            run.result = again.do(run)
    assert again.done == ["write", "publish"]
    resumed, running, skipped, started, *rest = payloads(memory, before)
    assert resumed == RunResumed("write", "goes on with step write; steps done: 1, to be tried again: 1")
    assert running == RunRunning()
    assert skipped == StepSkipped("collect", "succeeded in attempt 1: its stored output is used")
    why = "attempt 1 failed: TimeoutError (retryable)"
    assert started == StepStarted("write", 2, '{"args":["write",10]}', reason=why)
    assert kinds(rest) == [StepSucceeded, StepStarted, StepSucceeded, RunCompleted]
    assert rest[-1] == RunCompleted("1000", None, 0)
    assert memory.rejections() == []


def test_a_run_goes_on_after_its_process_died_with_an_empty_list_of_messages() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        die_in(session, Work(write=KeyboardInterrupt()).do)
        again = Work()
        assert session.conversation.read() == []
        with session.resume_run("r") as run:
            assert again.do(run) == 1_000
        assert session.conversation.read() == []
    assert again.done == ["write", "publish"]
    assert RunResumed not in kinds(payloads(memory))
    retried = [payload for payload in payloads(memory) if isinstance(payload, StepStarted) and payload.attempt > 1]
    assert [(step.name, step.reason) for step in retried] == [("write", "attempt 1 failed: cancelled (retryable)")]
    started = [payload for payload in payloads(memory) if isinstance(payload, StepStarted) and payload.name == "write"]
    assert [step.input_json for step in started] == ['{"args":["write",10]}'] * 2
    assert memory.rejections() == []


def test_a_complete_run_sends_nothing_and_tells_its_result() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        with session.run("report", run_id="r") as run:
            run.result = Work().do(run)
        before, again = len(memory.events()), Work()
        with session.run("report", run_id="r", resume=True) as run:
            assert run.is_complete
            assert run.result == 1_000
            assert again.do(run) == 1_000
            with pytest.raises(RunOver, match="completed"):
                run.step("more", again.do, run)
        assert memory.events()[before:] == []
    assert again.done == []


def test_a_run_that_failed_for_good_is_over() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        first_attempt(session, Work(write=ValueError("bad month")), ValueError)
        before = len(memory.events())
        with pytest.raises(RunOver, match="bad month"), session.resume_run("r"):
            pass
        assert memory.events()[before:] == []


def test_an_open_run_whose_step_failed_for_good_is_ended() -> None:
    client, memory = memory_client()

    def fail_and_die(run: Run) -> None:
        with pytest.raises(ValueError, match="bad"):
            run.step("collect", int, "bad")
        raise KeyboardInterrupt

    with client, client.session(user_id="u") as session:
        die_in(session, fail_and_die)
        with pytest.raises(RunOver, match="bad"), session.resume_run("r"):
            pass
    failed = payloads(memory)[-1]
    assert isinstance(failed, RunFailed)
    assert failed.reason == "not resumed: step collect failed for good"
    assert memory.rejections() == []


def test_a_step_that_its_process_left_is_tried_again_for_that_reason() -> None:
    assert describe_retry(StepView("write", "running", 3)) == "attempt 3 did not finish"


def test_a_person_may_let_a_run_go_on_that_failed_for_good() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        first_attempt(session, Work(write=ValueError("bad month")), ValueError)
        with session.resume_run("r", actor="alice") as run:
            assert Work().do(run) == 1_000
    assert memory.rejections() == []
    reasons = [payload.reason for payload in payloads(memory) if isinstance(payload, RunResumed)]
    assert reasons == ["goes on, as a person asked; steps done: 1, to be tried again: 0"]
    assert isinstance(payloads(memory)[-1], RunCompleted)


def test_an_unknown_run_is_begun_or_not_found() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        with pytest.raises(RunNotFound, match="Run not found: nothing"), session.resume_run("nothing"):
            pass
        with session.run("report", run_id="r", resume=True) as run:
            Work().do(run)
        with pytest.raises(Invalid, match="run_id"):
            session.run("report", resume=True)
    assert kinds(payloads(memory))[:2] == [RunStarted, RunRunning]
    assert isinstance(payloads(memory)[-1], RunCompleted)


def test_a_plan_tells_what_resuming_would_do_and_sends_nothing() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        first_attempt(session, Work(write=TimeoutError("slow")), TimeoutError)
        before = len(memory.events())
        plan = session.resume_run("r").resume_plan()
        assert memory.events()[before:] == []
    assert (plan.request, plan.done, plan.to_retry, plan.stop, plan.next) == (
        {"month": "2026-10"},
        ("collect",),
        ("write",),
        None,
        "write",
    )


def test_a_tool_that_succeeded_in_a_failed_step_is_not_called_again() -> None:
    client, memory = memory_client()
    sent: list[str] = []
    failures = [TimeoutError("slow")]

    @tool(effect="write")
    def send(text: str) -> int:
        sent.append(text)
        return len(sent)

    def notify() -> int:
        number = send("hello")
        if failures:
            raise failures.pop()
        return number

    with client, client.session(user_id="u") as session:
        with pytest.raises(TimeoutError), session.run("report", run_id="r") as run:
            run.step("notify", notify)
        with session.resume_run("r") as run:
            assert run.step("notify", notify) == 1
    assert sent == ["hello"]
    assert [type(payload) for payload in payloads(memory)].count(ToolCallStarted) == 1
    assert memory.rejections() == []


def test_a_tool_has_another_key_in_another_step() -> None:
    client, memory = memory_client()
    send = tool(name="send", effect="write")(str.upper)
    with client, client.session(user_id="u") as session, session.run("report") as run:
        for name in ("one", "two"):
            run.step(name, send, "hello")
    started = [event for event in memory.events() if isinstance(event.payload, ToolCallStarted)]
    assert len({event.payload.idem_key for event in started if isinstance(event.payload, ToolCallStarted)}) == 2
    steps = [event.envelope.step_id for event in memory.events() if isinstance(event.payload, StepStarted)]
    assert [event.envelope.step_id for event in started] == steps


def test_the_write_order_is_call_then_step() -> None:
    client, memory = memory_client()
    send = tool(name="send", effect="write")(str.upper)
    with client, client.session(user_id="u") as session, session.run("report") as run:
        run.step("notify", send, "hello")
    assert kinds(payloads(memory))[2:] == [
        *(StepStarted, ToolCallStarted, CheckpointSaved),
        *(ToolCallSucceeded, CheckpointSaved, StepSucceeded, RunCompleted),
    ]


def test_a_run_with_an_unresolved_call_is_held_and_not_failed() -> None:
    client, memory = memory_client()

    @tool(name="send", effect="write", deadline=30)
    def die(text: str) -> str:
        raise KeyboardInterrupt

    with client, client.session(user_id="u") as session:
        die_in(session, lambda run: die("hello"))
        memory.advance(31)
        plan = session.resume_run("r").resume_plan()
        assert (plan.state, len(plan.unresolved)) == ("paused", 1)
        with pytest.raises(ToolCallUnresolved), session.resume_run("r"):
            pass
        assert session.resume_run("r").resume_plan().state == "paused"
    assert memory.rejections() == []


def test_coroutine_functions_are_steps_and_runs_resume_with_asyncio() -> None:
    done: list[str] = []

    async def step(name: str, given: int) -> int:
        done.append(name)
        await asyncio.sleep(0)
        if len(done) == 2:
            raise TimeoutError("slow")
        return given + 1

    async def work(run: Run) -> int:
        return await run.step("write", step, "write", await run.step("collect", step, "collect", 1))

    async def main() -> InMemoryTransport:
        sync_client, memory = memory_client()
        async with AsyncSessionClient.wrap(sync_client) as client, client.session(user_id="u") as session:
            with pytest.raises(TimeoutError):
                async with session.run("report", run_id="r") as run:
                    await work(run)
            async with session.run("report", run_id="r", resume=True) as run:
                assert await work(run) == 3
        return memory

    memory = asyncio.run(main())
    assert done == ["collect", "write", "write"]
    assert memory.rejections() == []
