"""Reserved tool calls: their transitions, the judgement of their events, and their rows.


               tool_call_started
                       │
                       ▼            no outcome in time
    failed ◀──────▶ running ─────────────────▶ unknown ──▶ succeeded, failed (late, or found out)
                       │                          │
                       ▼                          └──▶ running (only without a side effect)
                   succeeded

A call runs at most once at a time, and never again after it succeeded. Tries are numbered from 1.

A call vanishes with its run, or with its session if it has no run. If the outcome of a call with a
side effect is unknown, its run waits until the outcome is known. Begin with `CALL_TRANSITIONS`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from sessionary.schemas.codec import Event, encode_record, record_headers
from sessionary.schemas.events import ToolCallFailed, ToolCallResolved, ToolCallStarted, ToolCallSucceeded
from sessionary.schemas.ids import SessionKey, call_key, run_key
from sessionary.schemas.limits import LIMIT_MAX
from sessionary.schemas.records import AuditRecord, EndedToolCall, SessionState, ToolCallContent, ToolCallState
from sessionary.schemas.types import ClockRepair, ErrorInfo, RejectionReason, ToolCallStateName
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
from sessionary.stream_processors.core.run.changes import leave_call_unresolved, settle_call
from sessionary.stream_processors.core.run.transitions import AT_WORK, RunRow
from sessionary.stream_processors.core.trail import at_due_time, next_number, session_record

CallRow = ToolCallState | EndedToolCall
CallPayload = ToolCallStarted | ToolCallSucceeded | ToolCallFailed | ToolCallResolved
CALL_PAYLOADS: Final = (ToolCallStarted, ToolCallSucceeded, ToolCallFailed, ToolCallResolved)
_LIMIT_OVER: Final = "tool_call_limit"
# From the call, the payload and the one who asked to the objection, or None.
CallGuard = Callable[[CallRow | None, Any, str | None], Objection | None]


class CallTransition(NamedTuple):
    """One transition of a call. A source of None is a call without a row.

    A transition by `clock` is made by the call's own clock.
    """

    id: str
    source: ToolCallStateName | None
    targets: Mapping[str, tuple[ToolCallStateName, ...]]  # by event; the outcome chooses among several
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
NOT_GRANTED: Final[Mapping[ToolCallStateName, RejectionReason]] = {
    "running": "call_in_progress",
    "succeeded": "call_succeeded",
}


def state_of(call: CallRow) -> ToolCallStateName:
    """Return the state of a call."""
    return call.state if isinstance(call, EndedToolCall) else "running"


def end_call(call: CallRow, state: ToolCallStateName, at_ms: int, error: ErrorInfo | None = None) -> EndedToolCall:
    """Return a call after the end of its try (ms of log time), without a result."""
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


def judge_call(session: SessionState, event: Event, arrival: SessionArrival) -> Judged | Objection:
    """Judge an event against `arrival.child`; the call is of `arrival.run`, or of the session.

    start: run's state ─▶ limit ─▶ is it granted ─▶ name of the tool ─▶ try ─▶ guard ─▶ size
    end:   row ─▶ pair of state and event ─▶ name of the tool ─▶ try ─▶ guard ─▶ size
    """
    payload, call, run = event.payload, arrival.child, arrival.run
    assert isinstance(payload, CALL_PAYLOADS)
    assert call is None or isinstance(call, (ToolCallState, EndedToolCall))
    transition = _find_transition(call, event, payload, run)
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
    if too_large := object_to_row_size("tool call", arrival.child_key or b"", after, arrival):
        return too_large
    is_settled = transition.source == "unknown" and call is not None and call.side_effect
    if run is None or not is_settled:
        return Judged(after)
    settled, facts = settle_call(run, arrival.now_ms, is_active=session.state == "Active")
    return Judged(after, facts, settled)


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


class CallBecameUnknown(NamedTuple):
    """A call's outcome is unknown; its clock was due at `due_ms` (ms of log time)."""

    run_id: str | None
    tool_name: str
    idem_key: str
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
        """Report the change; it occurred when the call's limit was over."""
        record = session_record(session, after, arrival, cause, "tool_call")
        return [
            at_due_time(record, self.due_ms, self.at_ms)._replace(
                event_type="tool_call_unknown",
                reason_code=self.reason_code,
                reason=self.reason,
                user_id=after.user_id,
                run_id=self.run_id,
                tool_name=self.tool_name,
                idem_key=self.idem_key,
                from_call_state="running",
                to_call_state="unknown",
            )
        ]


class CallLabel(NamedTuple):
    """The label by which calls are counted."""

    state: ToolCallStateName


def _label_of(row: CallRow) -> CallLabel:
    return CallLabel(state_of(row))


class CallRows(StoredRows):
    """Rows of reserved calls. No outcome in time makes a call unknown."""

    def __init__(self) -> None:
        super().__init__(
            "tool call",
            (
                RowKind(
                    ToolCallState,
                    live=True,
                    prefixes=record_headers(ToolCallState),
                    encode=encode_record,
                    label=_label_of,
                    is_child=True,
                ),
                RowKind(
                    EndedToolCall,
                    live=False,
                    prefixes=record_headers(EndedToolCall),
                    encode=encode_record,
                    parts=content_parts(ToolCallContent),
                    label=_label_of,
                    is_child=True,
                ),
            ),
        )

    def due_ms(self, row: CallRow, outage_end_ms: int = 0) -> int:
        """Return when a call that runs becomes unknown (ms of log time); one that ended stays."""
        return row.due_at if isinstance(row, ToolCallState) else NEVER_MS

    def repair_times(self, row: CallRow, repairs: Sequence[ClockRepair]) -> CallRow:
        """Return a row with its times as they are after repairs of the partition's clock."""
        return repair_limit(row, repairs) if isinstance(row, ToolCallState) else row

    def is_only_postponed(self, row: CallRow, after: CallRow) -> bool:
        """Return whether the limit is the same."""
        return self.due_ms(row) == self.due_ms(after)

    def fire(self, key: bytes, row: CallRow, rows: RowLookup, now_ms: int, outage_end_ms: int = 0) -> Decision:
        """Return the end of a call whose limit is over; after a side effect its run waits."""
        assert isinstance(row, ToolCallState)
        limit = format_seconds(row.limit_ms)
        reason = f"Tool call unknown after {limit}: no outcome of {row.tool_name} was reported within its limit"
        fact = CallBecameUnknown(row.run_id, row.tool_name, row.idem_key, now_ms, row.due_at, _LIMIT_OVER, reason)
        writes: dict[bytes, Any] = {key: end_call(row, "unknown", now_ms)}
        if row.run_id is None or not row.side_effect:
            return Decision(session_facts(rows, row, fact), writes=writes)
        of_run = run_key(row.tenant_id, row.session_id, row.run_id)
        run, changed = leave_call_unresolved(rows.get_row(of_run), row.tool_name, now_ms)
        writes[of_run] = run
        return Decision(session_facts(rows, row, fact, *changed), writes=writes)


def _key_of(event: Event, session: bytes, run: bytes, row: object) -> bytes | None:
    """Return the key of a call's row, if the call is reserved.

    A call is reserved if its idempotency key is not empty and is not just the call's id.
    """
    payload = event.payload
    assert isinstance(payload, CALL_PAYLOADS)
    if not payload.idem_key or payload.idem_key == payload.tool_call_id:
        return None
    return call_key(run or session, payload.idem_key)


CALLS: Final = ChildFamily(CallRows(), CALL_PAYLOADS, _key_of, judge_call, frozenset({CallBecameUnknown}))
