"""Long tasks over the processor's own rules, in memory: asked for, carried out, asked about."""

import asyncio
import itertools
import json
import sys
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence

import pytest

from sessionary.producers import (
    ArtifactLibrary,
    AsyncSessionClient,
    Invalid,
    Rejected,
    SessionClient,
    SessionLost,
    Unavailable,
)
from sessionary.producers.ports import Json, TaskQuestion, TaskView
from sessionary.producers.session.runs import Runs
from sessionary.producers.tasks.context import TaskContext
from sessionary.producers.tasks.worker import TaskAttempt, TaskFunction, TaskTimes, functions_of, task
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.producers.testing.memory_runs import MemoryTasks
from sessionary.schemas.events import (
    CheckpointSaved,
    Payload,
    ProgressReported,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunPaused,
    RunResumed,
    RunRunning,
    RunStarted,
)
from sessionary.schemas.records import TaskRequest
from sessionary.schemas.types import ErrorInfo, Limits

RUNNING = RunRunning(0.5)
# A lost worker is missed soon. No beat comes between the events of a test, however slow it is.
QUICK = TaskTimes(beat_s=3_600.0, lease_s=0.05)
BEATING = QUICK._replace(beat_s=0.05)


@task("model_training")
def train_model(ctx: TaskContext, given: dict[str, Json]) -> dict[str, Json]:
    for epoch in range(given["epochs"]):
        ctx.report_progress(epoch + 1, given["epochs"], f"Step {epoch + 1}/{given['epochs']}")
    ctx.info("nearly there")
    return {"accuracy": 0.9, "epochs": given["epochs"]}


FUNCTIONS: Mapping[str, TaskFunction] = {"model_training": train_model}


class Stage:
    """A client with a session in memory, and the worker's way through its tasks."""

    def __init__(self) -> None:
        self.client, self.memory = memory_client()
        self.session = self.client.session(user_id="u1", limits=Limits(grace_ms=1_000, override=True))
        self.errors: list[Exception] = []

    def start(self, task_type: str = "model_training", given: Json = None) -> tuple[str, TaskRequest]:
        task_id = self.session.start_task(task_type, {"epochs": 4} if given is None else given)
        return task_id, self.memory.tasks()[-1]

    def attempt(
        self,
        request: TaskRequest,
        *,
        is_stopped: bool = False,
        artifacts: ArtifactLibrary | None = None,
        times: TaskTimes = QUICK,
        clock_s: Callable[[], float] | None = None,
    ) -> TaskAttempt:
        worker, _ = memory_client(
            agent_id="worker", memory=self.memory, artifacts=artifacts, on_error=self.errors.append
        )
        # A slow machine makes no lease old: each look at the clock is 10 ms later.
        clock_s = clock_s or itertools.count(0.0, 0.01).__next__
        return TaskAttempt(worker.core, request, lambda: is_stopped, times, clock_s)

    def payloads(self, task_id: str) -> Sequence[object]:
        return [event.payload for event in self.memory.events() if event.envelope.run_id == task_id][1:]


def test_a_task_is_carried_out_and_reported_by_its_id_alone() -> None:
    stage = Stage()
    task_id, request = stage.start()
    assert (request.task_type, json.loads(request.input_json or ""), request.user_id) == (
        *("model_training", {"epochs": 4}),
        "u1",
    )
    other, _ = memory_client(agent_id="another-process", memory=stage.memory)
    reported = {"task_id": task_id, "status": "started", "progress": 0.0, "task_type": "model_training"}
    assert other.check_task_status(task_id) == reported
    assert other.get_task_results(task_id) == {"error": "task not completed. Current status: started"}
    stage.attempt(request).carry_out(FUNCTIONS)
    assert other.check_task_status(task_id) == {**reported, "status": "completed", "progress": 1.0}
    result = {"accuracy": 0.9, "epochs": 4}
    assert other.get_task_results(task_id) == {"task_id": task_id, "status": "completed", "result": result}
    assert stage.memory.rejections() == []


def test_the_events_of_a_task_are_in_order() -> None:
    stage = Stage()
    task_id, request = stage.start()
    stage.attempt(request).carry_out(FUNCTIONS)
    payloads = stage.payloads(task_id)
    assert [type(payload) for payload in payloads] == [
        *(RunStarted, RunRunning),
        *(RunRunning, ProgressReported) * 4,
        *(ProgressReported, RunCompleted),
    ]
    progress = [payload for payload in payloads if isinstance(payload, ProgressReported)]
    assert progress[0] == ProgressReported(1.0, 4.0, "Step 1/4")
    assert progress[-1] == ProgressReported(1.0, 1.0, "nearly there")
    assert [payload.progress for payload in payloads if isinstance(payload, RunRunning)] == [0.0, 0.25, 0.5, 0.75, 1.0]
    events = [event for event in stage.memory.events() if event.envelope.run_id == task_id]
    started, ended = events[1].envelope.occurred_at, events[-1].envelope.occurred_at
    completed = payloads[-1]
    assert isinstance(completed, RunCompleted)
    assert completed.duration_ms == (ended - started) // 1_000


