"""Events of runs, their plans and steps."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from sessionary.schemas.types import ErrorInfo, RunMode, ToolOutcome


class RunQueued(NamedTuple):
    """A run waits for its quota."""

    mode: RunMode
    task_type: str
    input_json: str | None = None


class RunRejected(NamedTuple):
    """A run was rejected; it has no row."""

    reason: str


class RunStarted(NamedTuple):
    """A run begins."""

    mode: RunMode
    task_type: str
    input_json: str | None = None
    plan_json: str | None = None
    prompt_versions: Mapping[str, str] = MappingProxyType({})


class RunRunning(NamedTuple):
    """A run is at work."""

    progress: float | None = None


class RunPaused(NamedTuple):
    """A run is held."""

    reason: str | None = None


class RunResumed(NamedTuple):
    """A run continues.

    Attributes:
        from_step: The step with which it continues, if that is known.
        reason: The reason for which it continues, for people.
    """

    from_step: str | None = None
    reason: str | None = None


class RunCompleted(NamedTuple):
    """A run succeeded."""

    result_json: str | None = None
    artifact_id: str | None = None
    duration_ms: int | None = None


class RunFailed(NamedTuple):
    """A run failed.

    Attributes:
        error: The failure.
        reason: The reason for which the run was ended, for people; None if the failure itself ended
            it.
    """

    error: ErrorInfo
    reason: str | None = None


class RunCancelled(NamedTuple):
    """A run was cancelled."""

    reason: str | None = None


class PlanRecorded(NamedTuple):
    """The first plan of a run."""

    plan_json: str


class PlanReplaced(NamedTuple):
    """A new plan of a run, with the reason."""

    plan_json: str
    reason: str


class StepStarted(NamedTuple):
    """An attempt at a step begins.

    Attributes:
        name: The step's name, unique in its run.
        attempt: From 1; 0 for work that is only reported as a step: its run keeps no record of it.
        input_json: The step's input, as JSON.
        limit_ms: Time limit of the attempt; None: no separate limit.
        reason: The reason for which the step is tried again, for people; None in its first attempt.
    """

    name: str
    attempt: int
    input_json: str | None = None
    limit_ms: int | None = None
    reason: str | None = None


class StepSucceeded(NamedTuple):
    """An attempt at a step succeeded."""

    name: str
    attempt: int
    output_json: str | None = None
    execution_time_ms: int | None = None


class StepFailed(NamedTuple):
    """An attempt at a step failed."""

    name: str
    attempt: int
    error: ErrorInfo


class StepSkipped(NamedTuple):
    """A step is not needed."""

    name: str
    reason: str | None = None


# Events of tool calls.


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
        limit_ms: Time limit of the call; None: the session's limit for tools.
        reason: The reason for which the call is tried again, for people; None: not given.
    """

    tool_call_id: str
    tool_name: str
    idem_key: str
    args_json: str
    try_number: int
    side_effect: bool
    queryable: bool
    limit_ms: int | None = None
    reason: str | None = None


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
    """The outcome of an unknown tool call was resolved."""

    tool_call_id: str
    tool_name: str
    idem_key: str
    outcome: ToolOutcome
    result_json: str | None
    resolved_by: str
