"""Events of a session: lifecycle, activity, state and clean-up.

They are in one module because the schemas' documents list them as one family, in this order.
"""

from collections.abc import Sequence
from typing import NamedTuple

from sessionary.schemas.types import (
    AgentRole,
    Candidate,
    CheckpointKind,
    CleanupAction,
    ClockName,
    ErrorInfo,
    Limits,
    PauseKind,
    Phase,
    Snapshot,
    StartFailureReason,
    TerminationReason,
)


class SessionCreated(NamedTuple):
    """Registers a session: state Idle, epoch 1 (transition T01).

    Attributes:
        limits: Limits that differ from the defaults.
        snapshot: The initial state.
        parent_session_id: The parent session, if any.
        restored_from_snapshot_id: The snapshot that this session was restored from, if any.
        external_id: The text that the caller gave as the session's id; None for a UUID. Personal
            data.
    """

    limits: Limits
    snapshot: Snapshot
    parent_session_id: str | None = None
    restored_from_snapshot_id: str | None = None
    external_id: str | None = None


class SessionPhaseChanged(NamedTuple):
    """Moves the phase within the state; phases have an order, which is checked."""

    phase: Phase


class SessionStarted(NamedTuple):
    """The connection is made: Idle to Active (transition T02)."""


class SessionStartFailed(NamedTuple):
    """The session never became Active: Idle to Terminated (transition T03)."""

    reason: StartFailureReason
    message: str | None = None


class SessionPaused(NamedTuple):
    """The session is held (transition T04): Active to Paused; by an operator also one in Paused.

    Attributes:
        kind: The reason for which the session is held.
        reason: The same for people.
        snapshot: The state at this point; required, except for an operator's pause.
        question: The question to a person, if the session waits for an answer.
        answer_ms: Time for an answer, in ms of log time; None: the limit `hold_ms`.
        as_operator: An operator requested the event, by the control API.
        hold_ms: Time that an operator holds the session for, in ms of log time; None: the limit
            `hold_ms`.
    """

    kind: PauseKind
    reason: str | None = None
    snapshot: Snapshot | None = None
    question: str | None = None
    answer_ms: int | None = None
    as_operator: bool = False
    hold_ms: int | None = None


class SessionResumed(NamedTuple):
    """Requests the state Active again, from Paused (transition T05) or Timeout (T07).

    If it is applied, the processor raises the epoch.

    Attributes:
        snapshot_id: The snapshot from which work continues; if given, the session's last.
        resume_plan: The agent's next actions, for people.
        approved: The answer to the session's open question; None: no answer.
        question_id: The answered question; if given, it must be the open question.
        message: The operator's message, for people.
        as_operator: An operator requested the event, by the control API.
    """

    snapshot_id: str | None = None
    resume_plan: str | None = None
    approved: bool | None = None
    question_id: str | None = None
    message: str | None = None
    as_operator: bool = False


class SessionTimedOut(NamedTuple):
    """A limit has passed: Active to Timeout (transition T06); only a processor makes it.

    Attributes:
        clock: The clock that fired.
        limit_ms: Its limit in ms.
        due_at: The clock's deadline; µs since the epoch.
    """

    clock: ClockName
    limit_ms: int
    due_at: int


class SessionErrored(NamedTuple):
    """An error is being handled: Active to Error (transition T10)."""

    error: ErrorInfo


class SessionRecovered(NamedTuple):
    """The error is handled: Error to Active (transition T11).

    If it is applied, the processor raises the epoch.
    """

    resume_plan: str | None = None


class SessionTerminated(NamedTuple):
    """The session ends, from Timeout (transition T08), Paused (T09), Error (T12) or Active (T13).

    Attributes:
        reason: The reason; the allowed reasons depend on the state.
        message: The same for people.
        snapshot: The last state, if it is not sent yet.
        as_operator: An operator requested the event, by the control API.
    """

    reason: TerminationReason
    message: str | None = None
    snapshot: Snapshot | None = None
    as_operator: bool = False


class SessionArchived(NamedTuple):
    """The session is over: Terminated to Archived (transition T14); only a processor makes it.

    Attributes:
        retain_until: Time from which the session's records may be deleted; µs since the epoch.
    """

    retain_until: int


