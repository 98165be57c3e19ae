"""The rows of the changelog: sessions, their runs, and the other children of both.

Times of sessions are ms of log time."""

from collections.abc import Sequence
from typing import NamedTuple

from sessionary.schemas.limits import FINISHED_RUN_DAYS
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.schemas.types import (
    AgentHandover,
    AnnouncedRules,
    Answer,
    ArtifactStateName,
    Checkpoint,
    Cleanup,
    ClockRepair,
    DataClass,
    ErrorClass,
    ErrorInfo,
    FencedBeats,
    ForgottenProducer,
    Migration,
    OpenRun,
    PartitionDecision,
    Phase,
    ProducerLedger,
    Question,
    Rejection,
    RuleSet,
    RunMode,
    RunQuota,
    RunStateName,
    SessionAgent,
    SessionLimits,
    SessionQuota,
    SessionStateName,
    SharedResult,
    Snapshot,
    StepStateName,
    ToolCallStateName,
)


class SessionState(NamedTuple):
    """The state of a session, as the changelog has it."""

    tenant_id: str
    session_id: str
    user_id: str | None
    agent_id: str
    owner_service: str
    state: SessionStateName
    phase: Phase | None
    epoch: int
    version: int
    reason_code: str
    limits: SessionLimits
    created_at: int  # Log time, ms; so are all times here
    entered_at: int  # When this state was entered
    last_event_at: int
    last_work_at: int
    max_due_at: int | None  # When the maximum duration ends; in Paused: the time that is left
    released_at: int | None
    recovery_attempts: int
    error_class: ErrorClass | None
    state_schema_version: int
    state_json: str
    snapshot: Snapshot
    audit_seq: int
    data_classes: Sequence[DataClass]
    context_bytes: int | None
    context_exceeded: bool
    late_epoch: int  # The last epoch whose lateness was audited
    producers: Sequence[ProducerLedger] = ()
    rejections: Sequence[Rejection] = ()  # The last 16
    cleanups: Sequence[Cleanup] = ()
    parent_session_id: str | None = None
    restored_from_snapshot_id: str | None = None
    forgotten: Sequence[ForgottenProducer] = ()  # Oldest first
    content_apart: bool = False  # state_json and snapshot are in a SessionContent, and empty here
    holder: str = ""  # Producer id of the client that created it or took it over last
    owner_heard_at: int = 0  # Last event of the owning service, heartbeats included
    clock_repair: int = 0  # The last repair of the partition's clock that all times here include
    open_runs: Sequence[OpenRun] = ()  # In the order in which they began
    turns: int = 0  # The number of the conversation's last turn
    migration: Migration | None = None  # The last one, open or not
    holder_epoch: int = 0  # The last that a client's event has given; the holder continues from it
    question: Question | None = None  # That the session waits with
    answer: Answer | None = None  # How its last question ended
    agents: Sequence[SessionAgent] = ()  # In the order in which they were registered
    shared_results: int = 0  # How many results the agents have shared
    fenced_beats: FencedBeats | None = None  # None if there were none
    quota: SessionQuota | None = None  # The claim that it waits with, or holds; None if it needs none


class SessionContent(NamedTuple):
    """A session's content, if it is large; a record of its own beside the session's state.

    Its key is the session's, a zero byte and `content`. It is written only if it changes.
    """

    state_json: str
    snapshot: Snapshot


class Tombstone(NamedTuple):
    """What is kept of an archived session until no event of it can be delivered again."""

    tenant_id: str
    session_id: str
    producers: Sequence[ProducerLedger]
    reason_code: str
    epoch: int
    audit_seq: int
    expires_at: int  # Log time, ms


class TombstoneChunk(NamedTuple):
    """Tombstones that vanish at the same time, packed."""

    expires_at: int  # Log time, ms; the end of a day (UTC)
    key_hashes: bytes  # 16 bytes for each key, sorted: its BLAKE2b hash of that length


class Position(NamedTuple):
    """A partition's position: the next offset to read, whatever the group has committed."""

    next_offset: int
    clock_ms: int
    outage_grace_until_ms: int
    batch_number: int
    outputs_written: int  # Outputs of next_offset that are written already; above 0 if its timers filled a batch
    previous_acknowledged_at: int | None = None  # µs since the epoch
    rules: RuleSet = NEWEST_RULES  # that next_offset is judged by
    announced: AnnouncedRules | None = None  # rules that are to begin
    leader_epoch: int | None = None  # of the leader that appended the last record below next_offset
    row_count: int | None = None  # the partition's rows; contents that are apart count as well
    row_checksum: int | None = None  # sum of their CRC-32 modulo 2**63
    clock_repairs: Sequence[ClockRepair] = ()  # of the partition's clock; oldest first
    decisions: Sequence[PartitionDecision] = ()  # the last eight about the partition; oldest first


# The changelog's records of runs, steps and tool calls; times are ms of log time.


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


class RunTombstone(NamedTuple):
    """What is kept of a run that vanished, so that a reader is notified that it is gone."""

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


# The changelog's records of artifacts, of the turns of a conversation, and of agents.


class ArtifactState(NamedTuple):
    """An artifact of a run or a session, with which it vanishes; its body is elsewhere."""

    tenant_id: str
    session_id: str
    run_id: str | None  # None if the artifact belongs to the session
    step_id: str | None  # As its first event's envelope has it
    artifact_id: str  # Unique in its run, or in its session if it is of no run
    artifact_type: str
    uri: str  # Where the body is
    state: ArtifactStateName
    created_at: int  # Log time, ms; so are all times here
    entered_at: int  # When this state was entered
    size_bytes: int  # Of the chunks so far, or of the complete body
    sha256: str | None  # Of the complete body, in 64 hex digits


class MessageState(NamedTuple):
    """A turn of a session's conversation; a later turn takes its row."""

    tenant_id: str
    session_id: str
    turn: int  # From 1, in the order of the log
    run_id: str | None  # As its event's envelope has it
    agent_id: str
    service_id: str  # Whose agent sent it
    role: str
    name: str | None
    at: int  # Log time, ms
    content: str | None = None
    artifact_id: str | None = None
    content_apart: bool = False  # The two fields before are in a MessageContent, and None here


class MessageContent(NamedTuple):
    """A turn's content, if it is large; a record of its own beside the turn's row."""

    content: str | None
    artifact_id: str | None


class AgentState(NamedTuple):
    """An agent of a session: its tasks and what it shares. It vanishes with its session."""

    tenant_id: str
    session_id: str
    agent_id: str  # Unique in its session
    role: str
    service_id: str
    registered_at: int  # Log time, ms; so are all times here
    updated_at: int  # When the last snapshot was made
    snapshot_id: str  # The last snapshot: each change of the tasks makes one
    shared_seen: int  # How many results the session's agents had shared by the last snapshot
    current_task: str | None = None
    completed_tasks: Sequence[str] = ()  # In the order of their completion
    shared: Sequence[SharedResult] = ()  # What this agent shares; oldest first
    handover: AgentHandover | None = None  # The last one that it got
