"""One run of a task as events: its start, its progress, and how it ended."""

from typing import NamedTuple

from sessionary.producers.context.error_info import error_message, to_error_info
from sessionary.producers.context.reported_block import ReportedBlock
from sessionary.producers.context.scope import CallReporter
from sessionary.producers.delivery.emitter import EnvelopeFields
from sessionary.producers.errors import Invalid
from sessionary.producers.ports import Json
from sessionary.producers.process.json_text import to_json_text
from sessionary.schemas.events import (
    Payload,
    PlanRecorded,
    PlanReplaced,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunRunning,
    RunStarted,
)


class RunStart(NamedTuple):
    """How a run begins: its first event, the fields of all of its events, and its id."""

    run_id: str
    started: RunStarted
    fields: EnvelopeFields


class Run(ReportedBlock):
    """A run of a task, made by `Session.run`. Use it once, in `with` or `async with`.

    The events that the session sends in the block belong to the run. If the block raises, the run
    fails with that error; if the block is cancelled, so is the run; else it is completed. `async
    with` never blocks the event loop.

    Attributes:
        result: What the run comes to, as JSON can hold it; it goes with the run's last event.
        artifact_id: The artifact that holds the result, if it is one.
    """

    __slots__ = ("_began", "_has_plan", "_start", "artifact_id", "result")

    def __init__(self, reporter: CallReporter, start: RunStart) -> None:
        super().__init__(reporter)
        self.result: Json = None
        self.artifact_id: str | None = None
        self._start = start
        self._began = False
        self._has_plan = start.started.plan_json is not None

    @property
    def run_id(self) -> str:
        """The run's id, unique in its session."""
        return self._start.run_id

    def report_progress(self, progress: float | None = None) -> str:
        """Say that the run is at work, and how much of it is done: 0 to 1. Returns the event's id.

        Raises as `Session.emit` does.
        """
        return self._send(RunRunning(progress))

    def record_plan(self, plan: Json, reason: str | None = None) -> str:
        """Record the run's plan; a later one replaces it. Returns the event's id.

        `reason`: why the plan is another one. Raises as `Session.emit` does.
        """
        plan_json = to_json_text(plan, "plan")
        event_id = self._send(PlanReplaced(plan_json, reason or "") if self._has_plan else PlanRecorded(plan_json))
        self._has_plan = True
        return event_id

    def _inner_marks(self) -> EnvelopeFields:
        return EnvelopeFields(run_id=self.run_id)

    def _send(self, payload: Payload) -> str:
        return self._reporter.send_event(payload, self._start.fields)

    def _report_start(self) -> None:
        self._send(self._start.started)
        self._began = True
        self._send(RunRunning())

    def _report_end(self, error: BaseException | None) -> None:
        # The processor accepts the end of an attached run in state Active only.
        if self._began and (self._start.started.mode == "detached" or self._reporter.is_active()):
            self._send(self._end_event(error))

    def _end_event(self, error: BaseException | None) -> Payload:
        if error is None:
            return RunCompleted(self._result_json(), self.artifact_id)
        # CancelledError of asyncio too: of what is no Exception, only SystemExit is a failure.
        if not isinstance(error, Exception | SystemExit):
            return RunCancelled(error_message(error))
        return RunFailed(to_error_info(error))

    def _result_json(self) -> str | None:
        try:
            return None if self.result is None else to_json_text(self.result, "result")
        except Invalid as error:
            self._send(RunFailed(to_error_info(error)))
            raise


__all__ = ["Run", "RunStart"]
