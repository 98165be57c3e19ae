"""One run of a task as events: its start, its steps, its progress, and how it ended."""

from collections.abc import Awaitable, Callable
from typing import Any, Literal, NamedTuple, Self, overload

from sessionary.producers.context.error_info import error_message, to_error_info
from sessionary.producers.context.reported_block import ReportedBlock
from sessionary.producers.context.run_beats import RunBeats
from sessionary.producers.context.scope import CallReporter, P, T, added_marks
from sessionary.producers.delivery.emitter import EnvelopeFields
from sessionary.producers.durable.errors import RunNotFound, ToolCallUnresolved
from sessionary.producers.durable.flow import Do, Flow, run_flow, run_flow_async
from sessionary.producers.durable.large_values import RUN_RESULT, StoredText, load_value, store_value
from sessionary.producers.durable.recorder import Recorder
from sessionary.producers.durable.resume_plan import ResumePlan
from sessionary.producers.durable.run_resume import KnownRun, read_run, resume_run
from sessionary.producers.durable.run_steps import RunSteps
from sessionary.producers.errors import Invalid
from sessionary.producers.ports import Json
from sessionary.producers.process.json_text import to_json_text
from sessionary.schemas.events import (
    Payload,
    PlanRecorded,
    PlanReplaced,
    ProgressReported,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunRunning,
    RunStarted,
)
from sessionary.schemas.limits import LIMIT_MAX
from sessionary.schemas.types import RunMode, SessionLimits

_DURATION_RULES = 2
StepLimit = int | Literal["model"]
"""How long an attempt at a step may take, in ms; `model`: the session's limit for models."""


class RunStart(NamedTuple):
    """How a run begins: its id, its first event, and the fields of all of its events.

    `started` is None for a run that has begun before; one that `may_resume` is resumed if it has.
    """

    run_id: str
    started: RunStarted | None
    fields: EnvelopeFields
    may_resume: bool = False


def check_expected(mode: RunMode, expected_ms: int | None, limits: SessionLimits) -> None:
    """Raise `Invalid` if an attached run is expected to take longer than it may; ms."""
    limit_ms = limits.attached_run_ms
    if mode == "attached" and expected_ms is not None and expected_ms > limit_ms:
        raise Invalid(
            "invalid_value",
            f"the run is expected to take {expected_ms} ms, and an attached one may take {limit_ms} ms: use "
            "mode='detached'",
        )


