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
    OpenTransaction,
    PartitionDecision,
    Phase,
    ProducerLedger,
    Question,
    Rejection,
    RuleSet,
    RunMode,
    RunQuota,
    RunStateName,
    SavedCheckpoint,
    SessionAgent,
    SessionHold,
    SessionLimits,
    SessionQuota,
    SessionStateName,
    SharedResult,
    Snapshot,
    StepStateName,
    ToolCallStateName,
)


class SessionState(NamedTuple):
    """The state of a session: its changelog row."""

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
    created_at: int  # Log time in ms, like all times of this record
    entered_at: int  # Time at which this state was entered
    last_event_at: int
    last_work_at: int
    max_due_at: int | None  # Deadline of the maximum duration; in Paused or waiting: the remaining time
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
    rejections: Sequence[Rejection] = ()  # The last 16 rejections
    cleanups: Sequence[Cleanup] = ()
    parent_session_id: str | None = None
    restored_from_snapshot_id: str | None = None
    forgotten: Sequence[ForgottenProducer] = ()  # Oldest first
    content_apart: bool = False  # state_json and snapshot are in a SessionContent, and are empty here
    holder: str = ""  # Producer id of the client that created the session or took it over last
    owner_heard_at: int = 0  # Last event of the owning service, heartbeats included
    clock_repair: int = 0  # The last repair of the partition's clock that all times here include
    open_runs: Sequence[OpenRun] = ()  # In the order of their beginning
    turns: int = 0  # Number of the conversation's last turn
    migration: Migration | None = None  # The last migration, open or not
    holder_epoch: int = 0  # The last epoch that a client's event caused; the holder continues from there
    question: Question | None = None  # The session's open question
    answers: Sequence[Answer] = ()  # The answers to the session's last 16 questions
    agents: Sequence[SessionAgent] = ()  # In the order of their registration
    shared_results: int = 0  # Number of results that the agents have shared
    fenced_beats: FencedBeats | None = None  # None without such heartbeats
    quota: SessionQuota | None = None  # The waiting or granted claim; None without one
    hold: SessionHold | None = None  # An operator's hold, which only operators end; None without one
    exchanges: int = 0  # Number of turns (exchanges with the user) that have ended
    turn_by: int = 0  # Hash of the id of the producer that is in a turn; 0 without one
    external_id: str | None = None  # The text that was given as the session's id; None for a UUID
    transactions: Sequence[OpenTransaction] = ()  # Open ones, oldest first
    last_tool: str | None = None  # Name of the tool that was called last
    last_result: str | None = None  # JSON of the call that ended last, or its failure; 256 characters of it
    snapshot_ids: bytes = b""  # Ranges of ids before the head: two numbers of 6 bytes


class SessionContent(NamedTuple):
    """A session's content, if it is large; a record separate from the session's state.

    Its key is the session's, a zero byte and `content`. It is written only if it changes.
    """

    state_json: str
    snapshot: Snapshot
    snapshot_ids: bytes = b""  # Those of the session's state


class Tombstone(NamedTuple):
    """The mark of an archived session, kept until none of its events can be delivered again."""

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
    key_hashes: bytes  # The BLAKE2b hash of each key, 16 bytes long; sorted


class Position(NamedTuple):
    """A partition's position: its next offset, independent of the group's committed offset."""

    next_offset: int
    clock_ms: int
    outage_grace_until_ms: int
    batch_number: int
    outputs_written: int  # Written outputs of next_offset; above 0 if its timers filled a batch
    previous_acknowledged_at: int | None = None  # µs since the epoch
    rules: RuleSet = NEWEST_RULES  # by which next_offset is judged
    announced: AnnouncedRules | None = None  # announced rules that have not begun
    leader_epoch: int | None = None  # epoch of the leader that appended the last record below next_offset
    row_count: int | None = None  # number of the partition's rows, separate contents included
    row_checksum: int | None = None  # sum of the rows' CRC-32 modulo 2**63
    clock_repairs: Sequence[ClockRepair] = ()  # of the partition's clock; oldest first
    decisions: Sequence[PartitionDecision] = ()  # the last eight decisions about the partition; oldest first
    events_topic_id: str | None = None  # Kafka's id of the topic that next_offset is of
    changelog_topic_id: str | None = None  # Kafka's id of the topic to which this record was written
    log_truncated: str | None = None  # how it showed that the log lost folded records, until that is accepted
    log_lost_from: int | None = None  # the first offset that the log had lost when that showed; None if unknown


# The changelog's records of runs, steps and tool calls; times are ms of log time.