def test_a_function_that_raises_fails_its_task_visibly() -> None:
    stage = Stage()

    def fail(ctx: TaskContext, given: Json) -> None:
        raise TimeoutError("the model server is silent")

    task_id, request = stage.start("fail")
    stage.attempt(request).carry_out({"fail": fail})
    view = stage.client.find_task(task_id)
    assert view is not None
    assert view.error is not None
    assert (view.state, view.error.error_class, view.error.code) == ("failed", "retryable", "TimeoutError")
    assert "the model server is silent" in view.error.message
    assert stage.client.get_task_results(task_id) == {"error": "task not completed. Current status: failed"}


@pytest.mark.parametrize(("code", "state"), [(0, "completed"), (None, "completed"), (3, "failed")])
def test_a_function_that_exits_ends_its_task_as_it_ends_a_run(code: int | None, state: str) -> None:
    stage = Stage()

    def leave(ctx: TaskContext, given: Json) -> None:
        sys.exit(code)

    task_id, request = stage.start("leave")
    stage.attempt(request).carry_out({"leave": leave})
    assert stage.client.check_task_status(task_id)["status"] == state


@pytest.mark.parametrize("result", [object(), "x" * (1 << 20)])
def test_a_result_that_no_event_can_carry_is_a_failure(result: object) -> None:
    stage = Stage()
    task_id, request = stage.start("odd")
    stage.attempt(request).carry_out({"odd": lambda ctx, given: result})
    assert stage.client.check_task_status(task_id)["status"] == "failed"


def test_a_type_that_the_worker_does_not_know_fails() -> None:
    stage = Stage()
    task_id, request = stage.start("unheard_of")
    stage.attempt(request).carry_out(FUNCTIONS)
    view = stage.client.find_task(task_id)
    assert view is not None
    assert view.error is not None
    assert (view.state, view.error.code) == ("failed", "unknown_task_type")


def test_a_coroutine_function_is_awaited() -> None:
    stage = Stage()

    async def double(ctx: TaskContext, given: int) -> int:
        await asyncio.sleep(0)
        return 2 * given

    task_id, request = stage.start("double", 21)
    stage.attempt(request).carry_out({"double": double})
    assert stage.client.get_task_results(task_id)["result"] == 42


def test_a_request_that_comes_twice_does_the_work_once() -> None:
    stage = Stage()
    task_id, request = stage.start()
    stage.attempt(request).carry_out(FUNCTIONS)
    before = stage.payloads(task_id)
    stage.attempt(request).carry_out(FUNCTIONS)
    assert stage.payloads(task_id) == before


@pytest.mark.parametrize("lost_after", ["run_started", "run_running", "run_paused"])
def test_the_task_of_a_lost_worker_begins_again(lost_after: str) -> None:
    stage = Stage()
    task_id, request = stage.start()
    lost = stage.attempt(request)
    lost._sender.send(RunStarted("detached", request.task_type))
    if lost_after != "run_started":
        lost._sender.send(RunRunning(0.5))
    if lost_after == "run_paused":
        lost._sender.send(RunPaused("worker_lost"))
    repeated: list[bool] = []

    def note(ctx: TaskContext, given: Json) -> str:
        repeated.append(ctx.is_repeated)
        return "again"

    stage.attempt(request).carry_out({"model_training": note})
    assert repeated == [True]
    assert any(isinstance(payload, RunResumed) for payload in stage.payloads(task_id))
    assert stage.client.get_task_results(task_id)["result"] == "again"
    assert stage.memory.rejections() == []


def test_a_worker_that_stood_still_works_if_no_other_one_took_the_task() -> None:
    stage = Stage()
    task_id, request = stage.start()
    # The beginning, the task's version, the claim, and the look before the work.
    times_s = itertools.chain([0.0, 0.0, 0.0, 60.0], itertools.count(60.0, 0.01))
    repeated: list[bool] = []

    def note(ctx: TaskContext, given: Json) -> str:
        repeated.append(ctx.is_repeated)
        return "done"

    stage.attempt(request, clock_s=times_s.__next__).carry_out({"model_training": note})
    assert repeated == [False]
    assert [type(payload) for payload in stage.payloads(task_id)] == [RunStarted, RunRunning, RunCompleted]
    assert stage.memory.rejections() == []


