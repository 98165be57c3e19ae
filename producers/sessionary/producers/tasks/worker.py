"""A worker: takes the requests for tasks of one service, and carries out several at once.

The offset of a request is committed once its task has ended. So the task of a worker that dies is
delivered to another one, which does it again.
"""

import asyncio
import inspect
import json
import threading
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from sessionary.producers.client import SessionClient
from sessionary.producers.context.error_info import to_error_info
from sessionary.producers.delivery.emitter import Emitter
from sessionary.producers.durable.large_values import RUN_RESULT, StoredText, ValueKeeper, keep_value
from sessionary.producers.errors import (
    Invalid,
    ProducerError,
    QueueFull,
    Rejected,
    RunGone,
    SessionaryError,
    Unavailable,
)
from sessionary.producers.ports import Condition, Json, OnError, OnReceipt, Receipt, TaskLookup, TaskQuestion, TaskView
from sessionary.producers.process.clocks import awake_and_asleep_s
from sessionary.producers.run_ports import FINISHED_STATES, LogPosition
from sessionary.producers.tasks.context import TaskBeats, TaskContext, TaskSender, now_us
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
from sessionary.schemas.types import ErrorInfo

if TYPE_CHECKING:
    from sessionary.producers.artifacts.library import ArtifactLibrary


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
    coroutine function. After the death of a worker, the function is called again for the same task.
    """

    def mark(function: FunctionT) -> FunctionT:
        setattr(function, _ATTRIBUTE, task_type)
        return function

    return mark


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
# worker was lost: the processor applies one of several. A worker is lost if the task does not
# change for `lease_s`, which is many beats.


_ASK_S = 10.0
_END_ASK_S = 2.0  # a worker that ends waits no longer


class TaskTimes(NamedTuple):
    """The interval of a silent worker's heartbeats, and when it counts as lost; seconds."""

    beat_s: float = 5.0
    lease_s: float = 30.0


DEFAULT_TIMES: Final = TaskTimes()


