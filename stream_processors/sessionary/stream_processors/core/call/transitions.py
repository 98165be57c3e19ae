"""The machine of reserved tool calls as data: one value for each transition.

               tool_call_started
                       │
                       ▼            no outcome in time
    failed ◀──────▶ running ─────────────────▶ unknown ──▶ succeeded, failed (late, or found out)
                       │                          │
                       ▼                          └──▶ running (only without a side effect)
                   succeeded

A call runs at most once at a time, and never again after it succeeded. Tries are numbered from 1.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple

from sessionary.schemas.events import ToolCallStarted
from sessionary.schemas.records import EndedToolCall, ToolCallState
from sessionary.schemas.types import ErrorInfo, RefusalReason, ToolCallStateName
from sessionary.stream_processors.core.machine import Objection

CallRow = ToolCallState | EndedToolCall
# The call, the payload, who asked for it; what is wrong, or None.
CallGuard = Callable[[CallRow | None, Any, str | None], Objection | None]


class CallTransition(NamedTuple):
    """One transition of a call. A source of None is a call without a row.

    One by `clock` is what the call's own clock does.
    """

    id: str
    source: ToolCallStateName | None
    targets: Mapping[str, tuple[ToolCallStateName, ...]]  # by event; of several, the outcome says which
    by: Literal["client", "clock"] = "client"
    guard: CallGuard = lambda call, payload, actor: None


def _retry(call: CallRow | None, payload: object, actor: str | None) -> Objection | None:
    error = call.error if isinstance(call, EndedToolCall) else None
    if actor is None and (error is None or error.error_class != "retryable"):
        return Objection("not_retryable", "the call's error is fatal, and the event names no actor")
    return None


def _repeat(call: CallRow | None, payload: ToolCallStarted, actor: str | None) -> Objection | None:
    if payload.side_effect or (call is not None and call.side_effect):
        return Objection("call_unresolved", "the call may have had its effect: find out, and resolve it")
    return None


def _end(call: CallRow | None, payload: Any, actor: str | None) -> Objection | None:
    error = getattr(payload, "error", None)
    if error is not None and error.error_class == "UNKNOWN":
        return Objection("missing_error_class", "an error is retryable or fatal")
    return None


_STARTED: Final[Mapping[str, tuple[ToolCallStateName, ...]]] = {"tool_call_started": ("running",)}

CALL_TRANSITIONS: tuple[CallTransition, ...] = (
    CallTransition("C01", None, _STARTED),
    CallTransition("C02", "failed", _STARTED, guard=_retry),
    CallTransition("C03", "unknown", _STARTED, guard=_repeat),
    CallTransition("C04", "running", {"tool_call_succeeded": ("succeeded",)}),
    CallTransition("C05", "running", {"tool_call_failed": ("failed",)}, guard=_end),
    CallTransition(
        "C06",
        "unknown",
        {"tool_call_succeeded": ("succeeded",), "tool_call_failed": ("failed",)},
        guard=_end,
    ),
    CallTransition("C07", "unknown", {"tool_call_resolved": ("succeeded", "failed")}),
    CallTransition("C08", "running", {"tool_call_unknown": ("unknown",)}, by="clock"),
)

BY_EVENT: Final[Mapping[tuple[ToolCallStateName | None, str], CallTransition]] = {
    (transition.source, event_type): transition
    for transition in CALL_TRANSITIONS
    if transition.by == "client"
    for event_type in transition.targets
}
# Why a call does not start once more, by its state.
NOT_GRANTED: Final[Mapping[ToolCallStateName, RefusalReason]] = {
    "running": "call_in_progress",
    "succeeded": "call_succeeded",
}


def state_of(call: CallRow) -> ToolCallStateName:
    """Return the state of a call."""
    return call.state if isinstance(call, EndedToolCall) else "running"


def end_call(call: CallRow, state: ToolCallStateName, at_ms: int, error: ErrorInfo | None = None) -> EndedToolCall:
    """Return a call as it is once its try has ended (ms of log time), without a result."""
    return EndedToolCall(
        tenant_id=call.tenant_id,
        session_id=call.session_id,
        run_id=call.run_id,
        step_id=call.step_id,
        tool_name=call.tool_name,
        idem_key=call.idem_key,
        try_number=call.try_number,
        side_effect=call.side_effect,
        queryable=call.queryable,
        state=state,
        started_at=call.started_at,
        entered_at=at_ms,
        error=error,
        resolved_by=None,
    )