def test_a_worker_that_stood_still_leaves_the_task_to_the_one_that_took_it_over() -> None:
    stage = Stage()
    task_id, request = stage.start()
    other = stage.attempt(request)
    done: list[str] = []
    looks = 0

    def clock_s() -> float:
        nonlocal looks
        looks += 1
        if looks == 4:  # between the claim and the work
            other.carry_out({"model_training": lambda ctx, given: done.append("other")})
        return 0.0 if looks < 4 else 60.0 + looks

    stage.attempt(request, clock_s=clock_s).carry_out({"model_training": lambda ctx, given: done.append("late")})
    assert done == ["other"]
    assert stage.client.check_task_status(task_id)["status"] == "completed"


def test_an_end_that_is_rejected_is_reported() -> None:
    stage = Stage()
    task_id, request = stage.start()

    def cancel(ctx: TaskContext, given: Json) -> None:
        stage.attempt(request)._sender.send(RunCancelled("by a person"))

    stage.attempt(request).carry_out({"model_training": cancel})
    assert stage.client.check_task_status(task_id)["status"] == "cancelled"
    (error,) = stage.errors
    assert isinstance(error, Rejected)
    assert error.event_type == "run_completed"


def test_an_end_that_is_delivered_twice_is_no_error() -> None:
    stage = Stage()
    _, request = stage.start()
    attempt = stage.attempt(request)
    deliver = attempt._sender.deliver

    def deliver_twice(payload: Payload, occurred_at: int | None = None) -> tuple[int, int] | None:
        if isinstance(payload, RunCompleted):
            deliver(payload, occurred_at)  # Kafka has it, and its acknowledgement is lost
        return deliver(payload, occurred_at)

    attempt._sender.deliver = deliver_twice  # type: ignore[method-assign]
    attempt.carry_out(FUNCTIONS)
    assert stage.errors == []
    assert len(stage.memory.rejections()) == 1


def test_a_task_that_changes_is_left_to_its_worker() -> None:
    stage = Stage()
    _, request = stage.start()
    others = stage.attempt(request)
    others._sender.send(RunStarted("detached", request.task_type))
    others._sender.send(RunRunning(0.0))
    attempt, asked = stage.attempt(request), 0
    lookup = attempt._lookup

    class Lookup(MemoryTasks):
        def fetch_task(self, task_id: str, timeout_s: float, question: TaskQuestion) -> TaskView | None:
            nonlocal asked
            asked += 1
            others._sender.send(RunRunning(0.1) if asked < 20 else RunCompleted("1"))
            return lookup.fetch_task(task_id, timeout_s, question)

    attempt._lookup = Lookup(stage.memory, "acme")
    attempt.carry_out({})
    assert asked == 20
    assert not any(isinstance(payload, RunPaused | RunFailed) for payload in stage.payloads(request.run_id))


def test_beats_tell_the_time_while_the_function_is_silent_and_end_with_it() -> None:
    stage = Stage()
    beat = threading.Event()

    def be_silent(ctx: TaskContext, given: Json) -> None:
        while sum(isinstance(each, ProgressReported) for each in stage.payloads(ctx.task_id)) < 3:
            beat.wait(0.01)

    task_id, request = stage.start("silent")
    stage.attempt(request, times=BEATING).carry_out({"silent": be_silent})
    payloads = stage.payloads(task_id)
    beats = [payload for payload in payloads if isinstance(payload, ProgressReported)]
    assert len(beats) >= 3
    seconds = [float((payload.message or "").removeprefix("at work for ").removesuffix(" s")) for payload in beats]
    assert seconds == sorted(seconds)
    assert isinstance(payloads[-1], RunCompleted)
    assert not [thread for thread in threading.enumerate() if thread.name == "sessionary-task-beats"]


def test_intermediate_results_are_reported_while_the_task_runs() -> None:
    stage = Stage()
    seen: list[TaskView | None] = []

    def work(ctx: TaskContext, given: Json) -> None:
        ctx.record_plan(["load", "train"])
        ctx.report_progress(1, 2)
        ctx.save_checkpoint({"loss": 0.4}, "epoch 1")
        seen.append(stage.client.find_task(ctx.task_id))

    task_id, request = stage.start("work")
    stage.attempt(request).carry_out({"work": work})
    (view,) = seen
    assert view is not None
    assert (view.state, view.progress, view.plan_json) == ("running", 0.5, '["load","train"]')
    (saved,) = [payload for payload in stage.payloads(task_id) if isinstance(payload, CheckpointSaved)]
    assert (saved.stage, saved.data_json) == ("epoch 1", '{"loss":0.4}')


@pytest.mark.parametrize(("progress", "total"), [(-1, 1), (2, 1), (0, 0)])
def test_progress_is_from_0_to_its_total(progress: float, total: float) -> None:
    stage = Stage()

    def work(ctx: TaskContext, given: Json) -> None:
        with pytest.raises(Invalid, match="must be a number from 0 to the total"):
            ctx.report_progress(progress, total)

    task_id, request = stage.start("work")
    stage.attempt(request).carry_out({"work": work})
    assert stage.client.check_task_status(task_id)["status"] == "completed"


