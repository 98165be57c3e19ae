"""Steps of runs: their transitions, the judgement of their events, and their rows.


                step_started
                     │
                     ▼
    failed ────▶ running ────▶ succeeded          skipped (before any attempt)
       ▲             │
       └─────────────┘ (or by its limit)

Attempts are numbered from 1. An attempt that was interrupted is followed by the next one. An
attempt with a limit fails by its clock. Skipping a step that succeeded or was skipped changes
nothing: so a resumed run shows why it does nothing.

A row holds the last attempt at a step, and vanishes with its run. Begin with `STEP_TRANSITIONS`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from sessionary.schemas.codec import Event, encode_record, record_headers
from sessionary.schemas.events import StepFailed, StepSkipped, StepStarted, StepSucceeded
from sessionary.schemas.ids import SessionKey, step_key
from sessionary.schemas.limits import LIMIT_MAX, MODEL_LIMIT
from sessionary.schemas.records import AuditRecord, SessionState, StepContent, StepState, TimedStep
from sessionary.schemas.types import ClockRepair, ErrorInfo, StepStateName
from sessionary.stream_processors.core.clock import NEVER_MS, format_seconds
from sessionary.stream_processors.core.family import (
    ChildFamily,
    Judged,
    SessionArrival,
    StoredRows,
    content_parts,
    object_to_row_size,
    repair_limit,
    session_facts,
)
from sessionary.stream_processors.core.judge import Arrival, Objection
from sessionary.stream_processors.core.model import Decision, OutputCause, RowLookup
from sessionary.stream_processors.core.rows import RowKind
from sessionary.stream_processors.core.run.transitions import AT_WORK, RunRow
from sessionary.stream_processors.core.trail import at_due_time, next_number, session_record

StepRow = StepState | TimedStep
StepPayload = StepStarted | StepSucceeded | StepFailed | StepSkipped
STEP_PAYLOADS: Final = (StepStarted, StepSucceeded, StepFailed, StepSkipped)  # `isinstance` is faster than of the union
_CONTENT: Final = content_parts(StepContent)
# From the step, the payload and the one who asked to the objection, or None.
StepGuard = Callable[[StepRow | None, Any, str | None], Objection | None]


class StepTransition(NamedTuple):
    """One transition of a step. A source of None is a step without a row.

    A transition by `clock` is made by the step's own clock.
    """

    id: str
    source: StepStateName | None
    event_type: str
    target: StepStateName
    guard: StepGuard = lambda step, payload, actor: None
    by: Literal["client", "clock"] = "client"


def _retry(step: StepRow | None, payload: object, actor: str | None) -> Objection | None:
    error = step.error if isinstance(step, StepState) else None
    if actor is None and (error is None or error.error_class != "retryable"):
        return Objection("not_retryable", "the step's error is fatal, and the event names no actor")
    return None


def _succeed(step: StepRow | None, payload: StepSucceeded, actor: str | None) -> Objection | None:
    return Objection("invalid_value", "a step that succeeds has an output") if payload.output_json is None else None


def _fail(step: StepRow | None, payload: StepFailed, actor: str | None) -> Objection | None:
    if payload.error.error_class == "UNKNOWN":
        return Objection("missing_error_class", "an error is retryable or fatal")
    return None


STEP_TRANSITIONS: tuple[StepTransition, ...] = (
    StepTransition("P01", None, "step_started", "running"),
    StepTransition("P02", "failed", "step_started", "running", _retry),
    StepTransition("P03", "running", "step_started", "running"),
    StepTransition("P04", "running", "step_succeeded", "succeeded", _succeed),
    StepTransition("P05", "running", "step_failed", "failed", _fail),
    StepTransition("P06", None, "step_skipped", "skipped"),
    StepTransition("P07", "running", "step_failed", "failed", by="clock"),
)

# Events that are possible in these states, and change nothing.
REPEATED: Final[frozenset[tuple[StepStateName | None, str]]] = frozenset(
    {("succeeded", "step_skipped"), ("skipped", "step_skipped")}
)
BY_EVENT: Final[Mapping[tuple[StepStateName | None, str], StepTransition]] = {
    (transition.source, transition.event_type): transition
    for transition in STEP_TRANSITIONS
    if transition.by == "client"
}


def state_of(step: StepRow) -> StepStateName:
    """Return the state of a step."""
    return step.state if isinstance(step, StepState) else "running"


def end_attempt(
    step: StepRow,
    state: StepStateName,
    at_ms: int,
    *,
    output_json: str | None = None,
    error: ErrorInfo | None = None,
) -> StepState:
    """Return a running step after the end of its attempt (ms of log time)."""
    return StepState(
        tenant_id=step.tenant_id,
        session_id=step.session_id,
        run_id=step.run_id,
        name=step.name,
        step_id=step.step_id,
        state=state,
        attempt=step.attempt,
        started_at=step.started_at,
        entered_at=at_ms,
        error=error,
        input_json=step.input_json,
        output_json=output_json,
    )


def judge_step(session: SessionState, event: Event, arrival: SessionArrival) -> Judged | Objection:
    """Judge an event against `arrival.child`, a step of `arrival.run`.

    run's state ─▶ pair of state and event ─▶ attempt ─▶ limit ─▶ guard ─▶ size
    """
    envelope, payload, step, run = event.envelope, event.payload, arrival.child, arrival.run
    assert isinstance(payload, STEP_PAYLOADS)
    assert run is not None
    assert step is None or isinstance(step, (StepState, TimedStep))
    name, state = envelope.event_type, None if step is None else state_of(step)
    if isinstance(payload, StepStarted) and run.state not in AT_WORK:
        return Objection("illegal_transition", f"{name} is not possible for a run in {run.state}")
    transition = BY_EVENT.get((state, name))
    if transition is None:
        if (state, name) in REPEATED:
            return Judged(None)
        found = f"in {state}" if state else "that did not begin"
        return Objection("illegal_transition", f"{name} is not possible for a step {found}")
    objection = _object_to_values(step, payload) or transition.guard(step, payload, envelope.actor)
    if objection is not None:
        return objection
    after = _after_event(run, step, event, payload, arrival)
    return object_to_row_size("step", arrival.child_key or b"", after, arrival) or Judged(after)


def _object_to_values(step: StepRow | None, payload: StepPayload) -> Objection | None:
    if isinstance(payload, StepSkipped):
        return None
    last = 0 if step is None else step.attempt
    due = last + 1 if isinstance(payload, StepStarted) else last
    if payload.attempt != due:
        return Objection("invalid_value", f"attempt is {payload.attempt}, but it is attempt {due}'s turn")
    limit_ms = payload.limit_ms if isinstance(payload, StepStarted) else None
    if limit_ms is not None and not 1 <= limit_ms <= LIMIT_MAX:
        return Objection("invalid_value", f"limit_ms is {limit_ms}; it must be from 1 to {LIMIT_MAX}")
    return None


def _after_event(run: RunRow, step: StepRow | None, event: Event, payload: StepPayload, arrival: Arrival) -> StepRow:
    """Return the row after an event. A new attempt keeps nothing of the last one."""
    if isinstance(payload, StepStarted):
        return _start_attempt(run, event, payload, arrival)
    if step is not None and isinstance(payload, StepSucceeded):
        return end_attempt(step, "succeeded", arrival.now_ms, output_json=payload.output_json)
    if step is not None and isinstance(payload, StepFailed):
        return end_attempt(step, "failed", arrival.now_ms, error=payload.error)
    return StepState(
        *_names_of(run, payload),
        step_id=None,
        state="skipped",
        attempt=0,
        started_at=arrival.now_ms,
        entered_at=arrival.now_ms,
        error=None,
    )


def _start_attempt(run: RunRow, event: Event, payload: StepStarted, arrival: Arrival) -> StepRow:
    names, now_ms, limit_ms = _names_of(run, payload), arrival.now_ms, payload.limit_ms
    step_id = event.envelope.step_id
    if limit_ms is None:
        return StepState(
            *names, step_id, "running", payload.attempt, now_ms, now_ms, None, input_json=payload.input_json
        )
    return TimedStep(
        *names,
        step_id,
        payload.attempt,
        started_at=now_ms,
        due_at=now_ms + limit_ms,
        limit_ms=limit_ms,
        input_json=payload.input_json,
        clock_repair=arrival.clock_repair,
    )


def _names_of(run: RunRow, payload: StepPayload) -> tuple[str, str, str, str]:
    return run.tenant_id, run.session_id, run.run_id, payload.name


class StepTimedOut(NamedTuple):
    """An attempt failed by its limit; its clock was due at `due_ms`. Times are ms of log time."""

    run_id: str
    name: str
    attempt: int
    at_ms: int
    due_ms: int
    reason_code: str
    reason: str

    def apply(self, row: SessionState) -> SessionState:
        """Return the session with the number of one more record."""
        return next_number(row)

    def report(
        self, session: SessionKey, row: SessionState, after: SessionState, arrival: Arrival | None, cause: OutputCause
    ) -> list[AuditRecord]:
        """Report the failure; it occurred when the limit was over."""
        record = session_record(session, after, arrival, cause, "step")
        return [
            at_due_time(record, self.due_ms, self.at_ms)._replace(
                event_type="step_failed",
                reason_code=self.reason_code,
                reason=self.reason,
                user_id=after.user_id,
                run_id=self.run_id,
                step_name=self.name,
                step_attempt=self.attempt,
                from_step_state="running",
                to_step_state="failed",
            )
        ]


class StepRows(StoredRows):
    """Rows of steps. An attempt with a limit fails by its clock; one without costs no timer."""

    def __init__(self) -> None:
        timed, plain = record_headers(TimedStep), record_headers(StepState)
        super().__init__(
            "step",
            (
                RowKind(TimedStep, live=True, prefixes=timed, encode=encode_record, parts=_CONTENT, is_child=True),
                RowKind(StepState, live=False, prefixes=plain, encode=encode_record, parts=_CONTENT, is_child=True),
            ),
        )

    def due_ms(self, row: StepRow, outage_end_ms: int = 0) -> int:
        """Return when an attempt with a limit fails (ms of log time); other rows stay."""
        return row.due_at if isinstance(row, TimedStep) else NEVER_MS

    def repair_times(self, row: StepRow, repairs: Sequence[ClockRepair]) -> StepRow:
        """Return a row with its times as they are after repairs of the partition's clock."""
        return repair_limit(row, repairs) if isinstance(row, TimedStep) else row

    def is_only_postponed(self, row: StepRow, after: StepRow) -> bool:
        """Return whether the limit ends at the same time, or later."""
        return self.due_ms(row) <= self.due_ms(after)

    def fire(self, key: bytes, row: StepRow, rows: RowLookup, now_ms: int, outage_end_ms: int = 0) -> Decision:
        """Return the failure of an attempt whose limit is over."""
        assert isinstance(row, TimedStep)
        limit = format_seconds(row.limit_ms)
        reason = f"Step failed after {limit}: no end of {row.name} was reported within its model limit"
        fact = StepTimedOut(row.run_id, row.name, row.attempt, now_ms, row.due_at, MODEL_LIMIT, reason)
        after = end_attempt(row, "failed", now_ms, error=ErrorInfo("retryable", MODEL_LIMIT, reason))
        return Decision(session_facts(rows, row, fact), writes={key: after})


def _key_of(event: Event, session: bytes, run: bytes, row: object) -> bytes | None:
    """Return the key of a step's row, if the step has a run and its attempts are counted.

    Attempt 0 is work that is only reported, such as the call of a model.
    """
    payload = event.payload
    assert isinstance(payload, STEP_PAYLOADS)
    return step_key(run, payload.name) if run and (isinstance(payload, StepSkipped) or payload.attempt) else None


STEPS: Final = ChildFamily(StepRows(), STEP_PAYLOADS, _key_of, judge_step, frozenset({StepTimedOut}))
