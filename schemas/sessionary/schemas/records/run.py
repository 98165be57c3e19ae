"""The changelog's records of runs, steps and tool calls; times are ms of log time."""

from typing import NamedTuple

from sessionary.schemas.limits import FINISHED_RUN_DAYS
from sessionary.schemas.parts.quota import RunQuota
from sessionary.schemas.types import Checkpoint, ErrorInfo, RunMode, RunStateName, StepStateName, ToolCallStateName


class RunState(NamedTuple):
    """An open run of a session, as the changelog has it."""

    tenant_id: str
    session_id: str
    run_id: str
    user_id: str | None
    agent_id: str
    mode: RunMode
    task_type: str
    state: RunStateName
    run_seq: int  # The number of the run's events that were applied
    created_at: int  # Log time, ms; so are all times here
    entered_at: int  # When this state was entered
    last_event_at: int  # When the last event of the run was applied
    progress: float | None  # From 0 to 1
    reason_code: str
    error: ErrorInfo | None
    resumes: int  # How often the run was resumed after it had failed
    due_at: int | None  # When the limit of an attached run ends; None for a queued or a detached run
    attached_run_ms: int  # The limit of its session for attached runs
    input_json: str | None = None
    plan_json: str | None = None
    result_json: str | None = None
    artifact_id: str | None = None
    content_apart: bool = False  # The four fields before are in a RunContent, and None here
    clock_repair: int = 0  # The last repair of the partition's clock that all times here include
    unresolved_calls: int = 0  # How many of its calls with a side effect have an unknown outcome
    checkpoint: Checkpoint | None = None  # The last one that was saved
    kept_days: int = FINISHED_RUN_DAYS  # For so long it can be read after its end
    quota: RunQuota | None = None  # The claim that it waits with, or holds; None if it needs none


class FinishedRun(NamedTuple):
    """A run that completed, failed or was cancelled; it vanishes some time later."""

    tenant_id: str
    session_id: str
    run_id: str
    user_id: str | None
    agent_id: str
    mode: RunMode
    task_type: str
    state: RunStateName
    run_seq: int  # The number of the run's events that were applied
    created_at: int  # Log time, ms; so are all times here
    entered_at: int  # When the run finished
    last_event_at: int  # When the last event of the run was applied
    progress: float | None  # From 0 to 1
    reason_code: str
    error: ErrorInfo | None
    resumes: int  # How often the run was resumed after it had failed
    input_json: str | None = None
    plan_json: str | None = None
    result_json: str | None = None
    artifact_id: str | None = None
    content_apart: bool = False  # The four fields before are in a RunContent, and None here
    unresolved_calls: int = 0  # How many of its calls with a side effect have an unknown outcome
    checkpoint: Checkpoint | None = None  # The last one that was saved
    kept_days: int = FINISHED_RUN_DAYS  # For so long it can be read after its end


class RunGravestone(NamedTuple):
    """What is kept of a run that vanished, so that a reader is told that it is gone."""

    expires_at: int  # Log time, ms


class RunContent(NamedTuple):
    """A run's content, if it is large; a record of its own beside the run's row.

    Its key is the row's, a zero byte and `content`. It is written only if it changes.
    """

    input_json: str | None
    plan_json: str | None
    result_json: str | None
    artifact_id: str | None


class StepState(NamedTuple):
    """A step of a run, as the changelog has it: its last attempt. It vanishes with its run."""

    tenant_id: str
    session_id: str
    run_id: str
    name: str  # Unique in its run
    step_id: str | None  # Of the last attempt, as its events' envelopes have it
    state: StepStateName
    attempt: int  # The number of the last attempt, from 1; 0 if the step was skipped before any
    started_at: int  # When the last attempt began. Log time, ms; so are all times here
    entered_at: int  # When this state was entered
    error: ErrorInfo | None
    input_json: str | None = None
    output_json: str | None = None
    content_apart: bool = False  # The two fields before are in a StepContent, and None here


class TimedStep(NamedTuple):
    """A step that runs and has a limit, as the changelog has it; then it is a StepState."""

    tenant_id: str
    session_id: str
    run_id: str
    name: str  # Unique in its run
    step_id: str | None  # Of the last attempt, as its events' envelopes have it
    attempt: int  # The number of the attempt, from 1
    started_at: int  # When the attempt began. Log time, ms; so are all times here
    due_at: int  # When the attempt fails, if it has not ended
    limit_ms: int  # How long the attempt may take
    input_json: str | None = None
    output_json: str | None = None  # None: there is none yet
    content_apart: bool = False  # The two fields before are in a StepContent, and None here
    clock_repair: int = 0  # The last repair of the partition's clock that all times here include


class StepContent(NamedTuple):
    """A step's content, if it is large; a record of its own beside the step's row.

    Its key is the row's, a zero byte and `content`. It is written only if it changes.
    """

    input_json: str | None
    output_json: str | None


class ToolCallState(NamedTuple):
    """A reserved tool call that runs, as the changelog has it."""

    tenant_id: str
    session_id: str
    run_id: str | None  # None if the call belongs to the session
    step_id: str | None  # As its first event's envelope has it
    tool_name: str
    idem_key: str  # Unique in its run, or in its session if it is of no run
    try_number: int  # The number of the last try, from 1
    side_effect: bool
    queryable: bool
    started_at: int  # When the last try was granted. Log time, ms; so are all times here
    due_at: int  # When its outcome becomes unknown
    limit_ms: int  # How long a try may take: what its event asks for, or the session's limit for tools
    reservation: str  # Id of the event that the last try was granted to
    clock_repair: int = 0  # The last repair of the partition's clock that all times here include


class EndedToolCall(NamedTuple):
    """A reserved tool call whose last try ended. It vanishes with its run, or with its session."""

    tenant_id: str
    session_id: str
    run_id: str | None  # None if the call belongs to the session
    step_id: str | None  # As its first event's envelope has it
    tool_name: str
    idem_key: str  # Unique in its run, or in its session if it is of no run
    try_number: int  # The number of the last try, from 1
    side_effect: bool
    queryable: bool
    state: ToolCallStateName
    started_at: int  # When the last try was granted. Log time, ms; so are all times here
    entered_at: int  # When this state was entered
    error: ErrorInfo | None
    resolved_by: str | None  # Who found out the outcome, if it was unknown
    result_json: str | None = None
    artifact_id: str | None = None
    content_apart: bool = False  # The two fields before are in a ToolCallContent, and None here


class ToolCallContent(NamedTuple):
    """A tool call's result, if it is large; a record of its own beside the call's row.

    Its key is the row's, a zero byte and `content`. It is written only if it changes.
    """

    result_json: str | None
    artifact_id: str | None