def test_a_task_outlives_its_session() -> None:
    stage = Stage()
    _, request = stage.start()
    stage.memory.silence(stage.session)
    stage.memory.advance(3_600)
    assert stage.memory.find_row(stage.session.session_id).state == "Terminated"
    stage.attempt(request).carry_out(FUNCTIONS)
    assert stage.client.check_task_status(request.run_id)["status"] == "completed"
    stage.memory.advance(30 * 3_600)
    with pytest.raises(SessionLost):
        stage.memory.find_row(stage.session.session_id)
    assert stage.client.get_task_results(request.run_id)["result"] == {"accuracy": 0.9, "epochs": 4}


def test_a_task_whose_worker_died_without_another_one_fails_by_its_deadline() -> None:
    stage = Stage()
    task_id, request = stage.start()
    stage.attempt(request)._sender.send(RunStarted("detached", request.task_type))
    stage.memory.advance(25 * 3_600)
    view = stage.client.find_task(task_id)
    assert view is not None
    assert view.error is not None
    assert (view.state, view.error.code) == ("failed", "run_silent")


def test_watching_yields_each_change_until_the_end() -> None:
    stage = Stage()
    task_id, request = stage.start()
    states = []
    for view in stage.client.watch_task(task_id):
        states.append(view.state)
        if view.state == "queued":
            stage.attempt(request).carry_out(FUNCTIONS)
    assert states == ["queued", "completed"]
    with pytest.raises(SessionLost, match="is not known"):
        next(stage.client.watch_task("11111111-1111-8111-8111-111111111111"))


@pytest.mark.parametrize(
    ("events", "status"),
    [
        ((), "started"),
        ((RUNNING,), "running"),
        ((RUNNING, RunPaused("held")), "paused"),
        ((RUNNING, RunFailed(ErrorInfo("fatal", "lost", "lost"))), "failed"),
        ((RUNNING, RunCancelled("not wanted")), "cancelled"),
    ],
)
def test_a_task_that_is_not_completed_has_no_result_but_its_status(events: Sequence[Payload], status: str) -> None:
    stage = Stage()
    task_id, request = stage.start()
    assert uuid.UUID(task_id).variant == uuid.RFC_4122
    worker = stage.attempt(request)
    for payload in (RunStarted("detached", request.task_type), *events):
        worker._sender.send(payload)
    assert stage.client.check_task_status(task_id)["status"] == status
    assert stage.client.get_task_results(task_id) == {"error": f"task not completed. Current status: {status}"}
    assert stage.memory.rejections() == []


def test_an_unknown_task_is_an_answer() -> None:
    client, _ = memory_client()
    for task_id in ("no id", "11111111-1111-8111-8111-111111111111"):
        assert client.check_task_status(task_id) == {"error": "task not found"}
        assert client.get_task_results(task_id) == {"error": "task not found"}


def test_a_control_api_that_is_silent_raises() -> None:
    stage = Stage()
    task_id, request = stage.start()
    stage.memory.silence_control(silent=True)
    with pytest.raises(Unavailable):
        stage.client.check_task_status(task_id)
    with pytest.raises(Unavailable):
        stage.attempt(request).carry_out(FUNCTIONS)
    with pytest.raises(Unavailable, match="the worker stops"):
        stage.attempt(request, is_stopped=True).carry_out(FUNCTIONS)


def test_the_verbs_of_asyncio() -> None:
    async def live(client: AsyncSessionClient, memory: InMemoryTransport) -> None:
        async with client, client.session(user_id="u1") as session:
            task_id = await session.start_task("model_training", {"epochs": 1})
            assert (await client.check_task_status(task_id))["status"] == "started"
            assert "not completed" in (await client.get_task_results(task_id))["error"]
            stage = Stage()
            stage.memory = memory
            stage.attempt(memory.tasks()[-1]).carry_out(FUNCTIONS)
            assert [view.state async for view in client.watch_task(task_id)] == ["completed"]
            view = await client.find_task(task_id)
            assert view is not None
            assert view.state == "completed"

    client, memory = memory_client()
    asyncio.run(live(AsyncSessionClient.wrap(client), memory))


def test_the_functions_of_a_module() -> None:
    assert functions_of(__name__) == {"model_training": train_model}
    with pytest.raises(Invalid, match="marked with @task"):
        functions_of("sessionary.producers.client_core.task_reads")


def test_a_client_remembers_a_bounded_number_of_places() -> None:
    stage = Stage()
    client: SessionClient = stage.client
    for number in range(1_100):
        Runs(stage.session.core).note_task(f"task {number}", (0, number))
    assert len(client.core.services.task_positions) == 1_000
    assert "task 1099" in client.core.services.task_positions
