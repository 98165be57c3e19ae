"""Tool-call family."""

from typing import NamedTuple

from sessionary.schemas.types import ErrorInfo, ToolOutcome


class ToolCallStarted(NamedTuple):
    """Written before the tool is called."""

    tool_call_id: str
    tool_name: str
    idem_key: str
    args_json: str
    try_number: int
    side_effect: bool
    queryable: bool


class ToolCallSucceeded(NamedTuple):
    """The tool answered."""

    tool_call_id: str
    tool_name: str
    idem_key: str
    result_json: str | None
    artifact_id: str | None
    try_number: int
    execution_time_ms: int | None = None


class ToolCallFailed(NamedTuple):
    """The tool failed."""

    tool_call_id: str
    tool_name: str
    idem_key: str
    error: ErrorInfo
    try_number: int
    execution_time_ms: int | None = None


class ToolCallUnknown(NamedTuple):
    """Made by a processor: nobody knows how the call ended."""

    tool_call_id: str
    tool_name: str
    idem_key: str
    limit_ms: int


class ToolCallResolved(NamedTuple):
    """An unknown call was settled."""

    tool_call_id: str
    tool_name: str
    idem_key: str
    outcome: ToolOutcome
    result_json: str | None
    resolved_by: str
