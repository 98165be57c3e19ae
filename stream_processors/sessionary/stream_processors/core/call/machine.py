"""The machine of reserved tool calls, and their clock: no outcome in time makes a call unknown.

It decides on no event: the session's machine does (`judge`).
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from sessionary.schemas.codec import encode_record, record_headers
from sessionary.schemas.ids import SessionKey, run_key
from sessionary.schemas.records import EndedToolCall, RunState, SessionState, ToolCallContent, ToolCallState
from sessionary.schemas.types import ClockRepair, ToolCallStateName
from sessionary.stream_processors.core.call.facts import CallBecameUnknown, CallExpired, CallFact, CallMoved
from sessionary.stream_processors.core.call.transitions import CallRow, end_call, state_of
from sessionary.stream_processors.core.clock import NEVER_MS, format_seconds
from sessionary.stream_processors.core.dependants.limited_row import repair_limit
from sessionary.stream_processors.core.dependants.machine import DependantMachine
from sessionary.stream_processors.core.dependants.row_size import content_parts
from sessionary.stream_processors.core.machine import ForRow, RowKind
from sessionary.stream_processors.core.run.facts import CallUnresolved

_LIMIT_OVER: Final = "tool_call_limit"


class CallLabel(NamedTuple):
    """By what calls are counted."""

    state: ToolCallStateName


def _label_of(row: CallRow) -> CallLabel:
    return CallLabel(state_of(row))


class CallMachine(DependantMachine[CallRow]):
    """Implements `Machine` for reserved tool calls."""

    name = "tool call"
    row_kinds: Sequence[RowKind] = (
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
    )

    def evolve(self, row: CallRow | None, fact: CallFact) -> CallRow:
        """Return the row after a fact."""
        if isinstance(fact, CallMoved):
            return fact.row
        assert row is not None
        return end_call(row, "unknown", fact.at_ms)

    def due_ms(self, row: CallRow, hole_end_ms: int = 0) -> int:
        """Return when a call that runs becomes unknown (ms of log time); one that ended stays."""
        return row.due_at if isinstance(row, ToolCallState) else NEVER_MS

    def repair_times(self, row: CallRow, repairs: Sequence[ClockRepair]) -> CallRow:
        """Return a row with its times as they are after repairs of the partition's clock."""
        return repair_limit(row, repairs) if isinstance(row, ToolCallState) else row

    def is_only_postponed(self, row: CallRow, after: CallRow) -> bool:
        """Return whether the limit is the same."""
        return self.due_ms(row) == self.due_ms(after)

    def fire(self, row: CallRow, now_ms: int, hole_end_ms: int = 0) -> Sequence[CallFact | ForRow]:
        """Return the end of a call whose limit is over: its session hears of it, then its run."""
        assert isinstance(row, ToolCallState)
        limit = format_seconds(row.limit_ms)
        reason = f"Tool call unknown after {limit}: no outcome of {row.tool_name} was reported within its limit"
        told = CallBecameUnknown(row.run_id, row.tool_name, row.idem_key, now_ms, row.due_at, _LIMIT_OVER, reason)
        session = SessionKey(row.tenant_id, row.session_id)
        facts = (CallExpired(now_ms), ForRow(session.encoded(), SessionState, told))
        if row.run_id is None or not row.side_effect:
            return facts
        return *facts, ForRow(run_key(*session, row.run_id), RunState, CallUnresolved(now_ms, row.tool_name))
