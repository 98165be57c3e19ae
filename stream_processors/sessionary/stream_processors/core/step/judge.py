"""How an event is judged against the step that it names; its session and run are for it.

run's state ─▶ pair of state and event ─▶ attempt ─▶ limit ─▶ guard ─▶ size
"""

from sessionary.schemas.codec import Event
from sessionary.schemas.events import StepFailed, StepSkipped, StepStarted, StepSucceeded
from sessionary.schemas.limits import LIMIT_MAX
from sessionary.schemas.records import StepState, TimedStep
from sessionary.stream_processors.core.dependants.child_naming import STEP_PAYLOADS, StepPayload
from sessionary.stream_processors.core.dependants.row_size import object_to_row_size
from sessionary.stream_processors.core.machine import Arrival, Objection
from sessionary.stream_processors.core.run.transitions import AT_WORK, RunRow
from sessionary.stream_processors.core.step.transitions import BY_EVENT, REPEATED, StepRow, end_attempt, state_of


def judge_step(run: RunRow, event: Event, arrival: Arrival) -> StepRow | Objection | None:
    """Judge an event against `arrival.child`; return the row after it, None if that stays."""
    envelope, payload, step = event.envelope, event.payload, arrival.child
    assert isinstance(payload, STEP_PAYLOADS)
    assert step is None or isinstance(step, (StepState, TimedStep))
    name, state = envelope.event_type, None if step is None else state_of(step)
    if isinstance(payload, StepStarted) and run.state not in AT_WORK:
        return Objection("illegal_transition", f"{name} is not possible for a run in {run.state}")
    transition = BY_EVENT.get((state, name))
    if transition is None:
        if (state, name) in REPEATED:
            return None
        found = f"in {state}" if state else "that did not begin"
        return Objection("illegal_transition", f"{name} is not possible for a step {found}")
    objection = _object_to_values(step, payload) or transition.guard(step, payload, envelope.actor)
    if objection is not None:
        return objection
    after = _after_event(run, step, event, payload, arrival)
    return object_to_row_size(arrival.child_key or b"", after, arrival) or after


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
    """Return the row after an event. An attempt leaves nothing of the last."""
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
