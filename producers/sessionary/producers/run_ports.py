"""A client's reads of runs, their parts and conversations, and the ports that answer."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple, Protocol

from sessionary.schemas.ids import SessionKey
from sessionary.schemas.types import (
    Answer,
    Checkpoint,
    CheckpointKind,
    DataClass,
    ErrorInfo,
    Limits,
    Question,
    Rejection,
    RejectionReason,
    RunMode,
    SnapshotMessage,
    ToolExecution,
)

FINISHED_STATES: Final = frozenset({"completed", "failed", "cancelled"})
"""The states of a run that has finished; a failed one may be resumed."""

PAST_S: Final = 120.0
"""The longest wait for a state of the past, which the processor may have to fold again."""

LogPosition = tuple[int, int]
LOG_END: LogPosition = (-1, -1)
"""Instead of a position: the end of the session's partition when the processor is asked."""
"""Partition and offset."""


class Verdict(NamedTuple):
    """The processor's decision on one event: applied, or rejected for a reason.

    If the verdict is no longer `kept`, neither is known.
    """

    applied: bool
    reason: RejectionReason | None
    kept: bool = True


class RunView(NamedTuple):
    """A run as the processor has committed it."""

    run_id: str
    mode: RunMode
    task_type: str
    state: str  # queued, started, running, paused, completed, failed or cancelled
    error: ErrorInfo | None = None
    input_json: str | None = None
    plan_json: str | None = None
    result_json: str | None = None
    artifact_id: str | None = None
    verdict: Verdict | None = None  # only if one was asked for
    checkpoint: Checkpoint | None = None  # The last one
    reason_code: str | None = None  # Why it is in its state


class StepView(NamedTuple):
    """A step of a run as the processor has committed it: its last attempt."""

    name: str
    state: str  # running, succeeded, failed or skipped
    attempt: int  # From 1; 0 if the step was skipped before any
    error: ErrorInfo | None = None
    output_json: str | None = None  # None in a list
    input_json: str | None = None  # None in a list, and if JSON cannot hold it


class CallView(NamedTuple):
    """A reserved tool call as the processor has committed it: its last try."""

    tool_name: str
    idem_key: str
    state: str  # running, succeeded, failed or unknown
    try_number: int  # From 1
    side_effect: bool
    reservation: str | None = None  # Id of the event that a running try was granted to
    error: ErrorInfo | None = None
    result_json: str | None = None  # None in a list
    verdict: Verdict | None = None  # only if one was asked for


class RunAtWork(NamedTuple):
    """An open run with its steps and tool calls, all without contents."""

    run: RunView
    steps: Sequence[StepView]
    tool_calls: Sequence[CallView]


class ExecutionView(NamedTuple):
    """The work of a session: its open runs, and its tool calls outside of runs."""

    runs: Sequence[RunAtWork]
    tool_calls: Sequence[CallView]


class CheckpointView(NamedTuple):
    """A checkpoint with data as the processor has committed it."""

    operation: str
    checkpoint_id: str
    at_ms: int  # Log time
    kind: CheckpointKind | None
    stage: str | None
    processed_count: int | None  # Items done
    last_item_id: str | None  # The last one done
    bytes_written: int | None
    data_json: str | None  # None in a list of all operations


class SnapshotView(NamedTuple):
    """A snapshot of a session's past, with its content."""

    snapshot_id: str
    state_json: str
    state_schema_version: int
    data_classes: Sequence[DataClass]  # Those of the session at the snapshot
    user_id: str | None


class ArtifactView(NamedTuple):
    """An artifact as the processor has committed it."""

    artifact_id: str
    artifact_type: str
    uri: str  # location of the body
    state: str  # open, complete, soft_deleted or purged
    size_bytes: int  # size of the chunks so far, or of the complete body
    sha256: str | None  # SHA-256 of the complete body, as hex
    run_id: str | None = None  # None if it belongs to the session
    file_name: str | None = None  # name under which people know the content
    media_type: str | None = None


class MessageView(NamedTuple):
    """A turn of a conversation as the processor has committed it."""

    turn: int  # From 1, in the order of the log
    role: str
    content: str | None
    name: str | None = None
    artifact_id: str | None = None  # the artifact that has the text, if it was large
    run_id: str | None = None
    agent_id: str = ""
    service_id: str = ""
    at_ms: int = 0  # When it was accepted, log time


class SharedView(NamedTuple):
    """A result that an agent shares, as the processor has committed it."""

    key: str
    agent_id: str  # Its author
    role: str  # The author's
    task: str
    number: int  # From 1, in the order in which the session's agents shared
    at_ms: int  # When it was accepted, log time
    result_json: str | None
    artifact_id: str | None = None  # the artifact that has the result, if it was large


class HandoverView(NamedTuple):
    """A handover to an agent from another one."""

    from_agent_id: str
    from_snapshot_id: str  # The giver's snapshot
    sync_type: str
    at_ms: int  # When it was accepted, log time


