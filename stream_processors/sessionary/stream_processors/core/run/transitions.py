"""The machine of runs as data: one value for each transition.

                    run_queued            run_started
                        │                      │
                        ▼                      ▼
                      queued ──────────────▶ started
                                               │
                                               ▼
                       paused ◀────────────▶ running ◀── failed (resumed in time)
                          │                    │
                          ▼                    ▼
                  failed, cancelled    completed, failed, cancelled

If the rules have quotas, a run that begins or is resumed after a failure waits as queued until its
tenant's quota admits it. A grant moves it to the state that the event asked for; a rejection leaves
no row (a resumed run is failed again).

A transition says from which states and by which event, under which guard, to which state. An event
of a run that is neither here nor in `ACCEPTED` leaves an open run in its state; a pair of an event
that is here and another state is rejected.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple, final

from sessionary.schemas.events import (
    CheckpointSaved,
    PlanRecorded,
    PlanReplaced,
    RunCompleted,
    RunFailed,
    RunQueued,
    RunRunning,
    RunStarted,
)
from sessionary.schemas.records import FinishedRun, RunState
from sessionary.schemas.types import Checkpoint, ErrorInfo, RunStateName
from sessionary.stream_processors.core.clock import format_seconds
from sessionary.stream_processors.core.judge import Objection
from sessionary.stream_processors.core.model import COMPLETIONS, WORK

RunRow = RunState | FinishedRun


@final
class RunMoment:
    """When an event is judged (ms of log time), and who asked for it, if the event says so.

    `resume_ms`: how long a failed run may be resumed, by the rules in force. `producer_id`: of the
    process that sent the event.
    """

    __slots__ = ("actor", "now_ms", "producer_id", "resume_ms")

    def __init__(self, now_ms: int, actor: str | None, resume_ms: int, producer_id: str) -> None:
        self.now_ms = now_ms
        self.actor = actor
        self.resume_ms = resume_ms
        self.producer_id = producer_id


class RunChange(NamedTuple):
    """The values that an event brings for its run; None leaves the present value."""

    reason_code: str | None = None
    progress: float | None = None
    error: ErrorInfo | None = None
    input_json: str | None = None
    plan_json: str | None = None
    result_json: str | None = None
    artifact_id: str | None = None
    checkpoint: Checkpoint | None = None
    holder: str | None = None


# The run (None: there is none yet), the payload, the moment.
RunGuard = Callable[[RunRow | None, Any, RunMoment], RunChange | Objection]

OPEN: Final[tuple[RunStateName, ...]] = ("queued", "started", "running", "paused")
AT_WORK: Final[tuple[RunStateName, ...]] = ("started", "running")
FINISHED: Final[frozenset[RunStateName]] = frozenset({"completed", "failed", "cancelled"})


QUOTA_REQUESTED: Final = "quota_requested"
QUOTA_GRANTED: Final = "quota_granted"
QUOTA_EXCEEDED: Final = "quota_exceeded"
# The state of a run that is admitted, by the event that asked; a run that was queued stays so.
STATES_ADMITTED: Final[Mapping[str, RunStateName]] = {"run_started": "started", "run_resumed": "running"}


class RunTransition(NamedTuple):
    """One transition of a run.

    A source of None is a run without a row; so is a target of None. A transition by `session`
    follows a change of the run's session; by `clock`, the run's own clock. A transition by `call`
    follows a call with a side effect whose outcome is unknown, or becomes known. A transition by
    `quota` waits for the tenant's quota, or follows its verdict.
    """

    id: str
    sources: tuple[RunStateName | None, ...]
    event_type: str
    target: RunStateName | None
    by: Literal["client", "session", "clock", "call", "quota"] = "client"
    guard: RunGuard = lambda run, payload, moment: RunChange()


def _queue(run: RunRow | None, payload: RunQueued, moment: RunMoment) -> RunChange | Objection:
    return _object_to_mode(run, payload) or RunChange("queued", input_json=payload.input_json)


def _start(run: RunRow | None, payload: RunStarted, moment: RunMoment) -> RunChange | Objection:
    if isinstance(run, RunState) and run.quota is not None and not run.quota.granted:
        return Objection("quota_exceeded", "the run waits until its tenant's quota admits it")
    # A run that was queued for others is a task: it belongs to the worker that starts it.
    holder = moment.producer_id if run is not None and payload.mode == "detached" else None
    return _object_to_mode(run, payload) or RunChange(
        "started", input_json=payload.input_json, plan_json=payload.plan_json, holder=holder
    )


def _object_to_mode(run: RunRow | None, payload: RunQueued | RunStarted) -> Objection | None:
    if payload.mode == "UNKNOWN":
        return Objection("invalid_value", "the mode of a run is attached or detached")
    if run is not None and payload.mode != run.mode:
        return Objection("invalid_value", f"the run was queued as {run.mode}, so it does not start as {payload.mode}")
    return None


def _work(run: RunRow | None, payload: RunRunning, moment: RunMoment) -> RunChange | Objection:
    progress = payload.progress
    if progress is not None and not 0 <= progress <= 1:
        return Objection("invalid_value", f"progress is {progress}; it must be from 0 to 1")
    return RunChange("running", progress=progress)


def _pause(run: RunRow | None, payload: object, moment: RunMoment) -> RunChange:
    return RunChange("paused")


def _resume(run: RunRow | None, payload: object, moment: RunMoment) -> RunChange | Objection:
    is_task = isinstance(run, RunState) and run.holder is not None
    return _object_to_calls(run) or RunChange("resumed", holder=moment.producer_id if is_task else None)


def _object_to_calls(run: RunRow | None) -> Objection | None:
    if run is None or run.unresolved_calls == 0:
        return None
    return Objection("call_unresolved", f"the outcome of {run.unresolved_calls} calls of the run is unknown")


def _complete(run: RunRow | None, payload: RunCompleted, moment: RunMoment) -> RunChange:
    return RunChange("completed", result_json=payload.result_json, artifact_id=payload.artifact_id)


def _fail(run: RunRow | None, payload: RunFailed, moment: RunMoment) -> RunChange | Objection:
    if payload.error.error_class == "UNKNOWN":
        return Objection("missing_error_class", "an error is retryable or fatal")
    return RunChange(payload.error.code, error=payload.error)


def _cancel(run: RunRow | None, payload: object, moment: RunMoment) -> RunChange:
    return RunChange("cancelled")


def _revive(run: RunRow | None, payload: object, moment: RunMoment) -> RunChange | Objection:
    assert run is not None
    if objection := _object_to_calls(run):
        return objection
    error = run.error
    if moment.actor is None and (error is None or error.error_class != "retryable"):
        return Objection("not_retryable", "the run's error is fatal, and the event names no actor")
    if moment.now_ms > run.entered_at + moment.resume_ms:
        limit = format_seconds(moment.resume_ms)
        return Objection("resume_expired", f"the run failed more than {limit} ago")
    return RunChange("resumed")


RUN_TRANSITIONS: tuple[RunTransition, ...] = (
    RunTransition("R01", (None,), "run_queued", "queued", guard=_queue),
    RunTransition("R02", (None,), "run_started", "started", guard=_start),
    RunTransition("R03", (None,), "run_rejected", None),
    RunTransition("R04", ("queued",), "run_started", "started", guard=_start),
    RunTransition("R05", AT_WORK, "run_running", "running", guard=_work),
    RunTransition("R06", AT_WORK, "run_paused", "paused", guard=_pause),
    RunTransition("R07", ("paused",), "run_resumed", "running", guard=_resume),
    RunTransition("R08", ("running",), "run_completed", "completed", guard=_complete),
    RunTransition("R09", ("running", "paused"), "run_failed", "failed", guard=_fail),
    RunTransition("R10", OPEN, "run_cancelled", "cancelled", guard=_cancel),
    RunTransition("R11", ("failed",), "run_resumed", "running", guard=_revive),
    RunTransition("R12", AT_WORK, "run_paused", "paused", by="session"),
    RunTransition("R13", OPEN, "run_failed", "failed", by="session"),
    RunTransition("R14", OPEN, "run_failed", "failed", by="clock"),
    RunTransition("R15", AT_WORK, "run_paused", "paused", by="call"),
    RunTransition("R16", ("paused",), "run_resumed", "running", by="call"),
    RunTransition("R17", (None,), "run_queued", "queued", by="quota"),
    RunTransition("R18", ("failed",), "run_queued", "queued", by="quota"),
    RunTransition("R19", ("queued",), "run_queued", "queued", by="quota"),
    RunTransition("R20", ("queued",), "run_started", "started", by="quota"),
    RunTransition("R21", ("queued",), "run_resumed", "running", by="quota"),
    RunTransition("R22", ("queued",), "run_rejected", None, by="quota"),
    RunTransition("R23", ("queued",), "run_rejected", "failed", by="quota"),
)


def _record_plan(run: RunRow | None, payload: PlanRecorded, moment: RunMoment) -> RunChange | Objection:
    if run is not None and run.plan_json is not None:
        return Objection("illegal_transition", "plan_recorded is not possible: the run has a plan")
    return RunChange(plan_json=payload.plan_json)


def _replace_plan(run: RunRow | None, payload: PlanReplaced, moment: RunMoment) -> RunChange | Objection:
    if run is None or run.plan_json is None:
        return Objection("illegal_transition", "plan_replaced is not possible: the run has no plan")
    return RunChange(plan_json=payload.plan_json)


def _keep_checkpoint(run: RunRow | None, payload: CheckpointSaved, moment: RunMoment) -> RunChange:
    saved = Checkpoint(
        payload.checkpoint_id,
        payload.operation,
        moment.now_ms,
        payload.kind,
        payload.stage,
        payload.processed_count,
        payload.last_item_id,
        payload.bytes_written,
    )
    return RunChange(checkpoint=saved)


_PLANS: Final[Mapping[str, RunGuard]] = {"plan_recorded": _record_plan, "plan_replaced": _replace_plan}
# Events that leave an open run in its state but change its row; other work changes nothing.
ACCEPTED: Final[Mapping[str, RunGuard]] = {**_PLANS, "checkpoint_saved": _keep_checkpoint}
BY_EVENT: Final[Mapping[tuple[RunStateName | None, str], RunTransition]] = {
    (source, transition.event_type): transition
    for transition in RUN_TRANSITIONS
    if transition.by == "client"
    for source in transition.sources
}
# Those that need a run.
RUN_EVENTS: Final = frozenset((*(event_type for _, event_type in BY_EVENT), *_PLANS))
# Those of a task that any process may send, not only the worker that has it: they cancel it, hand
# it over, or report the outcome of what was begun before.
OF_ANY_WORKER: Final = COMPLETIONS | {
    *("run_cancelled", "run_paused", "run_resumed"),
    *("artifact_soft_deleted", "artifact_purged"),
}
# Events that are judged against the run that they name.
EVENTS_OF_RUNS: Final = (WORK | COMPLETIONS | {"checkpoint_saved"}) - {"session_activity"}
