"""How an event is judged against the reserved call that it names; its session and run are for it.

start: run's state ─▶ limit ─▶ is it granted ─▶ name of the tool ─▶ try ─▶ guard ─▶ size
end:   row ─▶ pair of state and event ─▶ name of the tool ─▶ try ─▶ guard ─▶ size
"""

from typing import final

from sessionary.schemas.codec import Event
from sessionary.schemas.events import ToolCallFailed, ToolCallResolved, ToolCallStarted, ToolCallSucceeded
from sessionary.schemas.limits import LIMIT_MAX
from sessionary.schemas.records import EndedToolCall, SessionState, ToolCallState
from sessionary.schemas.types import ErrorInfo
from sessionary.stream_processors.core.call.transitions import (
    BY_EVENT,
    NOT_GRANTED,
    CallRow,
    CallTransition,
    end_call,
    state_of,
)
from sessionary.stream_processors.core.dependants.child_naming import CALL_PAYLOADS, CallPayload
from sessionary.stream_processors.core.dependants.row_size import object_to_row_size
from sessionary.stream_processors.core.machine import Arrival, Objection
from sessionary.stream_processors.core.run.transitions import AT_WORK, RunRow


@final
class CallJudgement:
    """A call's row after an event; `settles`: it has an outcome now, for which its run waited."""

    __slots__ = ("after", "settles")

    def __init__(self, after: CallRow, settles: bool) -> None:
        self.after = after
        self.settles = settles


def judge_call(session: SessionState, event: Event, arrival: Arrival) -> CallJudgement | Objection:
    """Judge an event against `arrival.child`; the call is of `arrival.run`, or of the session."""
    payload, call = event.payload, arrival.child
    assert isinstance(payload, CALL_PAYLOADS)
    assert call is None or isinstance(call, (ToolCallState, EndedToolCall))
    transition = _find_transition(call, event, payload, arrival.run)
    if isinstance(transition, Objection):
        return transition
    objection = _object_to_values(call, payload) or transition.guard(call, payload, event.envelope.actor)
    if objection is not None:
        return objection
    if isinstance(payload, ToolCallStarted):
        after: CallRow | Objection = _start_try(session, event, payload, arrival)
    else:
        assert call is not None
        after = _end_try(call, payload, transition, arrival.now_ms)
    if isinstance(after, Objection):
        return after
    settles = transition.source == "unknown" and call is not None and call.side_effect
    return object_to_row_size(arrival.child_key or b"", after, arrival) or CallJudgement(after, settles)


def _find_transition(
    call: CallRow | None, event: Event, payload: CallPayload, run: RunRow | None
) -> CallTransition | Objection:
    name, state = event.envelope.event_type, None if call is None else state_of(call)
    if isinstance(payload, ToolCallStarted):
        if run is not None and run.state not in AT_WORK:
            return Objection("illegal_transition", f"{name} is not possible for a run in {run.state}")
        if payload.limit_ms is not None and not 1 <= payload.limit_ms <= LIMIT_MAX:
            return Objection("invalid_value", f"limit_ms is {payload.limit_ms}; it must be from 1 to {LIMIT_MAX}")
    elif state is None:
        return Objection("unknown_call", f"{name} of call {payload.idem_key}, which did not start")
    transition = BY_EVENT.get((state, name))
    if transition is not None:
        return transition
    assert state is not None
    if isinstance(payload, ToolCallStarted):
        return Objection(NOT_GRANTED[state], f"call {payload.idem_key} is in {state}")
    return Objection("illegal_transition", f"{name} is not possible for a call in {state}")


def _object_to_values(call: CallRow | None, payload: CallPayload) -> Objection | None:
    if call is not None and payload.tool_name != call.tool_name:
        return Objection("invalid_value", f"the call is of {call.tool_name}, not of {payload.tool_name}")
    if isinstance(payload, ToolCallResolved):
        return None
    last = 0 if call is None else call.try_number
    due = last + 1 if isinstance(payload, ToolCallStarted) else last
    if payload.try_number == due:
        return None
    return Objection("invalid_value", f"try_number is {payload.try_number}, but it is try {due}'s turn")


def _start_try(session: SessionState, event: Event, payload: ToolCallStarted, arrival: Arrival) -> ToolCallState:
    envelope, now_ms = event.envelope, arrival.now_ms
    limit_ms = session.limits.tool_ms if payload.limit_ms is None else payload.limit_ms
    return ToolCallState(
        tenant_id=session.tenant_id,
        session_id=session.session_id,
        run_id=envelope.run_id or None,
        step_id=envelope.step_id,
        tool_name=payload.tool_name,
        idem_key=payload.idem_key,
        try_number=payload.try_number,
        side_effect=payload.side_effect,
        queryable=payload.queryable,
        started_at=now_ms,
        due_at=now_ms + limit_ms,
        limit_ms=limit_ms,
        reservation=envelope.event_id,
        clock_repair=arrival.clock_repair,
    )


def _end_try(call: CallRow, payload: CallPayload, transition: CallTransition, now_ms: int) -> EndedToolCall | Objection:
    if isinstance(payload, ToolCallResolved):
        resolved_by = payload.resolved_by
        if payload.outcome not in transition.targets["tool_call_resolved"]:
            return Objection("invalid_value", "the outcome of a call is succeeded or failed")
        if payload.outcome == "succeeded":
            ended = end_call(call, "succeeded", now_ms)
            return ended._replace(result_json=payload.result_json, resolved_by=resolved_by)
        message = f"{resolved_by} found that the call had no effect"
        ended = end_call(call, "failed", now_ms, ErrorInfo("retryable", "resolved_failed", message))
        return ended._replace(resolved_by=resolved_by)
    if isinstance(payload, ToolCallFailed):
        return end_call(call, "failed", now_ms, payload.error)
    assert isinstance(payload, ToolCallSucceeded)
    ended = end_call(call, "succeeded", now_ms)
    return ended._replace(result_json=payload.result_json, artifact_id=payload.artifact_id)
