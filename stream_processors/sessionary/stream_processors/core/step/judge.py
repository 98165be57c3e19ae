"""How an event is judged against the step that it names; its session and run are for it.

run's state ─▶ pair of state and event ─▶ attempt ─▶ guard ─▶ size
"""

from sessionary.schemas.codec import Event
from sessionary.schemas.events import StepFailed, StepSkipped, StepStarted, StepSucceeded
from sessionary.schemas.records import StepState
from sessionary.stream_processors.core.dependants.child_naming import StepPayload
from sessionary.stream_processors.core.dependants.row_size import object_to_row_size
from sessionary.stream_processors.core.machine import Arrival, Objection
from sessionary.stream_processors.core.run.transitions import AT_WORK, RunRow
from sessionary.stream_processors.core.step.transitions import BY_EVENT, REPEATED


def judge_step(run: RunRow, event: Event, arrival: Arrival) -> StepState | Objection | None:
    """Judge an event against `arrival.child`; return the row after it, None if that stays."""
    envelope, payload, step = event.envelope, event.payload, arrival.child
    assert isinstance(payload, StepPayload)
    assert step is None or isinstance(step, StepState)
    name, state = envelope.event_type, None if step is None else step.state
    if isinstance(payload, StepStarted) and run.state not in AT_WORK:
        return Objection("illegal_transition", f"{name} is not possible for a run in {run.state}")
    transition = BY_EVENT.get((state, name))
    if transition is None:
        if (state, name) in REPEATED:
            return None
        found = f"in {state}" if state else "that did not begin"
        return Objection("illegal_transition", f"{name} is not possible for a step {found}")
    objection = _object_to_attempt(step, payload) or transition.guard(step, payload, envelope.actor)
    if objection is not None:
        return objection
    after = _after_event(run, step, event, payload, arrival)._replace(state=transition.target)
    return object_to_row_size(arrival.child_key or b"", after, arrival) or after


def _object_to_attempt(step: StepState | None, payload: StepPayload) -> Objection | None:
    if isinstance(payload, StepSkipped):
        return None
    last = 0 if step is None else step.attempt
    due = last + 1 if isinstance(payload, StepStarted) else last
    if payload.attempt == due:
        return None
    return Objection("invalid_value", f"attempt is {payload.attempt}, but it is attempt {due}'s turn")


def _after_event(
    run: RunRow, step: StepState | None, event: Event, payload: StepPayload, arrival: Arrival
) -> StepState:
    """Return the row after an event, but for its state. An attempt leaves nothing of the last."""
    now_ms = arrival.now_ms
    if step is not None and isinstance(payload, StepSucceeded):
        return step._replace(entered_at=now_ms, output_json=payload.output_json)
    if step is not None and isinstance(payload, StepFailed):
        return step._replace(entered_at=now_ms, error=payload.error)
    started = payload if isinstance(payload, StepStarted) else None
    return StepState(
        tenant_id=run.tenant_id,
        session_id=run.session_id,
        run_id=run.run_id,
        name=payload.name,
        step_id=event.envelope.step_id if started else None,
        state="running",
        attempt=started.attempt if started else 0,
        started_at=now_ms,
        entered_at=now_ms,
        error=None,
        input_json=started.input_json if started else None,
    )


__all__ = ["judge_step"]