class SessionTakenOver(NamedTuple):
    """The sender takes the session over from the process that holds it; the state stays.

    If it is applied, the processor raises the epoch, and the sender's service owns the session.

    Attributes:
        reason: The reason, for people.
        as_operator: The control API sends it for an operator, whom the envelope's `actor` names.
    """

    reason: str | None = None
    as_operator: bool = False


class RequestsRepeated(NamedTuple):
    """An operator has the open requests sent again: clean-ups, tasks, claims, a migration's step.

    Attributes:
        reason: The reason, for people.
        as_operator: The control API sends it for an operator, whom the envelope's `actor` names.
    """

    reason: str | None = None
    as_operator: bool = False


class SessionActivity(NamedTuple):
    """Work was done; restarts the inactivity and idle clocks.

    Attributes:
        kind: The kind of work, in the agent's words.
        text: Details, for people.
        uri: The resource that was accessed, at the time `occurred_at`; the kind is then the
            operation, such as `read`.
    """

    kind: str
    text: str | None = None
    uri: str | None = None


class Heartbeat(NamedTuple):
    """A sign of life, which restarts the inactivity clock. It has no number and is never spooled.

    Attributes:
        last_seq: The last sequence number that the client used in this session.
        elapsed_s: Running time of the run that the envelope names, in seconds.
    """

    last_seq: int
    elapsed_s: float | None = None


class ProgressReported(NamedTuple):
    """Progress of the current work.

    Attributes:
        progress: The amount that is done, in the agent's unit.
        total: The whole amount, in the same unit.
        message: The same for people.
    """

    progress: float
    total: float | None = None
    message: str | None = None


class StateUpdated(NamedTuple):
    """New content of the session, as version `base_version` + 1.

    Attributes:
        base_version: The version that the agent changed; rejected if it is not the current one.
        new_version: `base_version` + 1.
        state_json: The whole state as JSON.
        updating_at: Time at which the agent began to update the state; µs since the epoch. With it
            the event also replaces the two changes of phase.
        persisting_at: Time at which the agent began to send the new state; µs since the epoch.
    """

    base_version: int
    new_version: int
    state_json: str
    updating_at: int | None = None
    persisting_at: int | None = None


class TxnBegun(NamedTuple):
    """A transaction on the session's content begins."""

    transaction_id: str


class TxnCommitted(NamedTuple):
    """A transaction ends: its pending content becomes the session's.

    Attributes:
        transaction_id: The transaction.
        base_version: The version that the transaction changed; rejected if it is not the current
            one.
        new_version: `base_version` + 1.
        state_json: The whole state as JSON.
    """

    transaction_id: str
    base_version: int
    new_version: int
    state_json: str


class TxnRolledBack(NamedTuple):
    """A transaction ends without effect."""

    transaction_id: str
    reason: str | None = None  # Why, for people


class SessionRolledBack(NamedTuple):
    """The content of an older snapshot becomes the session's, as a new version.

    The processor takes the content from its own record of the snapshot, if it keeps that.

    Attributes:
        snapshot_id: The snapshot.
        base_version: The version that the agent leaves; rejected if it is not the current one.
        new_version: `base_version` + 1.
        reason: Why, for people.
        state_json: Content of the snapshot, for one whose content the processor no longer keeps.
    """

    snapshot_id: str
    base_version: int
    new_version: int
    reason: str | None = None
    state_json: str | None = None


class ResourcesReleased(NamedTuple):
    """Confirms a clean-up; the epoch is not checked.

    Attributes:
        cleanup_id: The id of the request.
        actions: Every requested step, and whether it was done.
        bytes_released: Memory that was freed, in bytes, if known. The client gives the context's
            size if every action was done.
        host_lost: The host is gone, with its resources; such clean-ups are counted separately.
    """

    cleanup_id: str
    actions: Sequence[CleanupAction]
    bytes_released: int | None
    host_lost: bool


# Events of a session that moves to another service.
#
# The owner, or an operator, offers the session to a target. The target loads the session while the
# owner still works, and reports this. Then the processor holds the session, and the target accepts
# its state.


