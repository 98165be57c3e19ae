"""A worker: takes the requests for tasks of one service, and carries out several at once.

The offset of a request is committed once its task has ended. So the task of a worker that dies is
delivered to another one, which does it again.
"""

import asyncio
import inspect
import json
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any, Final, NamedTuple, TypeVar

from sessionary.producers.client import SessionClient
from sessionary.producers.client_core.core import ClientCore
from sessionary.producers.context.callables import checked_word, decorate_inside, kind_of
from sessionary.producers.context.error_info import ending_of, to_error_info
from sessionary.producers.context.scope import enter_block, leave_block
from sessionary.producers.delivery.emitter import EnvelopeFields
from sessionary.producers.durable.errors import TaskStopped, ToolCallInProgress, ToolCallUnresolved
from sessionary.producers.durable.flow import Flow, run_flow
from sessionary.producers.durable.large_values import RUN_RESULT, StoredText, ValueKeeper, keep_value
from sessionary.producers.durable.resume_plan import describe_resumption, is_unresolved
from sessionary.producers.durable.run_resume import KnownRun, read_run, resume_run
from sessionary.producers.errors import (
    DeliveryFailed,
    Invalid,
    ProducerError,
    QueueFull,
    Rejected,
    RunGone,
    SessionaryError,
    SessionLost,
    Unavailable,
)
from sessionary.producers.ports import Condition, Json, OnReceipt, Receipt, TaskLookup, TaskQuestion, TaskView
from sessionary.producers.process.clocks import awake_and_asleep_s
from sessionary.producers.run_ports import FINISHED_STATES, LogPosition
from sessionary.producers.session.async_session import AsyncSession
from sessionary.producers.session.core import SessionCore
from sessionary.producers.session.runs import Runs
from sessionary.producers.session.session import Session
from sessionary.producers.session.view import LocalView
from sessionary.producers.tasks.context import TaskBeats, TaskContext, TaskSender
from sessionary.schemas.events import (
    EVENT_TYPES,
    Payload,
    RunCompleted,
    RunFailed,
    RunPaused,
    RunResumed,
    RunRunning,
    RunStarted,
)
from sessionary.schemas.ids import SessionKey
from sessionary.schemas.records import TaskRequest
from sessionary.schemas.types import ErrorInfo, Limits

# The functions of tasks, by the type of task.


# Takes a `TaskContext` and the task's input; returns its result, as JSON can hold it, or awaits it.
TaskFunction = Callable[..., Any]
FunctionT = TypeVar("FunctionT", bound=TaskFunction)
_ATTRIBUTE = "__sessionary_task_type__"


def task(task_type: str) -> Callable[[FunctionT], FunctionT]:
    """Mark a function as the one that carries out tasks of a type.

        @task("model_training")
        def train(ctx: TaskContext, input: dict) -> dict: ...

    The function takes a `TaskContext` and the task's input, and returns the result. It may be a
    coroutine function. After the death of a worker, the function is called again for the same task:
    what is recorded, steps and calls of tools, is then answered from the record.

    The function runs in the task's session: `current_session` returns it, calls of `@tool` are
    reserved in the task's run, and events have the run's id. A coroutine function gets an
    `AsyncSession`, and is cancelled once its task is. Raises `Invalid` for `@task` without a type.
    """
    checked_word("task", task_type, "model_training")

    def mark(function: FunctionT) -> FunctionT:
        setattr(function, _ATTRIBUTE, task_type)
        return function

    return partial(decorate_inside, mark)


def functions_of(module: str) -> Mapping[str, TaskFunction]:
    """Return the marked functions of a module, which is imported.

    Raises `Invalid` if the module has none, or two of one type; and as its import does.
    """
    found: dict[str, TaskFunction] = {}
    for function in vars(import_module(module)).values():
        task_type = getattr(function, _ATTRIBUTE, None)
        if not isinstance(task_type, str):
            continue
        if found.setdefault(task_type, function) is not function:
            raise Invalid("invalid_value", f"module {module} has two functions of tasks of type {task_type}")
    if not found:
        raise Invalid("invalid_value", f"module {module} has no function that is marked with @task")
    return found


# One task in one worker: it is claimed, carried out, and ended.
#
# A task belongs to the worker whose `run_started` was applied, or whose `run_resumed`, if a former
# worker was lost: the processor applies one of several, and rejects what the others send of the
# task. A worker is lost if the task does not change for `lease_s`, which is many beats.