class AgentRecord(NamedTuple):
    """An agent as the processor has committed it."""

    agent_id: str
    role: str
    service_id: str
    current_task: str | None
    completed_tasks: Sequence[str]  # In the order of their completion
    snapshot_id: str
    timestamp_ms: int  # When that snapshot was made, log time
    shared_context: Mapping[str, str | None] | None = None  # all results shared by then; None in a list
    handover: HandoverView | None = None  # the last handover to it


class AgentViewRead(NamedTuple):
    """An agent's view, as the processor reports it: contents are JSON texts."""

    agent_state: AgentRecord
    results: Sequence[SharedView]  # visible ones, in the order in which they were shared
    dependencies: Sequence[str]  # ids of the agents on which it depends


class RunReads(Protocol):
    """Asks the processor about runs and conversations. Thread-safe; blocks.

    With `after`, each method answers once the event at that place has its verdict. Each raises
    `SessionLost`, `RunGone` if the run is no longer kept, `AuthenticationFailed`, `Invalid`,
    `SettingsError`, and `Unavailable` if there is no answer within `timeout_s`.
    """

    def fetch_run(self, session_id: str, run_id: str, after: LogPosition | None, timeout_s: float) -> RunView | None:
        """Return a run; None if there is no such one."""
        ...

    def fetch_steps(self, session_id: str, run_id: str, timeout_s: float) -> Sequence[StepView]:
        """Return the steps of a run in the order in which they began, without their outputs."""
        ...

    def fetch_step(self, session_id: str, run_id: str, name: str, timeout_s: float) -> StepView | None:
        """Return a step with its output; None if there is no such one."""
        ...

    def fetch_calls(self, session_id: str, run_id: str, timeout_s: float) -> Sequence[CallView]:
        """Return the tool calls of a run in the order in which they began, without results."""
        ...

    def fetch_call(
        self, session_id: str, run_id: str | None, idem_key: str, after: LogPosition | None, timeout_s: float
    ) -> CallView | None:
        """Return a tool call with its result; None if there is no such one.

        `run_id`: None if the call belongs to the session.
        """
        ...

    def fetch_execution(self, session_id: str, after: LogPosition | None, timeout_s: float) -> ExecutionView:
        """Return a session's open runs, and its tool calls, in the order in which they began."""
        ...

    def fetch_artifacts(
        self, session_id: str, run_id: str | None, after: LogPosition | None, timeout_s: float
    ) -> Sequence[ArtifactView]:
        """Return the artifacts of a run in the order of their creation; none of an unknown run.

        `run_id`: None for those that belong to the session.
        """
        ...

    def fetch_checkpoints(
        self, session_id: str, run_id: str | None, operation: str | None, after: LogPosition | None, timeout_s: float
    ) -> Sequence[CheckpointView]:
        """Return the checkpoints of a run that have data, the oldest first; none of an unknown run.

        `run_id`: None for those of the session; `operation`: None for all, without data.
        """
        ...

    def fetch_snapshot(self, session_id: str, snapshot_id: str, timeout_s: float) -> SnapshotView | None:
        """Return any snapshot of a session, which may have ended; None if it has no such one.

        The processor folds the session's events for it, as long as Kafka has them. Raises
        `SessionLost` if they are gone, too.
        """
        ...

    def fetch_messages(
        self, session_id: str, last: int, after: LogPosition | None, timeout_s: float
    ) -> Sequence[MessageView]:
        """Return the last turns of a session's conversation in order, at most 200."""
        ...

    def fetch_agents(self, session_id: str, after: LogPosition | None, timeout_s: float) -> Sequence[AgentRecord]:
        """Return a session's agents in the order in which they were registered, without results."""
        ...

    def fetch_agent_view(
        self, session_id: str, agent_id: str, after: LogPosition | None, timeout_s: float
    ) -> AgentViewRead | None:
        """Return an agent's view; None if the agent is not registered."""
        ...


class LogEntry(NamedTuple):
    """A record of the log in which a session's events are; one of others is a time only.

    `key` is None for a time: it stands for records of others, at most one in a second of log time.
    """

    offset: int
    at_ms: int  # When it was appended, log time
    key: bytes | None = None
    value: bytes = b""
    headers: Sequence[tuple[str, bytes]] = ()


class RecordReads(Protocol):
    """Reads the log of a session's events. Thread-safe; blocks."""

    @property
    def has_times(self) -> bool:
        """Whether the log has a record for each passing second while sessions live.

        If not, as in a memory, clocks fire at their exact times.
        """
        ...

    def read_log(self, key: SessionKey, timeout_s: float) -> Iterator[Sequence[LogEntry]]:
        """Yield the entries of a session's log up to its present end, in batches, in order.

        Raises `Unavailable` if a batch takes longer than `timeout_s`, `AuthenticationFailed`.
        """
        ...


class Waits(NamedTuple):
    """The clock by which tool calls wait, and the chance that spreads them."""

    now_s: Callable[[], float]  # Seconds; only differences count
    pause: Callable[[float], None] | None  # None: real time
    uniform: Callable[[], float]  # From 0 to 1, 1 excluded


# Protocols for reading sessions as the processor has committed them, as in `ports`.