class SessionMigrationOffered(NamedTuple):
    """The session is to move to another service; the owner does not change yet.

    Attributes:
        migration_id: UUID, chosen by the sender.
        target_service: The service that is to own the session.
        ttl_ms: Time in ms after which the migration is aborted if it is not completed.
        reason: The reason, for people.
        as_operator: The control API sends it for an operator, whom the envelope's `actor` names.
    """

    migration_id: str
    target_service: str
    ttl_ms: int
    reason: str | None = None
    as_operator: bool = False


class SessionMigrationLoaded(NamedTuple):
    """The target has loaded the session; the processor may hold it until the target accepts it.

    Attributes:
        migration_id: The migration.
    """

    migration_id: str


class SessionMigrationAccepted(NamedTuple):
    """The target takes the session over, if it has the session's state.

    Attributes:
        target_service: The sender's service.
        migration_id: The migration.
        version: Version of the target's state.
        content_hash: SHA-256 of the target's state, as the target computed it, in hex.
    """

    target_service: str
    migration_id: str | None = None
    version: int | None = None
    content_hash: str | None = None


class SessionMigrationCompleted(NamedTuple):
    """The session has a new owner.

    Only a processor may report this, by an audit record.
    """

    from_service: str
    to_service: str


class SessionMigrationAborted(NamedTuple):
    """The migration is aborted; the owner does not change.

    Attributes:
        reason: The reason, for people.
        migration_id: The migration.
        as_operator: The control API sends it for an operator, whom the envelope's `actor` names.
    """

    reason: str | None = None
    migration_id: str | None = None
    as_operator: bool = False


# Events of content: conversation, snapshots and checkpoints, artifacts.


class LlmDecision(NamedTuple):
    """A choice among candidates or of tools, with what led to it.

    It names candidates or tools: a model's text alone is a `MessageAppended`.

    Attributes:
        model: Name of the model.
        chosen_tools: Tools that the decision calls.
        inputs_json: What it was made from, as JSON.
        candidates: Options with their scores.
        threshold: The score that the chosen option had to reach.
        choice: The chosen option.
        output_text: The reasoning, for people.
        prompt_id: The prompt that asked the model.
        prompt_version: Version of that prompt.
        parameters_json: Parameters of the model, such as its temperature, as JSON.
        tokens_in: Tokens of the prompt. Totals count `UsageRecorded`, which has them too.
        tokens_out: Tokens of the answer.
        model_cost_usd_nanos: Cost, in billionths of a US dollar.
    """

    model: str | None = None
    chosen_tools: Sequence[str] = ()
    inputs_json: str | None = None
    candidates: Sequence[Candidate] = ()
    threshold: float | None = None
    choice: str | None = None
    output_text: str | None = None
    prompt_id: str | None = None
    prompt_version: str | None = None
    parameters_json: str | None = None
    tokens_in: int = 0
    tokens_out: int = 0
    model_cost_usd_nanos: int = 0


class MessageAppended(NamedTuple):
    """A message of the conversation."""

    role: str
    content: str | None = None
    artifact_id: str | None = None
    name: str | None = None


class SnapshotCreated(NamedTuple):
    """A new snapshot, which becomes the last of the session's chain."""

    snapshot: Snapshot


class CheckpointSaved(NamedTuple):
    """Progress of a long operation, from which it can be continued.

    `kind`: the point that the run has reached, if it is one of the usual points. With
    `data_json` the checkpoint is kept, and can be loaded.
    """

    checkpoint_id: str
    operation: str
    stage: str | None = None
    processed_count: int | None = None
    last_item_id: str | None = None
    bytes_written: int | None = None
    data_json: str | None = None
    kind: CheckpointKind | None = None


class ArtifactCreated(NamedTuple):
    """An artifact is opened.

    Attributes:
        artifact_id: UUID.
        artifact_type: The type, in the agent's words.
        uri: Address of the body.
        file_name: The name under which people know the content, without a folder.
        media_type: The media type of the content, such as `application/pdf`.
    """

    artifact_id: str
    artifact_type: str
    uri: str
    file_name: str | None = None
    media_type: str | None = None