class Run(ReportedBlock):
    """A run of a task, made by `Session.run`. Use it once, in `with` or `async with`.

    The events that the session sends in the block belong to the run. If the block raises, the run
    fails with that error; if the block is cancelled, so is the run; else it is completed. `async
    with` never blocks the event loop.

    A run that is resumed goes on: its steps that succeeded before are not run again. If it was
    complete, the block sends nothing, `result` is the stored one, and steps return their outputs.
    A block that `ToolCallUnresolved` leaves keeps the run open: the processor holds it.

    Attributes:
        result: What the run comes to, as JSON can hold it; it goes with the run's last event. If
            that has more than 256 KiB, the client's library keeps it.
        artifact_id: The artifact that holds the result, if it is one.
    """

    __slots__ = (
        "_beats",
        "_began",
        "_has_plan",
        "_is_detached",
        "_recorder",
        "_start",
        "_steps",
        "artifact_id",
        "result",
    )

    def __init__(self, reporter: CallReporter, recorder: Recorder, start: RunStart, beats: RunBeats) -> None:
        super().__init__(reporter)
        self.result: Json = None
        self.artifact_id: str | None = None
        self._recorder = recorder
        self._start = start
        self._beats = beats
        self._steps = RunSteps(recorder, start.run_id)
        self._began = False
        self._has_plan = start.started is not None and start.started.plan_json is not None
        self._is_detached = start.started is not None and start.started.mode == "detached"

    @property
    def run_id(self) -> str:
        """The run's id, unique in its session."""
        return self._start.run_id

    @property
    def is_complete(self) -> bool:
        """True if the run was complete when it was resumed: `result` is what it came to."""
        return self._steps.is_over

    @overload  # mypy does not see that an Awaitable of the first is one of the second
    def step(  # type: ignore[overload-overlap]
        self, name: str, function: Callable[..., T], /, *args: Any, limit_ms: StepLimit | None, **kwargs: Any
    ) -> T: ...

    @overload
    def step(
        self, name: str, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[T]: ...

    @overload
    def step(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run a step of the run once, and return its output; to be awaited if `function` is.

            facts = run.step("collect", collect_facts, "2026-10")
            text = run.step("write", write_report, facts)

        Its output is stored. If the run is resumed later, a step that succeeded is not run: its
        stored output is returned, as JSON gives it back. Any other one is run again, as a new
        attempt. Tools that are called in the step keep their keys.

        Args:
            name: The step's name, unique in the run.
            function: What is done; a function, or a coroutine function.
            args: What it is called with; with `kwargs` recorded as the step's input, if JSON can
                hold it.
            kwargs: The same, by name.
            limit_ms: How long this attempt may take, in ms; `function` does not get it. `model`:
                the session's `model_ms`. An attempt that takes longer fails alone: a coroutine is
                cancelled, and what a function returns too late does not count. So does a call of
                `Session.llm` in a step that takes longer than `model_ms`.

        Returns:
            The output of `function`, once the broker has it.

        Raises:
            Invalid: JSON cannot hold the output, or the name is too long.
            ResultTooLarge: The output fits into no event, and the client has no library of
                artifacts (`SessionClient(artifacts=...)`), which keeps outputs above 256 KiB.
            Unavailable: The output is not recorded, or the stored one cannot be read now.
            RunOver: The run was complete when it was resumed, and had no such step.
            ModelTimeout: It took longer than `limit_ms`, or a call of a model than its share.

        Otherwise raises what `function` raises, and as `Session.emit` does.
        """
        import inspect  # takes long to load

        limit_ms = self._checked_limit(kwargs.pop("limit_ms", None))
        given = {**({"args": list(args)} if args else {}), **({"kwargs": kwargs} if kwargs else {})}
        flow = self._steps.step(name, lambda: function(*args, **kwargs), given, limit_ms)
        pause = self._recorder.waits.pause
        if inspect.iscoroutinefunction(function):
            return run_flow_async(flow, pause)
        return run_flow(flow, pause)

    def _checked_limit(self, limit_ms: StepLimit | None) -> int | None:
        if limit_ms == "model":
            return self._recorder.limits().model_ms
        if limit_ms is not None and not 1 <= limit_ms <= LIMIT_MAX:
            raise Invalid("invalid_value", f"limit_ms is {limit_ms}: use at least 1, or 'model'")
        return limit_ms

    def resume_plan(self) -> ResumePlan:
        """Return what resuming this run would do. Sends nothing; blocks while it asks.

        Raises `RunNotFound`, and as `Session.sync` does.
        """
        return self._read_known().plan

    def report_progress(self, progress: float | None = None, total: float = 1.0, message: str | None = None) -> str:
        """Say that the run is at work, and that `progress` of `total` is done. A sign of life, too.

            for epoch in range(epochs):
                run.report_progress(epoch + 1, epochs, f"Step {epoch + 1}/{epochs}")

        Returns the last event's id. Raises `Invalid` unless 0 ≤ progress ≤ total, and as
        `Session.emit` does.
        """
        if progress is None:
            return self._send(RunRunning())
        if not 0 <= progress <= total or not total:
            raise Invalid("invalid_value", f"progress is {progress} of {total}: it must be from 0 to the total")
        self._send(RunRunning(progress / total))
        return self._send(ProgressReported(float(progress), float(total), message))

    def record_plan(self, plan: Json, reason: str | None = None) -> str:
        """Record the run's plan; a later one replaces it. Returns the event's id.

        `reason`: why the plan is another one. Raises as `Session.emit` does.
        """
        plan_json = to_json_text(plan, "plan")
        event_id = self._send(PlanReplaced(plan_json, reason or "") if self._has_plan else PlanRecorded(plan_json))
        self._has_plan = True
        return event_id

    def _inner_marks(self) -> EnvelopeFields:
        return EnvelopeFields(run_id=self.run_id, actor=self._start.fields.actor if self._start.may_resume else None)

    def __enter__(self) -> Self:
        if not self._start.may_resume:
            return super().__enter__()
        run_flow(self._resume(), self._recorder.waits.pause)
        self._enter_marks()
        return self

    async def __aenter__(self) -> Self:
        if not self._start.may_resume:
            return await super().__aenter__()
        await run_flow_async(self._resume(), self._recorder.waits.pause)
        self._enter_marks()
        return self

    def _enter_marks(self) -> None:
        self._marks = added_marks(self._reporter.session_id, self._inner_marks(), self._steps.place())
        self._marks.__enter__()

    def _resume(self) -> Flow[None]:
        """Begin the run, or let it go on if it has begun."""
        try:
            known = yield Do(self._read_known)
        except RunNotFound:
            if self._start.started is None:
                raise
            yield Do(self._report_start)
            return
        known = yield from resume_run(self._recorder, known, self._start.fields)
        self._adopt(known)
        if self.is_complete:
            self.result = yield Do(lambda: load_value(self._recorder, known.run.result_json))
        else:
            yield Do(self._begin)

    def _read_known(self) -> KnownRun:
        known = read_run(self._recorder, self.run_id)
        if known is None:
            raise RunNotFound(self.run_id)
        return known

    def _adopt(self, known: KnownRun) -> None:
        self._steps.adopt(known.steps, known.calls)
        self._has_plan = known.run.plan_json is not None
        self._is_detached = known.run.mode == "detached"
        if known.run.state == "completed":
            self._steps.is_over = True
            self.artifact_id = known.run.artifact_id

    def _send(self, payload: Payload) -> str:
        return self._reporter.send_event(payload, self._start.fields)

    def _report_start(self) -> None:
        assert self._start.started is not None
        self._send(self._start.started)
        self._begin()

    def _begin(self) -> None:
        self._began = True
        self._send(RunRunning())
        self._beats.start(self.run_id, is_attached=not self._is_detached)

    def _report_end(self, error: BaseException | None) -> None:
        self._beats.stop()
        if isinstance(error, ToolCallUnresolved):
            return  # the processor holds the run until the call is resolved
        # The processor accepts the end of an attached run in state Active only.
        if self._began and (self._is_detached or self._reporter.is_active()):
            self._send(self._end_event(error))

    def _end_event(self, error: BaseException | None) -> Payload:
        if error is None:
            stored = self._stored_result()
            # Judges by rules 1 do not know events that say how long a run took.
            took_ms = round(self._beats.elapsed_s * 1_000) if self._recorder.rules() >= _DURATION_RULES else None
            return RunCompleted(stored.text, self.artifact_id or stored.artifact_id, took_ms)
        # CancelledError of asyncio too: of what is no Exception, only SystemExit is a failure.
        if not isinstance(error, Exception | SystemExit):
            return RunCancelled(error_message(error))
        return RunFailed(to_error_info(error))

    def _stored_result(self) -> StoredText:
        try:
            if self.result is None:
                return StoredText(None)
            what = "the run's result"
            return store_value(self._recorder, self.result, what, RUN_RESULT, self._start.fields)
        except Invalid as error:
            self._send(RunFailed(to_error_info(error)))
            raise


__all__ = ["Run", "RunStart", "StepLimit", "check_expected"]
