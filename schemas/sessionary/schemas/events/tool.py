"""Events of tool calls."""

from typing import NamedTuple

from sessionary.schemas.types import ErrorInfo, ToolOutcome


class ToolCallStarted(NamedTuple):
    """A tool is about to be called; sent before the call.

    Attributes:
        tool_call_id: Id of the call, in all of its events.
        tool_name: Name of the tool.
        idem_key: Idempotency key: calls with the same key have their effect once.
        args_json: Arguments as JSON, or a reference of the artifact that has it.
        try_number: From 1.
        side_effect: The call changes something outside.
        queryable: The tool can be asked later whether the call took effect.
        limit_ms: How long the call may take; None: the session's limit for tools.
    """

    tool_call_id: str
    tool_name: str
    idem_key: str
    args_json: str
    try_number: int
    side_effect: bool
    queryable: bool
    limit_ms: int | None = None


class ToolCallSucceeded(NamedTuple):
    """A tool call succeeded."""

    tool_call_id: str
    tool_name: str
    idem_key: str
    result_json: str | None
    artifact_id: str | None
    try_number: int
    execution_time_ms: int | None = None


class ToolCallFailed(NamedTuple):
    """A tool call failed."""

    tool_call_id: str
    tool_name: str
    idem_key: str
    error: ErrorInfo
    try_number: int
    execution_time_ms: int | None = None


class ToolCallUnknown(NamedTuple):
    """The outcome of a tool call is unknown; only a processor makes it."""

    tool_call_id: str
    tool_name: str
    idem_key: str
    limit_ms: int


class ToolCallResolved(NamedTuple):
    """The outcome of an unknown tool call was found out."""

    tool_call_id: str
    tool_name: str
    idem_key: str
    outcome: ToolOutcome
    result_json: str | None
    resolved_by: str