class AgentMember(NamedTuple):
    """An agent of a session; its service is a member of the session."""

    agent_id: str
    role: str
    service_id: str
    snapshot_id: str  # the last snapshot of the agent's state


class MigrationView(NamedTuple):
    """A session's last migration to another service."""

    migration_id: str
    target_service: str
    step: str  # offered, prepared, completed or aborted
    reason_code: str | None = None  # Why it was aborted
    from_state: str | None = None  # The session's state before it was prepared

    @property
    def is_open(self) -> bool:
        """Whether the migration is neither completed nor aborted."""
        return self.step in ("offered", "prepared")


class HeldBy(NamedTuple):
    """The operator who holds a session: it is Active again once an operator resumes it."""

    by: str  # The principal; empty if it is not known
    until_ms: int  # Log time at which the session ends, unless it is resumed; ms since the epoch

    def __str__(self) -> str:
        try:
            until = datetime.fromtimestamp(self.until_ms / 1_000, UTC).isoformat(timespec="seconds")
        except (OverflowError, ValueError):  # beyond the calendar, as a limit of centuries is
            until = f"{self.until_ms} ms"
        return f"{self.by or 'an operator'} holds the session until {until}; an operator resumes it"


class SessionView(NamedTuple):
    """A session as the processor has committed it."""

    session_id: str
    state: str  # Idle, Active, Paused, Timeout, Error, Terminated or Archived
    phase: str | None
    epoch: int
    version: int  # version of the content, from 1
    owner_service: str
    state_json: str  # The content
    state_schema_version: int
    snapshot_id: str | None  # id of the last snapshot
    snapshot_state_json: str | None
    limits: Limits
    verdict: Verdict | None  # only if one was asked for
    data_classes: Sequence[DataClass] = ()  # classes of the data that the session handles
    agent_id: str | None = None  # agent of the client that created it or took it over last
    holder: str | None = None  # the producer id of that client
    rejections: Sequence[Rejection] = ()  # the session's last ones
    reason_code: str | None = None  # reason of its state, if the processor gives one
    quotas: bool | None = None  # whether its runs ask for their tenant's quota, if known
    holder_epoch: int | None = None  # the last epoch that a client's event has given, if known
    question: Question | None = None  # the question that the session waits for
    answers: Sequence[Answer] = ()  # those to its last questions, the newest last
    is_answer_new: bool = False  # the last answer has made it Active, and no work was done since
    agents: Sequence[AgentMember] = ()  # in the order of their registration
    migration: MigrationView | None = None  # the last migration; None if there never was one
    awaits_quota: bool = False  # whether it waits until its tenant's quota admits it
    hold: HeldBy | None = None  # the operator who holds it; None without one
    exchanges: int = 0  # turns (exchanges with the user) that have ended
    user_id: str | None = None  # the user that it serves, if the processor says it
    external_id: str | None = None  # the text that was given as its id; None for a UUID
    head_messages: Sequence[SnapshotMessage] = ()  # those that the last snapshot names
    head_tool: ToolExecution | None = None  # the tool call of the last snapshot

    @property
    def is_held(self) -> bool:
        """Whether it is Paused only for its migration: if that is aborted, it is Active again."""
        migration = self.migration
        is_prepared = migration is not None and migration.step == "prepared" and migration.from_state == "Active"
        return is_prepared and self.state == "Paused"


class Control(Protocol):
    """Asks the processor about one session. Thread-safe; blocks."""

    def check_configured(self) -> None:
        """Raise `SettingsError` if no control API is configured."""
        ...

    def fetch_session(self, session_id: str, after: tuple[int, int] | None, timeout_s: float) -> SessionView:
        """Return the session once the event at `after` (partition, offset) has its verdict.

        Raises `SessionLost`, `AuthenticationFailed`, `Invalid`, and `Unavailable` if there is no
        answer within `timeout_s`.
        """
        ...


class FollowedState(NamedTuple):
    """A report of a stream of a session's states."""

    view: SessionView | None  # None: the session is archived
    position: tuple[int, int] | None = None  # (partition, offset) up to which it includes the log


class StateStream(Protocol):
    """An open stream of a session's committed states. Only `close` may be called on any thread."""

    def read_states(self, timeout_s: float) -> Sequence[FollowedState]:
        """Return the next reports, in order; nothing after `timeout_s`.

        Raises `Unavailable` if the stream has ended: another stream may continue it.
        """
        ...

    def close(self) -> None:
        """End the stream, also while another thread reads it. May be called again."""
        ...


class Follows(Protocol):
    """Opens streams of sessions' states. Thread-safe; blocks."""

    def check_configured(self) -> None:
        """Raise `SettingsError` if no control API is configured."""
        ...

    def open_states(self, session_id: str, after: tuple[int, int] | None, timeout_s: float) -> StateStream:
        """Return a stream that begins with the present state, once `after` is judged. Asks once.

        Raises `SessionLost` if there is no such session, `AuthenticationFailed`, `Invalid`,
        `SettingsError`, and `Unavailable` if there is no answer. The stream of an archived session
        reports only the archival.
        """
        ...