class TaskAttempt:
    """Carries out one task."""

    def __init__(
        self,
        request: TaskRequest,
        lookup: TaskLookup,
        sender: TaskSender,
        on_error: OnError,
        is_stopped: Callable[[], bool],
        times: TaskTimes = DEFAULT_TIMES,
        artifacts: "ArtifactLibrary | None" = None,
        clock_s: Callable[[], float] = awake_and_asleep_s,
    ) -> None:
        """Keep the parts.

        `artifacts`: keeps results that are too large for events; None: such results fail.
        `clock_s`: measures leases, in seconds; only differences count.
        """
        self._request = request
        self._lookup = lookup
        self._sender = sender
        self._on_error = on_error
        self._is_stopped = is_stopped
        self._times = times
        self._keeper = ValueKeeper(artifacts, sender, on_error)
        self._clock_s = clock_s
        self._began_us = 0
        self._claimed_s = 0.0  # before the claim was sent, so before the lease began
        self._claimed_version: str | None = None  # of the task as it was claimed

    def carry_out(self, functions: Mapping[str, TaskFunction]) -> None:
        """Do the work, unless it is done or another worker does it; return after the task's end.

        Raises `Unavailable` if the control API or Kafka does not answer, or if the worker stops;
        then the task is to be tried again.
        """
        is_repeated = self._claim()
        while is_repeated is not None and not self._is_still_claimed():
            is_repeated = self._claim()
        if is_repeated is None:
            return
        request = self._request
        parts = (self._sender, request.run_id, request.session_id, self._keeper)
        context = TaskContext(*parts, is_repeated=is_repeated)
        function = functions.get(request.task_type)
        self._sender.send(RunRunning(None if is_repeated else 0.0))
        ended: Payload
        if function is None:
            message = f"no function of this worker carries out tasks of type {request.task_type}"
            ended = RunFailed(ErrorInfo("fatal", "unknown_task_type", message))
        else:
            with TaskBeats(self._sender, self._times.beat_s, self._on_error):
                ended = self._call(function, context)
        self._end(ended)

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
            elif self._clock_s() - unchanged_s >= self._times.lease_s and self._take_over(view):
                return True
        return None

    def _take_over(self, view: TaskView) -> bool:
        if view.state == "started":
            self._sender.send(RunRunning())
        if view.state != "paused":
            self._sender.send(RunPaused("worker_lost"))
        return self._is_granted(RunResumed())

    def _is_still_claimed(self) -> bool:
        """Return False if another worker may have taken the task over since the claim.

        It may once the lease is over; then the task is looked at again. Between this look and the
        work, the process may still be stopped.
        """
        if self._clock_s() - self._claimed_s < self._times.lease_s:
            return True
        view = self._ask(TaskQuestion())
        return view is not None and view.version == self._claimed_version

    def _is_granted(self, payload: Payload) -> bool:
        self._began_us, self._claimed_s = now_us(), self._clock_s()
        log_position = self._sender.deliver(payload, self._began_us)
        view = self._ask(TaskQuestion(after=log_position))
        self._claimed_version = None if view is None else view.version
        return view is not None and (view.verdict is None or view.verdict.applied)

    def _ask(self, question: TaskQuestion) -> TaskView | None:
        if self._is_stopped():
            raise Unavailable("the worker stops", 1.0)
        wait_s = min(_ASK_S, self._times.lease_s / 3) if question.after is None else _ASK_S
        try:
            return self._lookup.fetch_task(self._request.run_id, wait_s, question)
        except RunGone:
            return None  # like an unknown one: there is nothing left to do

    def _call(self, function: TaskFunction, context: TaskContext) -> Payload:
        given: Json = None if self._request.input_json is None else json.loads(self._request.input_json)
        try:
            result = function(context, given)
            if inspect.iscoroutine(result):
                result = asyncio.run(result)
            return RunCompleted(*self._store_result(result))
        except Exception as error:  # noqa: BLE001 - whatever the function raises is how the task failed
            return RunFailed(to_error_info(error))

    def _store_result(self, result: Json) -> StoredText:
        """Return the task's result as its last event has it. Raises as `keep_value`."""
        return StoredText(None) if result is None else keep_value(self._keeper, result, "the task's result", RUN_RESULT)

    def _end(self, ended: Payload) -> None:
        """Deliver the task's end; a result that no event can carry is a failure."""
        at_us = now_us()
        if isinstance(ended, RunCompleted):
            ended = ended._replace(duration_ms=(at_us - self._began_us) // 1_000)
        try:
            log_position = self._sender.deliver(ended, at_us)
        except Invalid as error:
            ended = RunFailed(to_error_info(error))
            log_position = self._sender.deliver(ended, at_us)
        self._report_rejection(ended, log_position)

    def _report_rejection(self, ended: Payload, log_position: LogPosition | None) -> None:
        """Report an end that was rejected: another worker has the task, or it is over.

        Nothing is reported if the processor does not answer: the end is in the log.
        """
        if log_position is None or self._is_stopped():
            return
        try:
            view = self._lookup.fetch_task(self._request.run_id, _END_ASK_S, TaskQuestion(after=log_position))
        except SessionaryError:
            return
        if view is None or view.verdict is None or view.verdict.reason is None:
            return
        result_json = ended.result_json if isinstance(ended, RunCompleted) else None
        was_delivered_twice = isinstance(ended, RunCompleted) and view.state == "completed"
        if not (was_delivered_twice and view.result_json == result_json):
            self._on_error(Rejected(EVENT_TYPES[type(ended)], view.verdict.reason))


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
        requests, lookup = client.core.ports.task_requests, client.core.ports.tasks
        if requests is None or lookup is None:
            raise ProducerError("the ports of this client serve no workers of tasks")
        client.core.ports.control.check_configured()
        self._client = client
        self._requests, self._lookup = requests, lookup
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
            self._threads.add(thread)
        thread.start()

    def _carry_out(self, request: TaskRequest, key: _TaskKey) -> None:
        receipt = _DONE
        sender = TaskSender(self._new_emitter(request), request.run_id, self._stopped.is_set)
        parts = (request, self._lookup, sender, self._client.core.on_error, self._stopped.is_set, self._times)
        try:
            TaskAttempt(*parts, self._client.artifacts).carry_out(self._functions)
        except SessionaryError as error:
            if not self._stopped.is_set():
                self._client.core.on_error(error)
            receipt = Receipt(None, None, str(error))  # it is asked for again
        finally:
            with self._lock:
                waiting = self._at_work.pop(key)
                self._threads.discard(threading.current_thread())
            sender.close()
        for on_receipt in waiting:
            on_receipt(receipt)

    def _new_emitter(self, request: TaskRequest) -> Emitter:
        key = SessionKey(request.tenant_id, request.session_id)
        emitter = self._client.core.new_emitter(key, request.user_id, request.data_classes)
        emitter.epoch = request.epoch
        return emitter