class RunState(NamedTuple):
    """An open run of a session: its changelog row."""

    tenant_id: str
    session_id: str
    run_id: str
    user_id: str | None
    agent_id: str
    mode: RunMode
    task_type: str
    state: RunStateName
    run_seq: int  # The number of the run's events that were applied
    created_at: int  # Log time in ms, like all times of this record
    entered_at: int  # Time at which this state was entered
    last_event_at: int  # Time at which the last event of the run was applied
    progress: float | None  # From 0 to 1
    reason_code: str
    error: ErrorInfo | None
    resumes: int  # Number of times that the run was resumed after a failure
    due_at: int | None  # Deadline of an attached run; None for a queued or a detached run
    attached_run_ms: int  # The session's limit for attached runs
    input_json: str | None = None
    plan_json: str | None = None
    result_json: str | None = None
    artifact_id: str | None = None
    content_apart: bool = False  # The four fields above are in a RunContent, and are None here
    clock_repair: int = 0  # The last repair of the partition's clock that all times here include
    unresolved_calls: int = 0  # Number of the run's calls with a side effect and an unknown outcome
    checkpoint: Checkpoint | None = None  # The last one that was saved
    kept_days: int = FINISHED_RUN_DAYS  # Days for which the run can be read after its end
    quota: RunQuota | None = None  # The waiting or granted claim; None without one
    holder: str | None = None  # The producer id of the worker that has the task; None: any may report


class FinishedRun(NamedTuple):
    """A run that completed, failed or was cancelled; the row vanishes some time later."""

    tenant_id: str
    session_id: str
    run_id: str
    user_id: str | None
    agent_id: str
    mode: RunMode
    task_type: str
    state: RunStateName
    run_seq: int  # The number of the run's events that were applied
    created_at: int  # Log time in ms, like all times of this record
    entered_at: int  # Time at which the run finished
    last_event_at: int  # Time at which the last event of the run was applied
    progress: float | None  # From 0 to 1
    reason_code: str
    error: ErrorInfo | None
    resumes: int  # Number of times that the run was resumed after a failure
    input_json: str | None = None
    plan_json: str | None = None
    result_json: str | None = None
    artifact_id: str | None = None
    content_apart: bool = False  # The four fields above are in a RunContent, and are None here
    unresolved_calls: int = 0  # Number of the run's calls with a side effect and an unknown outcome
    checkpoint: Checkpoint | None = None  # The last one that was saved
    kept_days: int = FINISHED_RUN_DAYS  # Days for which the run can be read after its end


class RunTombstone(NamedTuple):
    """The mark of a vanished run, by which readers learn that the run is gone."""

    expires_at: int  # Log time, ms


class RunContent(NamedTuple):
    """A run's content, if it is large; a record separate from the run's row.

    Its key is the row's, a zero byte and `content`. It is written only if it changes.
    """

    input_json: str | None
    plan_json: str | None
    result_json: str | None
    artifact_id: str | None


class StepState(NamedTuple):
    """A step of a run, with its last attempt: a changelog row that vanishes with its run."""

    tenant_id: str
    session_id: str
    run_id: str
    name: str  # Unique in its run
    step_id: str | None  # The step id in the envelopes of the last attempt's events
    state: StepStateName
    attempt: int  # Number of the last attempt, from 1; 0 if the step was skipped before any
    started_at: int  # Time at which the last attempt began. Log time in ms, like all times of this record
    entered_at: int  # Time at which this state was entered
    error: ErrorInfo | None
    input_json: str | None = None
    output_json: str | None = None
    content_apart: bool = False  # The two fields above are in a StepContent, and are None here


class TimedStep(NamedTuple):
    """A running step with a time limit: a changelog row. After its end the row is a StepState."""

    tenant_id: str
    session_id: str
    run_id: str
    name: str  # Unique in its run
    step_id: str | None  # The step id in the envelopes of the last attempt's events
    attempt: int  # Number of the attempt, from 1
    started_at: int  # Time at which the attempt began. Log time in ms, like all times of this record
    due_at: int  # Time at which the attempt fails, if it has not ended
    limit_ms: int  # Time limit of the attempt
    input_json: str | None = None
    output_json: str | None = None  # None: there is no output yet
    content_apart: bool = False  # The two fields above are in a StepContent, and are None here
    clock_repair: int = 0  # The last repair of the partition's clock that all times here include


class StepContent(NamedTuple):
    """A step's content, if it is large; a record separate from the step's row.

    Its key is the row's, a zero byte and `content`. It is written only if it changes.
    """

    input_json: str | None
    output_json: str | None


