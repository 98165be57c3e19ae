"""One run of a task as events: its start, its steps, its progress, and how it ended.

It is one module because the admission of a run, its resumption and its block share one state.
"""

import json
import uuid
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, Self, TypeVar, overload

from sessionary.producers.context.callables import kind_of
from sessionary.producers.context.error_info import ending_of, error_message, to_error_info
from sessionary.producers.context.reported_block import ReportedBlock, call_off_loop
from sessionary.producers.context.run_beats import RunBeats
from sessionary.producers.context.scope import CallReporter, P, T, added_metadata
from sessionary.producers.delivery.emitter import EnvelopeFields
from sessionary.producers.durable.checkpoints import find_in_run
from sessionary.producers.durable.errors import QuotaExceeded, RunNotFound, RunOver, ToolCallUnresolved
from sessionary.producers.durable.flow import Call, Do, Flow, Wait, run_flow, run_flow_async
from sessionary.producers.durable.large_values import RUN_RESULT, StoredText, load_value, store_value
from sessionary.producers.durable.recorder import Judged, Recorder, wait_recorded
from sessionary.producers.durable.resume_plan import ResumePlan
from sessionary.producers.durable.run_items import ListSteps, RunItems
from sessionary.producers.durable.run_resume import KnownRun, read_run, resume_run
from sessionary.producers.durable.run_steps import RunSteps
from sessionary.producers.errors import Invalid, Rejected, Unavailable
from sessionary.producers.ports import Json
from sessionary.producers.process.safe_text import to_json_text
from sessionary.producers.run_ports import FINISHED_STATES, CheckpointView, RunView
from sessionary.producers.verdicts.begun_work import BegunWork
from sessionary.producers.verdicts.local_checks import check_progress
from sessionary.schemas.events import (
    CheckpointSaved,
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
from sessionary.schemas.limits import LIMIT_MAX, inactivity_budget_ms
from sessionary.schemas.types import Checkpoint, CheckpointKind, RunMode, SessionLimits

# A run that asks for its tenant's quota, and waits until it is admitted.


LIMIT: Final = "concurrent_runs"
_REASON: Final = "quota_exceeded"
_PAUSE_S, _PAUSE_S_MAX = 0.05, 1.0


def begin_admitted(
    recorder: Recorder, run_id: str, started: RunStarted, fields: EnvelopeFields, wait_s: float
) -> Flow[float]:
    """Begin a run, and wait until its tenant's quota admits it.

    Returns when it was seen to be admitted, on the clock of the recorder's waits.

    Raises:
        QuotaExceeded: The run was rejected, or waited for `wait_s`; then it is cancelled.
        RunOver: The run was cancelled meanwhile, or failed.
        Rejected: The processor rejects its first event.
    """
    asked_s = recorder.waits.now_s()
    judged = yield Do(partial(_ask, recorder, run_id, started, fields))
    if judged.rejection is not None:
        if judged.rejection != _REASON:
            raise Rejected("run_started", judged.rejection)
        recorder.keep_rejection(judged.event_id, judged.rejection)
        raise QuotaExceeded(run_id, LIMIT, recorder.key.tenant_id)
    if judged.record is None:
        return asked_s
    return (yield from wait_admitted(recorder, run_id, fields, wait_s, judged.event_id))


def _ask(recorder: Recorder, run_id: str, started: RunStarted, fields: EnvelopeFields) -> Judged:
    """Begin a run, and return it as judged. No record and no rejection: there are no quotas yet."""
    sent = recorder.send(started, fields)
    place = wait_recorded(sent, sent.event_type, recorder.timeout_s)
    run = recorder.fetch_run(run_id, place)
    if run is not None and (run.verdict is None or run.verdict.applied):
        return Judged(run, sent.event_id, None)
    session = recorder.control.fetch_session(recorder.key.session_id, place, recorder.timeout_s)
    verdict = session.verdict if run is None or run.verdict is None or not run.verdict.kept else run.verdict
    if verdict is not None and verdict.reason is not None:
        return Judged(run, sent.event_id, verdict.reason)
    if run is None and session.quotas:
        return Judged(None, sent.event_id, _REASON)  # it was there, and is gone
    return Judged(run, sent.event_id, None)


def wait_admitted(
    recorder: Recorder, run_id: str, fields: EnvelopeFields, wait_s: float, event_id: str | None = None
) -> Flow[float]:
    """Wait until a run that asked is admitted; cancel it if that is given up.

    `event_id`: of the event that asked, the rejection of which is reported here. Returns and raises
    as `begin_admitted`.
    """
    tenant_id = recorder.key.tenant_id
    try:
        admitted_s = yield from _poll_admission(recorder, run_id, wait_s)
    except QuotaExceeded:
        if event_id is not None:
            recorder.keep_rejection(event_id, _REASON)
        raise
    except RunOver:
        raise
    except BaseException:
        yield Do(partial(_cancel, recorder, fields, "its client stopped waiting for the quota"))
        raise
    if admitted_s is None:
        yield Do(partial(_cancel, recorder, fields, f"it waited {wait_s:g} s for the quota"))
        raise QuotaExceeded(run_id, LIMIT, tenant_id, waited_s=wait_s)
    return admitted_s


def _poll_admission(recorder: Recorder, run_id: str, wait_s: float) -> Flow[float | None]:
    """Return when a run was seen to be admitted; None after `wait_s`."""
    waits, pause_s = recorder.waits, _PAUSE_S
    deadline_s = waits.now_s() + wait_s
    while True:
        asked_s = waits.now_s()
        try:
            run: RunView | None = yield Do(partial(recorder.fetch_run, run_id))
        except Unavailable:
            if waits.now_s() >= deadline_s:
                return None
        else:
            if run is None or (run.state in FINISHED_STATES and run.reason_code == _REASON):
                raise QuotaExceeded(run_id, LIMIT, recorder.key.tenant_id)
            if run.state in FINISHED_STATES:
                raise RunOver(run_id, run.state, run.error)
            if run.state != "queued":
                return asked_s
        left_s = deadline_s - waits.now_s()
        if left_s <= 0:
            return None
        yield Wait(min(pause_s, left_s))
        pause_s = min(1.5 * pause_s, _PAUSE_S_MAX)


def _cancel(recorder: Recorder, fields: EnvelopeFields, reason: str) -> None:
    recorder.send(RunCancelled(reason), fields)


I = TypeVar("I")  # noqa: E741 - an item
StepLimit = int | Literal["model"]
"""How long an attempt at a step may take, in ms; `model`: the session's limit for models."""


class RunStart(NamedTuple):
    """The start of a run: its id, its first event, and the fields of all of its events.

    `started` is None for a run that has begun before. With `may_resume`, such a run is resumed. The
    run waits for its tenant's quota for `quota_wait_s` at most, and goes on from `from_checkpoint`.
    """

    run_id: str
    started: RunStarted | None
    fields: EnvelopeFields
    may_resume: bool = False
    quota_wait_s: float = 0.0
    from_checkpoint: str | None = None


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
    fails with that error. If it is cancelled, as by Ctrl-C, so is the run. Otherwise the run is
    completed, also by `sys.exit(0)` and the reader of a stream. `async with` never blocks the event
    loop.

    A resumed run does not repeat the steps that succeeded before. If the run was complete, the
    block sends nothing, `result` is the stored one, and steps return their stored outputs. A block
    that `ToolCallUnresolved` leaves keeps the run open: the processor holds it.

    The verbs of a run take no metadata. Their events have what `Session.metadata` and the current
    span give to all events of the block, and the run's id; `report_progress`, `record_plan` and
    `checkpoint` also have the metadata that `Session.run` was given.

    Attributes:
        result: The run's result, as JSON can hold it; sent with the run's last event. A result of
            more than 256 KiB is kept by the client's library.
        artifact_id: The artifact that holds the result, if there is one.
    """

    __slots__ = (
        "_beats",
        "_began",
        "_is_left",
        "_plan_json",
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
        self._steps = RunSteps(recorder, start.run_id, self._catch_up)
        self._steps.is_detached = start.started is not None and start.started.mode == "detached"
        self._began = False
        self._is_left = False  # The block has no place in the session's count any more
        self._plan_json = None if start.started is None else start.started.plan_json

    def __repr__(self) -> str:
        started = self._start.started
        return f"<Run {self.run_id}{'' if started is None else f' of {started.task_type}'}>"

    @property
    def run_id(self) -> str:
        """The run's id, unique in its session."""
        return self._start.run_id

    @property
    def is_complete(self) -> bool:
        """True if the run was complete when it was resumed: `result` has its result."""
        return self._steps.is_over

    @overload  # mypy does not see that an Awaitable of the first is one of the second
    def step(  # type: ignore[overload-overlap]
        self,
        name: str,
        function: Callable[..., T],
        /,
        *args: Any,
        limit_ms: StepLimit | None,
        key: str | None = None,
        **kwargs: Any,
    ) -> T: ...

    @overload
    def step(  # type: ignore[overload-overlap]
        self, name: str, function: Callable[..., T], /, *args: Any, key: str | None, **kwargs: Any
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

        The output is stored. If the run is resumed later, a step that succeeded is not run again:
        its stored output is returned, as JSON gives it back. Any other step is run again, as a new
        attempt. Tools that are called in the step keep their keys.

        A name that was used before is the next step of that name, recorded as `collect #2`; a step
        within another one as `collect/fetch`, and one in the loop over a list as `items 3/fetch`. A
        resumed run takes them in the same order, and
        compares their arguments with the record. A step that failed is tried again under its name.

        Args:
            name: The step's name.
            function: The work of the step; a function, or a coroutine function.
            args: The arguments of `function`; recorded with `kwargs` as the step's input, which is
                `{}` without any. What JSON cannot hold is kept as `{"text": ..., "type": ...}`.
            kwargs: The arguments by name.
            key: Tells the step apart from others of its name, which may be open at the same time;
                `function` does not get it. Recorded as `collect [key]`. A step of the same name and
                key that succeeded is not run again.
            limit_ms: How long this attempt may take, in ms; `function` does not get it. `model`:
                the session's `model_ms`. An attempt that takes longer fails alone: a coroutine is
                cancelled, and a function's late result does not count.

        Returns:
            The output of `function`, once the broker has it.

        Raises:
            BoundReached: The run has as many steps, calls and artifacts as it may have; `function`
                was not called.
            Invalid: JSON cannot hold the output, or the name is too long; a step of this name and
                key is open; or it was done before with other arguments, which are in the error.
            ResultTooLarge: The output fits into no event, and the client has no library of
                artifacts (`SessionClient(artifacts=...)`), which keeps outputs above 256 KiB.
            Unavailable: The output is not recorded, or the stored one cannot be read now.
            RunOver: The run was complete when it was resumed, and had no such step.
            ModelTimeout: The attempt took longer than `limit_ms`, or a call of a model longer than
                the setting `model_call_limit_s`.

        Also raises the exceptions of `function`, and as `Session.emit` does.
        """
        limit_ms, key = self._checked_limit(kwargs.pop("limit_ms", None)), kwargs.pop("key", None)
        given = {**({"args": list(args)} if args else {}), **({"kwargs": kwargs} if kwargs else {})}
        flow = self._steps.step(name, lambda: function(*args, **kwargs), given, limit_ms, key)
        pause = self._recorder.waits.pause
        if kind_of(function) == "coroutine":
            return run_flow_async(flow, pause)
        return run_flow(flow, pause)

    def _checked_limit(self, limit_ms: StepLimit | None) -> int | None:
        if limit_ms == "model":
            return self._recorder.limits().model_ms
        if limit_ms is not None and not 1 <= limit_ms <= LIMIT_MAX:
            raise Invalid("invalid_value", f"limit_ms is {limit_ms}: use at least 1, or 'model'")
        return limit_ms

    def items(
        self,
        items: "Iterable[I] | AsyncIterable[I]",
        *,
        every: int = 5,
        name: str = "items",
        item_id: Callable[[I], str] | None = None,
    ) -> RunItems[I]:
        """Return the items of a list that are still to be done, for `for` or `async for`.

            for page in run.items(pages, name="parse", item_id=lambda page: page.id):
                parse(page)

        A checkpoint is saved after each `every` items, and after the last one. If the run is
        resumed, the list continues after the last checkpoint. Items after that checkpoint are done
        again, so the work on an item must be safe to repeat. The list is a step of the run, so it
        is not begun again once all items are done. Work through one list at a time: a run remembers
        one place.

        Results of items that are appended to `results` are saved with each checkpoint, and a
        resumed list has them again, so that its `results` are those of an uninterrupted one:

            analyses = run.items(papers)
            for paper in analyses:
                analyses.results.append(analyse(paper))
            run.result = analyses.results

        Args:
            items: The same items in the same order on each attempt.
            every: Items between two checkpoints.
            name: The list's name, unique in the run.
            item_id: Names an item in checkpoints. Default: the item, if it is a text or a number.

        Iterating raises:
            Invalid: The list was worked through in this block, or it begins within the loop over
                another one, or it differs from the list of the last checkpoint: it is shorter, or
                has another item there.
            Unavailable: A checkpoint is not recorded.
            RunOver: The run was complete when it was resumed, and had no such list.

        Otherwise iterating raises as `Session.emit` does.
        """
        steps = ListSteps(self._steps.begin_list, self._steps.finish_list)
        return RunItems(self._steps.progress, steps, items, name, every, item_id)

    @property
    def last_checkpoint(self) -> Checkpoint | None:
        """The last checkpoint as the run was resumed, without `data`; None if it had none."""
        return self._steps.progress.last

    def checkpoint(
        self,
        kind: CheckpointKind | None,
        operation: str,
        *,
        stage: str | None = None,
        processed_count: int | None = None,
        last_item_id: str | None = None,
        bytes_written: int | None = None,
        data: Json = None,
    ) -> str:
        """Record how far the run got, so that it can resume there. Returns the checkpoint's id.

        `items` and tools with an effect save checkpoints by themselves. Within the loop over
        `items`, one without a `processed_count` and without data has the list's place, and names
        its operation as the stage: the run's record has one checkpoint.

        Args:
            kind: The point that the run has reached, if it is one of the usual points: `plan_made`,
                `sources_fetched`, `tool_calls_done`, `draft_made`, `published`.
            operation: The run's current operation.
            stage: The operation's stage.
            processed_count: Items done.
            last_item_id: Id of the last item done.
            bytes_written: Bytes written, of an `ArtifactStream` for example.
            data: Further data, as JSON can hold it; `Session.load_checkpoint` returns them in the
                run's block. The last 16 checkpoints with data of each operation are kept.

        Raises as `Session.emit` does.
        """
        checkpoint_id = str(uuid.uuid4())
        data_json = None if data is None else to_json_text(data, "data")
        parts = (stage, processed_count, last_item_id, bytes_written, data_json, kind)
        self._send(self._steps.progress.keep_place(CheckpointSaved(checkpoint_id, operation, *parts)))
        return checkpoint_id

    def resume_plan(self) -> ResumePlan:
        """Return the effect of resuming this run. Sends nothing; blocks while it asks.

        Raises `RunNotFound`, and as `Session.sync` does.
        """
        return self._read_known().plan

    def report_progress(self, progress: float | None = None, total: float = 1.0, message: str | None = None) -> str:
        """Report that the run is at work, and `progress` of `total` is done. Also a sign of life.

            for epoch in range(epochs):
                run.report_progress(epoch + 1, epochs, f"Step {epoch + 1}/{epochs}")

        Returns the last event's id. Raises `Invalid` unless 0 ≤ progress ≤ total, and as
        `Session.emit` does.
        """
        if progress is None:
            return self._send(RunRunning())
        check_progress(progress, total)
        self._send(RunRunning(progress / total))
        return self._send(ProgressReported(float(progress), float(total), message))

    def record_plan(self, plan: Json, reason: str | None = None) -> str:
        """Record the run's plan; a later one replaces it. Returns the event's id.

        `reason`: why the plan has changed. Raises as `Session.emit` does.
        """
        plan_json = to_json_text(plan, "plan")
        event_id = self._send(self._plan_event(plan_json, reason))
        self._plan_json = plan_json
        return event_id

    def plan(
        self, make_plan: Callable[..., Any], /, *args: Any, failed: str | BaseException | None = None, **kwargs: Any
    ) -> Any:
        """Return the run's recorded plan; make and record it if there is none, or if it failed.

            plan = run.plan(ask_for_plan, question)
            try:
                report = carry_out(plan)
            except PlanError as error:
                plan = run.plan(ask_for_plan, question, failed=error)

        To be awaited if `make_plan` is. A resumed run gets the plan that was recorded last, so it
        asks no model again. Let a plan's work be steps of the run: those that succeeded are not
        repeated. Nothing is carried out before the broker has the plan.

        Args:
            make_plan: Makes the plan, as JSON can hold it; a function, or a coroutine function.
            args: The arguments of `make_plan`.
            failed: Why the recorded plan cannot be used any more, or its error. Then `make_plan`
                is called once, and its plan replaces the recorded one, with this as the reason.
            kwargs: The arguments by name.

        Returns:
            The plan, as JSON gives it back.

        Raises:
            Invalid: JSON cannot hold the plan.
            Unavailable: The plan is not recorded.
            RunOver: The run was complete when it was resumed, and a plan would have to be made.

        Also raises the exceptions of `make_plan`, and as `Session.emit` does.
        """
        flow = self._find_plan(lambda: make_plan(*args, **kwargs), failed)
        pause = self._recorder.waits.pause
        if kind_of(make_plan) == "coroutine":
            return run_flow_async(flow, pause)
        return run_flow(flow, pause)

    def _find_plan(self, make_plan: Callable[[], Any], failed: str | BaseException | None) -> Flow[Json]:
        if self._plan_json is None or failed is not None:
            if self.is_complete:
                raise RunOver(self.run_id, "completed")
            plan_json = to_json_text((yield Call(make_plan)), "plan")
            reason = error_message(failed) if isinstance(failed, BaseException) else failed
            event = self._plan_event(plan_json, reason)
            yield Do(lambda: self._recorder.send_acknowledged(event, self._start.fields))
            self._plan_json = plan_json
        return json.loads(self._plan_json)

    def _plan_event(self, plan_json: str, reason: str | None) -> PlanRecorded | PlanReplaced:
        return PlanRecorded(plan_json) if self._plan_json is None else PlanReplaced(plan_json, reason or "")

    def _inner_metadata(self) -> EnvelopeFields:
        return EnvelopeFields(run_id=self.run_id, actor=self._start.fields.actor if self._start.may_resume else None)

    def __enter__(self) -> Self:
        try:
            if not self._start.may_resume and not self._recorder.quotas():
                return super().__enter__()
            run_flow(self._enter_judged(), self._recorder.waits.pause)
        except BaseException:
            self._leave_count()  # no `__exit__` follows
            raise
        self._enter_metadata()
        return self

    async def __aenter__(self) -> Self:
        try:
            if not self._start.may_resume and not self._recorder.quotas():
                return await super().__aenter__()
            await run_flow_async(self._enter_judged(), self._recorder.waits.pause)
        except BaseException:
            self._beats.stop()  # a thread may be about to begin: the run may be resumed, and does not beat
            call_off_loop(self._reporter, self._leave_count)
            raise
        self._enter_metadata()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        if error is None:
            try:
                run_flow(self._steps.until_answered(), self._recorder.waits.pause)  # another thread may ask
            except BaseException as failure:
                super().__exit__(type(failure), failure, None)
                raise
        return super().__exit__(kind, error, trace)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        if error is None:
            try:
                await run_flow_async(self._steps.until_answered(), self._recorder.waits.pause)
            except BaseException as failure:
                await super().__aexit__(type(failure), failure, None)
                raise
        return await super().__aexit__(kind, error, trace)

    def _enter_metadata(self) -> None:
        self._metadata = added_metadata(self._reporter.session_id, self._inner_metadata(), self._steps.place())
        self._metadata.__enter__()

    def continue_from(self, known: KnownRun) -> AbstractContextManager[None]:
        """Return a block in which the run continues; the worker of a task begins and ends it.

        Blocks while it asks for the run's artifacts. Raises as `RunReads` does.
        """
        self._adopt(known)
        self._count_known(known, self._read_artifact_ids(known))
        return added_metadata(self._reporter.session_id, self._inner_metadata(), self._steps.place())

    def _enter_judged(self) -> Flow[None]:
        """Resume the run if it has begun before, else begin it; both are judged first."""
        recorder, (run_id, started, fields, _, wait_s, from_checkpoint) = self._recorder, self._start
        known = yield from self._read_resumed()
        is_complete = known is not None and known.run.state == "completed"
        if not is_complete and (yield from self._steps.until_answered()):
            known = yield from self._read_resumed()  # the process that asked may have gone on
        if known is not None:
            # Before the run is resumed: if this fails, the run waits as before.
            artifact_ids = yield Do(partial(self._read_artifact_ids, known))
            goes_back_to: CheckpointView | None = None
            if from_checkpoint is not None:
                if is_complete:
                    raise RunOver(run_id, "completed")
                goes_back_to = yield Do(partial(find_in_run, recorder, run_id, from_checkpoint))
            known = yield from resume_run(recorder, known, fields)
            admitted_s = None
            if recorder.quotas() and known.run.state != "completed":
                admitted_s = yield from wait_admitted(recorder, run_id, fields, wait_s)
            self._adopt(known)
            if not self.is_complete:
                yield Do(partial(self._count_known, known, artifact_ids))
            if self.is_complete:
                self.result = yield Do(partial(load_value, recorder.artifacts, known.run.result_json))
            else:
                yield from self._ask_again_if_old(admitted_s)
                yield Do(self._begin)
                if goes_back_to is not None:
                    yield Do(partial(self._steps.progress.save_again, goes_back_to))
        elif started is None:
            raise RunNotFound(run_id)
        elif recorder.quotas():
            yield Do(self._enter_count)
            admitted_s = yield from begin_admitted(recorder, run_id, started, fields, wait_s)
            yield from self._ask_again_if_old(admitted_s)
            yield Do(self._begin)
        else:
            yield Do(self._report_start)

    def _read_resumed(self) -> Flow[KnownRun | None]:
        """Return the records of a run that may be resumed; None if there are none."""
        if not self._start.may_resume:
            return None
        known: KnownRun | None = yield Do(partial(read_run, self._recorder, self.run_id))
        if known is not None:
            self._steps.is_detached = known.run.mode == "detached"
        return known

    def _ask_again_if_old(self, admitted_s: float | None) -> Flow[None]:
        """Ask again for the run's slot of a quota if its limits may have freed it meanwhile."""
        recorder, limits = self._recorder, self._recorder.limits()
        silent_ms = inactivity_budget_ms(limits)
        if not self._steps.is_detached:
            silent_ms = min(silent_ms, limits.attached_run_ms)
        if admitted_s is not None and (recorder.waits.now_s() - admitted_s) * 1_000 >= silent_ms:
            yield from wait_admitted(recorder, self.run_id, self._start.fields, recorder.timeout_s)

    def _read_known(self) -> KnownRun:
        known = read_run(self._recorder, self.run_id)
        if known is None:
            raise RunNotFound(self.run_id)
        return known

    def _catch_up(self) -> Flow[None]:
        """Read the run again, and resume it if it was held meanwhile. Raises as its resumption."""
        yield from self._steps.until_answered()
        known = yield Do(self._read_known)
        known = yield from resume_run(self._recorder, known, self._start.fields)
        self._adopt(known)

    def _adopt(self, known: KnownRun) -> None:
        self._steps.is_detached = known.run.mode == "detached"
        self._steps.adopt(known.steps, known.calls, known.run.checkpoint)
        self._plan_json = known.run.plan_json
        if known.run.state == "completed":
            self._steps.is_over = True
            self.artifact_id = known.run.artifact_id

    def _read_artifact_ids(self, known: KnownRun) -> list[str]:
        """Return the ids of the artifacts of a run that is not complete."""
        if known.run.state == "completed":
            return []
        recorder = self._recorder
        artifacts = recorder.known.fetch_artifacts(recorder.key.session_id, self.run_id, None, recorder.timeout_s)
        return [artifact.artifact_id for artifact in artifacts]

    def _count_known(self, known: KnownRun, artifact_ids: list[str]) -> None:
        """Count what a resumed run has, so that it begins nothing for which there is no room."""
        names, keys = [step.name for step in known.steps], [call.idem_key for call in known.calls]
        self._change_count(lambda begun: begun.adopt_run(self.run_id, names, keys, artifact_ids))
        self._note_attached()

    def _enter_count(self) -> None:
        self._change_count(lambda begun: begun.enter_run(self.run_id))
        self._note_attached()

    def _note_attached(self) -> None:
        if not self._steps.is_detached:
            self._change_count(lambda begun: begun.attached_runs.add(self.run_id))

    def _change_count(self, change: Callable[[BegunWork], None]) -> None:
        """Change the session's counts, unless the block was left: a thread may have been late."""
        self._recorder.change_begun(lambda begun: None if self._is_left else change(begun))

    def _leave_count(self) -> None:
        self._is_left = True
        self._recorder.change_begun(lambda begun: begun.leave_run(self.run_id))

    def _send(self, payload: Payload) -> str:
        return self._reporter.send_event(payload, self._start.fields)

    def _report_start(self) -> None:
        assert self._start.started is not None
        self._enter_count()
        self._send(self._start.started)
        self._begin()

    def _begin(self) -> None:
        self._began = True
        self._send(RunRunning())
        self._beats.start(self.run_id, is_attached=not self._steps.is_detached)

    def _report_end(self, error: BaseException | None) -> None:
        self._beats.stop()
        try:
            self._send_end(error)
        finally:
            self._leave_count()

    def _send_end(self, error: BaseException | None) -> None:
        if _is_unresolved(error):
            return  # the processor holds the run until the call is resolved
        if error is not None and self._recorder.is_asking():
            return  # another process goes on with the answer
        # The processor accepts the end of an attached run in state Active only.
        is_accepted = self._steps.is_detached or self._reporter.is_active()
        if self._began and (is_accepted or self._recorder.is_asking()):  # which raises: the result would be lost
            self._send(self._end_event(error))

    def _end_event(self, error: BaseException | None) -> Payload:
        ending = ending_of(error)
        if error is None or ending == "done":
            stored = self._stored_result()
            took_ms = round(self._beats.elapsed_s * 1_000)
            return RunCompleted(stored.text, self.artifact_id or stored.artifact_id, took_ms)
        if ending == "cancelled":
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


def _is_unresolved(error: BaseException | None) -> bool:
    """Return whether a tool call of unknown outcome left the block, alone or with others."""
    if isinstance(error, BaseExceptionGroup):
        return any(map(_is_unresolved, error.exceptions))
    return isinstance(error, ToolCallUnresolved)