class ArtifactChunkAppended(NamedTuple):
    """Bytes were appended to an artifact at an offset."""

    artifact_id: str
    offset: int
    length: int
    sha256: str | None = None


class ArtifactCompleted(NamedTuple):
    """An artifact is complete."""

    artifact_id: str
    size_bytes: int
    sha256: str


class ArtifactSoftDeleted(NamedTuple):
    """An artifact is marked as deleted; its body is removed a week later."""

    artifact_id: str
    reason: str | None = None


class ArtifactPurged(NamedTuple):
    """An artifact's body is removed; its hash and metadata stay."""

    artifact_id: str


# Events of collaboration: agents of one session.


class AgentRegistered(NamedTuple):
    """An agent joins the session.

    Attributes:
        role: The agent's role, which decides its view: researcher, analyzer, writer, or other.
        agent_id: The agent that joins; None: the sender.
        service_id: The agent's service, a member of the session from then on; None: the sender's
            service.
        as_operator: An operator registers the agent.
        known_role: The role as one of the known ones; `other` for any other, which `role` names.
            `UNKNOWN` from a sender that does not say it.
    """

    role: str
    agent_id: str | None = None
    service_id: str | None = None
    as_operator: bool = False
    known_role: AgentRole = "UNKNOWN"


class AgentTaskUpdated(NamedTuple):
    """An agent's task changes.

    Attributes:
        task: The task that is the agent's from now on, or that it completed; None: its current one.
        completed: The task is done.
        from_snapshot_id: The agent's last snapshot, as the sender knows it.
        to_snapshot_id: The new snapshot; None: it has the event's id.
        agent_id: The agent; None: the sender.
        result_json: The task's result that the agent shares; a larger result is an artifact.
        artifact_id: The artifact that has the result.
        shared_key: The key under which the result is shared; None: the agent's id, `_` and the
            task.
    """

    task: str | None
    completed: bool
    from_snapshot_id: str | None = None
    to_snapshot_id: str | None = None
    agent_id: str | None = None
    result_json: str | None = None
    artifact_id: str | None = None
    shared_key: str | None = None


class ContextSynced(NamedTuple):
    """Context was passed from one agent to another.

    Attributes:
        from_agent_id: The giver.
        to_agent_id: The taker.
        sync_type: The reason, for programs: `handoff`, or any other.
        shared_json: Data that is passed besides the shared results.
        from_snapshot_id: The giver's snapshot that is handed over; None: the giver's last snapshot.
    """

    from_agent_id: str
    to_agent_id: str
    sync_type: str
    shared_json: str | None = None
    from_snapshot_id: str | None = None


# Events of usage: tokens and cost.


class UsageRecorded(NamedTuple):
    """Tokens and cost of one call.

    Names of the last fields are those of OpenTelemetry's conventions for generative AI.

    Attributes:
        model: The model, if one was called.
        tokens_in: Tokens of the input, with those that a cache gave or took.
        tokens_out: Tokens of the output, with those of reasoning.
        model_cost_usd_nanos: Cost of the model, in billionths of a US dollar.
        tool_cost_usd_nanos: Cost of tools, in billionths of a US dollar.
        is_timeout_retry: The call repeats one that timed out.
        retry_of: The call that is repeated, if any.
        cache_read_input_tokens: Tokens of the input that the provider had in its cache.
        cache_write_input_tokens: Tokens of the input that the provider wrote into its cache.
        reasoning_output_tokens: Tokens of the output that were spent on reasoning.
        response_id: The answer's id at the provider.
        time_to_first_token_ms: From the request to the first token of the answer, in ms.
        retries: Requests that were repeated before the call had its answer.
    """

    model: str | None
    tokens_in: int
    tokens_out: int
    model_cost_usd_nanos: int
    tool_cost_usd_nanos: int
    is_timeout_retry: bool
    retry_of: str | None = None
    cache_read_input_tokens: int = 0
    cache_write_input_tokens: int = 0
    reasoning_output_tokens: int = 0
    response_id: str | None = None
    time_to_first_token_ms: int | None = None
    retries: int = 0