class ToolCallState(NamedTuple):
    """A reserved tool call that runs: its changelog row."""

    tenant_id: str
    session_id: str
    run_id: str | None  # None if the call belongs to the session
    step_id: str | None  # The step id in the envelope of the first event
    tool_name: str
    idem_key: str  # Unique in its run, or in its session if it has no run
    try_number: int  # The number of the last try, from 1
    side_effect: bool
    queryable: bool
    started_at: int  # Time at which the last try was granted. Log time in ms, like all times of this record
    due_at: int  # Time at which the call's outcome becomes unknown
    limit_ms: int  # Time limit of a try: the requested limit, or the session's limit for tools
    reservation: str  # Id of the event to which the last try was granted
    clock_repair: int = 0  # The last repair of the partition's clock that all times here include


class EndedToolCall(NamedTuple):
    """A reserved tool call whose last try ended. The row vanishes with its run or session."""

    tenant_id: str
    session_id: str
    run_id: str | None  # None if the call belongs to the session
    step_id: str | None  # The step id in the envelope of the first event
    tool_name: str
    idem_key: str  # Unique in its run, or in its session if it has no run
    try_number: int  # The number of the last try, from 1
    side_effect: bool
    queryable: bool
    state: ToolCallStateName
    started_at: int  # Time at which the last try was granted. Log time in ms, like all times of this record
    entered_at: int  # Time at which this state was entered
    error: ErrorInfo | None
    resolved_by: str | None  # The principal that resolved the outcome, if it was unknown
    result_json: str | None = None
    artifact_id: str | None = None
    content_apart: bool = False  # The two fields above are in a ToolCallContent, and are None here


class ToolCallContent(NamedTuple):
    """A tool call's result, if it is large; a record separate from the call's row.

    Its key is the row's, a zero byte and `content`. It is written only if it changes.
    """

    result_json: str | None
    artifact_id: str | None


# The changelog's records of artifacts, of the turns of a conversation, and of agents.


class ArtifactState(NamedTuple):
    """An artifact of a run or session. The row vanishes with its parent; the body is elsewhere."""

    tenant_id: str
    session_id: str
    run_id: str | None  # None if the artifact belongs to the session
    step_id: str | None  # The step id in the envelope of the first event
    artifact_id: str  # Unique in its run, or in its session if it has no run
    artifact_type: str
    uri: str  # Address of the body
    state: ArtifactStateName
    created_at: int  # Log time in ms, like all times of this record
    entered_at: int  # Time at which this state was entered
    size_bytes: int  # Size of the present chunks, or of the complete body
    sha256: str | None  # SHA-256 of the complete body, in 64 hex digits
    file_name: str | None = None  # The name under which people know the content
    media_type: str | None = None  # The media type of the content


class MessageState(NamedTuple):
    """A turn of a session's conversation; a later turn reuses the row."""

    tenant_id: str
    session_id: str
    turn: int  # From 1, in the order of the log
    run_id: str | None  # The run in the event's envelope
    agent_id: str
    service_id: str  # The service of the agent that sent the turn
    role: str
    name: str | None
    at: int  # Log time, ms
    content: str | None = None
    artifact_id: str | None = None
    content_apart: bool = False  # The two fields above are in a MessageContent, and are None here


class MessageContent(NamedTuple):
    """A turn's content, if it is large; a record separate from the turn's row."""

    content: str | None
    artifact_id: str | None


class AgentState(NamedTuple):
    """An agent of a session, with tasks and shared results. The row vanishes with its session."""

    tenant_id: str
    session_id: str
    agent_id: str  # Unique in its session
    role: str
    service_id: str
    registered_at: int  # Log time in ms, like all times of this record
    updated_at: int  # Time of the last snapshot
    snapshot_id: str  # The last snapshot: each change of the tasks makes one
    shared_seen: int  # Number of results that the session's agents had shared at the last snapshot
    current_task: str | None = None
    completed_tasks: Sequence[str] = ()  # In the order of their completion
    shared: Sequence[SharedResult] = ()  # Results that this agent shares; oldest first
    handover: AgentHandover | None = None  # The last hand-over that the agent received


class CheckpointState(NamedTuple):
    """The last checkpoints of one operation of a run or session, or a session's last snapshots.

    The row vanishes with its run or session.
    """

    tenant_id: str
    session_id: str
    run_id: str | None  # None if the row belongs to the session
    operation: str  # Unique in its run, or in its session; empty for snapshots
    saved: Sequence[SavedCheckpoint]  # Oldest first