_ASK_S = 10.0
_END_ASK_S = 2.0  # a worker that ends waits no longer
_PAUSE_S = 5.0  # before the function is called again
_CALLS_MAX = 20_000  # of the function, as Kafka or the processor are away: a day and more
_AWAY = (Unavailable, QueueFull, DeliveryFailed)
# With these the work is not over: the next call of the function is answered from the record.
_UNSETTLED_OR_AWAY = (ToolCallInProgress, ToolCallUnresolved, *_AWAY)


class TaskTimes(NamedTuple):
    """The interval of a silent worker's heartbeats, and when it counts as lost; seconds."""

    beat_s: float = 5.0
    lease_s: float = 30.0


DEFAULT_TIMES: Final = TaskTimes()


class TaskAttempt:
    """Carries out one task."""

    def __init__(
        self,
        client: ClientCore,
        request: TaskRequest,
        is_stopped: Callable[[], bool],
        times: TaskTimes = DEFAULT_TIMES,
        clock_s: Callable[[], float] = awake_and_asleep_s,
    ) -> None:
        """Send nothing yet.

        `client`: its ports know tasks and runs; its library keeps values that are too large for
        events. `is_stopped`: whether the worker is to end. `clock_s`: measures leases, in seconds;
        only differences count.
        """
        assert client.ports.tasks is not None
        self._client = client
        self._request = request
        self._lookup: TaskLookup = client.ports.tasks
        self._is_stopped = is_stopped
        self._times = times
        self._clock_s = clock_s
        self._core = _open_session(client, request)
        self._sender = TaskSender(self._core, request.run_id, is_stopped)
        self._recorder = self._core.recorder()
        self._keeper = ValueKeeper(client.artifacts, self._sender, client.on_error)
        self._fields = EnvelopeFields(run_id=request.run_id)
        self._reported = set[str]()  # keys of calls for which a person was asked
        self._began_us = 0
        self._claimed_s = 0.0  # before the claim was sent, so before the lease began

    def close(self) -> None:
        """Forget the sequence of the session's events once they are delivered."""
        self._sender.close()

    def carry_out(self, functions: Mapping[str, TaskFunction]) -> None:
        """Do the work, unless it is done or another worker does it; return after the task's end.

        Raises `Unavailable` if the control API or Kafka does not answer, or if the worker stops;
        then the task is to be tried again.
        """
        function = functions.get(self._request.task_type)
        while (is_repeated := self._claim()) is not None:
            if not self._is_still_claimed():
                continue
            try:
                self._work(function, is_repeated=is_repeated)
                return
            except TaskStopped as stopped:
                if stopped.state != "taken_over":
                    return
                self._client.on_error(stopped)
                self._sender.restart()  # and wait for the end: the other worker may be lost too

    # Whose the task is

    def _claim(self) -> bool | None:
        """Wait until the task is this worker's, or finished: None.

        Returns whether another worker began it before.
        """
        seen, unchanged_s = None, self._clock_s()
        while (view := self._ask(TaskQuestion(seen=seen))) is not None and view.state not in FINISHED_STATES:
            if view.version != seen:
                seen, unchanged_s = view.version, self._clock_s()
            if view.state == "queued":
                if self._is_granted(RunStarted("detached", self._request.task_type)):
                    return False
            elif self._clock_s() - unchanged_s >= self._times.lease_s:
                try:
                    if self._take_over():
                        return True
                except (ToolCallUnresolved, Rejected) as error:
                    self._report_open(error)
                    unchanged_s = self._clock_s()  # a person decides, or another worker was faster
        return None

    def _take_over(self) -> bool:
        """Take the task of a lost worker; return whether it is this worker's then.

        Raises `ToolCallUnresolved` if a call of the lost one may have taken effect.
        """
        known = read_run(self._recorder, self._request.run_id)
        if known is None or known.run.state in FINISHED_STATES:
            return False
        if any(map(is_unresolved, known.calls)):
            # The outcome of the last one resumes the run, and leaves it the lost worker's.
            known = self._run_flow(resume_run(self._recorder, known, self._fields))
        view = self._ask(TaskQuestion())
        if view is None or view.state in FINISHED_STATES:
            return False
        if view.state != "paused":
            self._sender.send(RunPaused("worker_lost"))
        return self._is_granted(RunResumed(known.plan.next, describe_resumption(known.plan, by_person=False)))

    def _is_granted(self, payload: Payload) -> bool:
        self._began_us, self._claimed_s = _now_us(), self._clock_s()
        view = self._ask(TaskQuestion(after=self._sender.deliver(payload, self._began_us)))
        return self._is_own(view) and (view is None or view.verdict is None or view.verdict.applied)

    def _is_still_claimed(self) -> bool:
        """Return False if another worker may have taken the task over since the claim.

        It may once the lease is over; then the task is looked at again. Between this look and the
        work, the process may still be stopped: then the processor rejects its events.
        """
        if self._clock_s() - self._claimed_s < self._times.lease_s:
            return True
        return self._is_own(self._ask(TaskQuestion()))

    def _is_own(self, view: TaskView | None) -> bool:
        return view is not None and view.holder == self._sender.producer_id

    def _ask(self, question: TaskQuestion) -> TaskView | None:
        if self._is_stopped():
            raise Unavailable("the worker stops", 1.0)
        wait_s = min(_ASK_S, self._times.lease_s / 3) if question.after is None else _ASK_S
        try:
            return self._lookup.fetch_task(self._request.run_id, wait_s, question)
        except RunGone:
            return None  # like an unknown one: there is nothing left to do

    def _look(self) -> None:
        """Stop the verbs of the task if it is over, or another worker has it. Raises nothing."""
        try:
            view = self._lookup.fetch_task(self._request.run_id, _END_ASK_S, TaskQuestion())
        except SessionaryError:
            return  # the processor rejects what does not count
        if view is not None and view.state in FINISHED_STATES:
            self._sender.stop(view.state)
        elif view is not None and not self._is_own(view):
            self._sender.stop("taken_over")

    # The work

    def _work(self, function: TaskFunction | None, *, is_repeated: bool) -> None:
        """Call the function until the task has ended. Raises `TaskStopped`, `Unavailable`."""
        self._sender.send(RunRunning(None if is_repeated else 0.0))
        if function is None:
            message = f"no function of this worker carries out tasks of type {self._request.task_type}"
            self._end(RunFailed(ErrorInfo("fatal", "unknown_task_type", message)))
            return
        with suppress(SessionLost, *_AWAY):  # what is known of the session only helps
            self._core.sync(self._core.view.departures)
        while True:
            with TaskBeats(self._sender, self._times.beat_s, self._look, self._client.on_error):
                ended = self._call_until_done(function, is_repeated=is_repeated)
            if self._end(ended):
                return
            is_repeated = True

    def _call_until_done(self, function: TaskFunction, *, is_repeated: bool) -> Payload:
        """Return what the function came to; call it again if only its record is not to be had."""
        for number in range(_CALLS_MAX):
            try:
                known = self._go_on()
                return RunCompleted(*self._call(function, known, is_repeated=is_repeated or number > 0))
            except TaskStopped:
                raise
            except _UNSETTLED_OR_AWAY as error:
                if number + 1 == _CALLS_MAX:
                    return RunFailed(to_error_info(error))
                self._pause()
            except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the function raises
                self._sender.check()
                if isinstance(error, Rejected):
                    self._look()  # why: the task may be over
                    self._sender.check()
                return RunCompleted() if ending_of(error) == "done" else RunFailed(to_error_info(error))
        raise AssertionError("unreachable")

    def _go_on(self) -> KnownRun:
        """Return the task's records once all outcomes of its calls are known. Waits.

        No call is at work here: one that is was a lost worker's, until its limit is over.
        """
        while True:
            try:
                known = read_run(self._recorder, self._request.run_id)
                if known is not None and known.run.state in FINISHED_STATES:
                    self._sender.stop(known.run.state)
                elif known is not None and all(call.state != "running" for call in known.calls):
                    return self._run_flow(resume_run(self._recorder, known, self._fields))
            except (ToolCallUnresolved, Rejected, *_AWAY) as error:
                self._report_open(error)
            self._pause()

    def _report_open(self, error: SessionaryError) -> None:
        """Report that the task waits for a person, once per call."""
        if isinstance(error, ToolCallUnresolved) and error.idem_key not in self._reported:
            self._reported.add(error.idem_key)
            self._client.on_error(error)

    def _pause(self) -> None:
        """Wait a little. Raises `TaskStopped`, and `Unavailable` if the worker stops."""
        self._sender.check()
        if self._is_stopped():
            raise Unavailable("the worker stops", 1.0)
        (self._recorder.waits.pause or time.sleep)(_PAUSE_S)

    def _run_flow(self, flow: Flow[KnownRun]) -> KnownRun:
        return run_flow(flow, self._recorder.waits.pause)

    def _call(self, function: TaskFunction, known: KnownRun, *, is_repeated: bool) -> StoredText:
        """Call the function in its session and run; return its result as the last event has it."""
        run = Runs(self._core).resume_run(self._request.run_id, None, None, {})
        context = TaskContext(self._sender, run, self._keeper, is_repeated=is_repeated)
        given: Json = None if self._request.input_json is None else json.loads(self._request.input_json)
        session = AsyncSession(self._core) if kind_of(function) == "coroutine" else Session(self._core)
        block = enter_block(session)
        try:
            with run.continue_from(known):
                result = function(context, given)
                if inspect.iscoroutine(result):
                    result = self._await(result)
                return self._store_result(result)
        finally:
            leave_block(block)

    def _await(self, work: Coroutine[Any, Any, Json]) -> Json:
        async def wait() -> Json:
            task, loop = asyncio.current_task(), asyncio.get_running_loop()
            assert task is not None

            def cancel() -> None:
                with suppress(RuntimeError):  # the loop has just ended
                    loop.call_soon_threadsafe(task.cancel)

            with self._sender.when_stopped(cancel):
                return await work

        try:
            return asyncio.run(wait())
        except asyncio.CancelledError as error:
            self._sender.check()
            raise RuntimeError("the task's function was cancelled, and by itself") from error

    def _store_result(self, result: Json) -> StoredText:
        """Return the task's result as its last event has it. Raises as `keep_value`."""
        return StoredText(None) if result is None else keep_value(self._keeper, result, "the task's result", RUN_RESULT)

    # The end

    def _end(self, ended: Payload) -> bool:
        """Deliver the task's end; a result that no event can carry is a failure.

        Returns False if the task is to be continued: the outcome of one of its calls is unknown,
        and the function took no notice. Raises `TaskStopped` if another worker has the task.
        """
        at_us = _now_us()
        if isinstance(ended, RunCompleted):
            ended = ended._replace(duration_ms=(at_us - self._began_us) // 1_000)
        try:
            log_position = self._sender.deliver(ended, at_us)
        except Invalid as error:
            ended = RunFailed(to_error_info(error))
            log_position = self._sender.deliver(ended, at_us)
        return self._is_ended(ended, log_position)

    def _is_ended(self, ended: Payload, log_position: LogPosition | None) -> bool:
        """Report an end that was rejected: another worker has the task, or it is over.

        Nothing is reported if the processor does not answer: the end is in the log.
        """
        if log_position is None or self._is_stopped():
            return True
        try:
            view = self._lookup.fetch_task(self._request.run_id, _END_ASK_S, TaskQuestion(after=log_position))
        except SessionaryError:
            return True
        if view is None or view.verdict is None or view.verdict.reason is None:
            return True
        if view.state not in FINISHED_STATES:
            if self._is_own(view):
                return view.state != "paused"
            raise TaskStopped(self._request.run_id, "taken_over")
        result_json = ended.result_json if isinstance(ended, RunCompleted) else None
        was_delivered_twice = isinstance(ended, RunCompleted) and view.state == "completed"
        if not (was_delivered_twice and view.result_json == result_json):
            self._client.on_error(Rejected(EVENT_TYPES[type(ended)], view.verdict.reason))
        return True


def _now_us() -> int:
    """Return the time in µs since the epoch."""
    return time.time_ns() // 1_000


def _open_session(client: ClientCore, request: TaskRequest) -> SessionCore:
    """Return the session of a task, as far as its request tells. It sends no heartbeats."""
    key = SessionKey(request.tenant_id, request.session_id)
    emitter = client.new_emitter(key, request.user_id, request.data_classes)
    emitter.epoch = request.epoch
    # The client's watch does not know it: the end of the session is none of the task.
    core = SessionCore(LocalView(emitter, Limits(), "{}", 1, quotas=client.services.quotas), client.services)
    core.detach()
    core.view.detached_runs.add(request.run_id)
    return core


_DONE = Receipt(None, None)
_STOPPING = "the worker stops"
_TaskKey = tuple[str, str]  # session id, run id


class TaskWorker:
    """Carries out the tasks of a client's tenant and service. Start it once, and close it.

        with SessionClient(tenant_id="acme", service_id="billing", agent_id="worker-1") as client:
            worker = TaskWorker(client, {"model_training": train})
            worker.start()
            stop.wait()
            worker.close()

    Each task has its own thread. A function that is running when the worker closes is not awaited
    for long: the task is delivered again, to another worker.
    """

    def __init__(
        self,
        client: SessionClient,
        functions: Mapping[str, TaskFunction],
        *,
        concurrency: int = 4,
        times: TaskTimes = DEFAULT_TIMES,
    ) -> None:
        """Connect to nothing yet.

        Args:
            client: Sends the tasks' events. Its settings name Kafka and the control API; its
                library keeps values that are too large for events.
            functions: The functions, by the type of task; `functions_of` finds those of a module.
            concurrency: How many tasks are carried out at once.
            times: The interval of a silent task's heartbeats, and when a lost worker's task begins
                again.

        Raises:
            SettingsError: `SESSIONARY_CONTROL_URL` is not set.
            ProducerError: The client's ports serve no workers.
        """
        requests = client.core.ports.task_requests
        if requests is None or client.core.ports.tasks is None:
            raise ProducerError("the ports of this client serve no workers of tasks")
        client.core.ports.control.check_configured()
        self._client = client
        self._requests = requests
        self._functions = functions
        self._concurrency = concurrency
        self._times = times
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._at_work: dict[_TaskKey, list[OnReceipt]] = {}
        self._threads: set[threading.Thread] = set()

    def health(self) -> Condition:
        """Return whether requests are still read, and a line for people. Kafka may be away."""
        return (True, _STOPPING) if self._stopped.is_set() else self._requests.state.health()

    def readiness(self) -> Condition:
        """Return whether the worker can take tasks, and a line for people: if not, why not."""
        return (False, _STOPPING) if self._stopped.is_set() else self._requests.state.readiness()

    def __repr__(self) -> str:
        return f"<TaskWorker of {', '.join(self._functions)}>"

    def start(self) -> None:
        """Begin to take requests, on a dedicated thread."""
        self._requests.start(self._take_request)

    def close(self, timeout_s: float = 10.0) -> None:
        """Take no further requests; wait up to `timeout_s` for the tasks at work."""
        self._stopped.set()
        self._requests.close(0.0)
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(timeout_s / len(threads))
        self._requests.close(timeout_s)

    def _take_request(self, request: TaskRequest, on_receipt: OnReceipt) -> None:
        """Begin a task on its own thread. Raises `QueueFull` if all threads are at work."""
        key = request.session_id, request.run_id
        with self._lock:
            if (waiting := self._at_work.get(key)) is not None:
                waiting.append(on_receipt)  # delivered again after a rebalance: one end is for all
                return
            if len(self._at_work) >= self._concurrency:
                raise QueueFull(f"{self._concurrency} tasks are at work")
            self._at_work[key] = [on_receipt]
            thread = threading.Thread(
                target=self._carry_out, args=(request, key), name=f"sessionary-task-{request.run_id}", daemon=True
            )
            try:
                thread.start()  # with the lock: `close` must not wait for one that has not begun
            except RuntimeError:  # no thread can be had: the request comes again
                del self._at_work[key]
                raise
            self._threads.add(thread)

    def _carry_out(self, request: TaskRequest, key: _TaskKey) -> None:
        receipt, attempt = _DONE, None
        try:
            attempt = TaskAttempt(self._client.core, request, self._stopped.is_set, self._times)
            attempt.carry_out(self._functions)
        except SessionaryError as error:
            if not self._stopped.is_set():
                self._client.core.on_error(error)
            receipt = Receipt(None, None, str(error))  # it is asked for again
        finally:
            with self._lock:
                waiting = self._at_work.pop(key)
                self._threads.discard(threading.current_thread())
            if attempt is not None:
                attempt.close()
        for on_receipt in waiting:
            on_receipt(receipt)
