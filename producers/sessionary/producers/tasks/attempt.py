"""One task in one worker: it is claimed, carried out, and ended.

A task belongs to the worker whose `run_started` was applied, or whose `run_resumed`, if a former
worker was lost: the processor applies one of several. A worker is lost if the task does not change
for `lease_s`, which is many beats.
"""

import asyncio
import inspect
import json
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from sessionary.producers.context.error_info import to_error_info
from sessionary.producers.durable.large_values import RUN_RESULT, StoredText, ValueKeeper, keep_value
from sessionary.producers.errors import Invalid, RunGone, Unavailable
from sessionary.producers.ports import Json, OnError, TaskLookup, TaskQuestion, TaskView
from sessionary.producers.run_ports import FINISHED_STATES
from sessionary.producers.tasks.context import TaskBeats, TaskContext
from sessionary.producers.tasks.functions import TaskFunction
from sessionary.producers.tasks.sender import TaskSender, now_us
from sessionary.schemas.events import Payload, RunCompleted, RunFailed, RunPaused, RunResumed, RunRunning, RunStarted
from sessionary.schemas.records import TaskRequest
from sessionary.schemas.types import ErrorInfo

if TYPE_CHECKING:  # most workers have no library
    from sessionary.producers.artifacts.library import ArtifactLibrary

_ASK_S = 10.0


class TaskTimes(NamedTuple):
    """How often a worker is heard of while it is silent, and when it is taken for lost; seconds."""

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
    ) -> None:
        """`artifacts`: keeps results that are too large for events; without it, such ones fail."""
        self._request = request
        self._lookup = lookup
        self._sender = sender
        self._on_error = on_error
        self._is_stopped = is_stopped
        self._times = times
        self._keeper = ValueKeeper(artifacts, sender, on_error)
        self._began_us = 0

    def carry_out(self, functions: Mapping[str, TaskFunction]) -> None:
        """Do the work, unless another worker does it or it is done; return after the task's end.

        Raises `Unavailable` if the control API or Kafka does not answer, or if the worker stops;
        the task is to be tried again then.
        """
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
        seen, unchanged_s = None, time.monotonic()
        while (view := self._ask(TaskQuestion(seen=seen))) is not None and view.state not in FINISHED_STATES:
            if view.version != seen:
                seen, unchanged_s = view.version, time.monotonic()
            if view.state == "queued":
                if self._is_granted(RunStarted("detached", self._request.task_type)):
                    return False
            elif time.monotonic() - unchanged_s >= self._times.lease_s and self._take_over(view):
                return True
        return None

    def _take_over(self, view: TaskView) -> bool:
        if view.state == "started":
            self._sender.send(RunRunning())
        if view.state != "paused":
            self._sender.send(RunPaused("worker_lost"))
        return self._is_granted(RunResumed())

    def _is_granted(self, payload: Payload) -> bool:
        self._began_us = now_us()
        place = self._sender.deliver(payload, self._began_us)
        view = self._ask(TaskQuestion(after=place))
        return view is not None and (view.verdict is None or view.verdict.applied)

    def _ask(self, question: TaskQuestion) -> TaskView | None:
        if self._is_stopped():
            raise Unavailable("the worker stops", 1.0)
        wait_s = min(_ASK_S, self._times.lease_s / 3) if question.after is None else _ASK_S
        try:
            return self._lookup.fetch_task(self._request.run_id, wait_s, question)
        except RunGone:
            return None  # as an unknown one: there is nothing left to do

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
            self._sender.deliver(ended, at_us)
        except Invalid as error:
            self._sender.deliver(RunFailed(to_error_info(error)), at_us)
