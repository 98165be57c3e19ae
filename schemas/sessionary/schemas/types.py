"""Types that several schemas share: the envelope, enums and small records (`avro/common/*.avsc`).

Times are integers: µs since the epoch, but ms of log time in the state record and its parts. The
enums are those of `sessionary.schemas.enums`. It is one module because readers and writers are
generated for all of it at once.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from sessionary.schemas.enums import (
    AgentRole,
    ArtifactStateName,
    AuditKind,
    CheckpointKind,
    ClockName,
    Compression,
    DataClass,
    ErrorClass,
    MigrationStep,
    PauseKind,
    Phase,
    QuotaClaimState,
    QuotaName,
    QuotaStep,
    RejectionReason,
    RunMode,
    RunStateName,
    SessionStateName,
    SnapshotEncoding,
    StartFailureReason,
    StepStateName,
    TerminationReason,
    ToolCallStateName,
    ToolOutcome,
)


class SessionAgent(NamedTuple):
    """An agent of a session, as the session's row has it."""

    agent_id: str
    role: str
    service_id: str  # The agent's service, which is a member of the session
    snapshot_id: str  # The last snapshot of the agent's state


class SharedResult(NamedTuple):
    """A result that an agent shares with the other agents of its session."""

    key: str
    task: str
    number: int  # From 1, in the order in which the session's agents shared
    at: int  # Log time, ms
    result_json: str | None = None
    artifact_id: str | None = None


class AgentHandover(NamedTuple):
    """A hand-over that an agent received from another agent of its session."""

    from_agent_id: str
    from_snapshot_id: str  # The giver's snapshot
    sync_type: str
    at: int  # Log time, ms


class FencedBeats(NamedTuple):
    """The producers whose heartbeats were rejected because their epoch is over.

    Attributes:
        epoch: The session's epoch at the time.
        id_hashes: The producers with one such heartbeat in this epoch, at most 16: the first 8
            bytes of SHA-256 of the id, big-endian and signed.
    """

    epoch: int
    id_hashes: Sequence[int]


class Migration(NamedTuple):
    """A session's last migration to another service.

    Attributes:
        migration_id: UUID, chosen by the sender of the offer.
        target_service: The service that is to own the session.
        step: `offered`, `prepared` once the target has loaded the session, and then the outcome.
        offered_at: Log time of the offer, in ms.
        ttl_ms: The migration is aborted after so many ms.
        from_state: The session's state before it was prepared.
        mismatches: Number of times that the target accepted another state than the session's.
        reason_code: The reason of the abort; else empty.
    """

    migration_id: str
    target_service: str
    step: MigrationStep
    offered_at: int
    ttl_ms: int
    from_state: SessionStateName
    mismatches: int = 0
    reason_code: str = ""

    @property
    def is_open(self) -> bool:
        """Whether it is neither completed nor aborted."""
        return self.step in ("offered", "prepared")

    @property
    def is_prepared(self) -> bool:
        """Whether the target has loaded the session, and proves that it has the same state."""
        return self.step == "prepared"

    @property
    def holds_session(self) -> bool:
        """Whether the session is Paused for it alone: it was Active before."""
        return self.is_prepared and self.from_state == "Active"

    @property
    def expires_at(self) -> int:
        """When it is aborted, ms of log time."""
        return self.offered_at + self.ttl_ms


class ClockRepair(NamedTuple):
    """A repair of a partition's clock: the clock was set to the broker's time.

    Attributes:
        number: From 1, by partition.
        until_offset: Records below this offset do not move the clock: the repair is later.
        clock_ms: The time to which the clock was set.
        shift_ms: The time by which the clock was set forward; the times of older rows move with it.
        back_ms: The time by which the clock was set back; later row times become clock_ms.
    """

    number: int
    until_offset: int
    clock_ms: int
    shift_ms: int
    back_ms: int


class PartitionDecision(NamedTuple):
    """A decision about a partition: an operator's, or the processor's own."""

    event_type: str  # event type of the decision's audit record
    at_offset: int  # the partition's offset; the audit record has the same source_offset
    first_offset: int | None  # first offset that the decision covers; None if it covers none
    last_offset: int | None
    clock_ms: int  # the partition's clock after the decision
    principal: str


class Question(NamedTuple):
    """A question that a session waits with, in state Paused.

    Attributes:
        question_id: Id of the event that asked the question.
        text: The question, for people.
        answer_ms: Time for an answer, in ms from the pause on; then the question is denied.
    """

    question_id: str
    text: str
    answer_ms: int


class SessionHold(NamedTuple):
    """An operator's hold of a session, in state Paused.

    Attributes:
        by: The operator's principal; empty if the event named none.
        hold_ms: Time of the hold, in ms from the pause on; then the session ends.
    """

    by: str
    hold_ms: int


class Answer(NamedTuple):
    """The answer to a session's last question.

    Attributes:
        question_id: The question's id.
        approved: False if the question was denied, or not answered in time.
        reason_code: `approved`, `denied` or `expired`.
        by: The principal that answered; empty if the question expired.
        text: The answer's text, for people.
    """

    question_id: str
    approved: bool
    reason_code: str
    by: str
    text: str | None = None


class RunQuota(NamedTuple):
    """A run's claim to a slot of its tenant's quota.

    Attributes:
        offset: The offset of the requesting event; with session and run it names the claim.
        event_type: Type of the requesting event: the change that the grant allows.
        event_id: Id of the requesting event.
        granted: True if the run has the slot; else the run waits.
    """

    offset: int
    event_type: str
    event_id: str
    granted: bool


class SessionQuota(NamedTuple):
    """A session's claim to a slot of its tenant's quota.

    Attributes:
        offset: The offset of the event that created the session; with the session it names the
            claim.
        event_id: Id of this event.
        granted: True if the session has the slot; else the session waits.
    """

    offset: int
    event_id: str
    granted: bool


class QuotaClaim(NamedTuple):
    """A claim to a tenant's quota that has not ended."""

    session_id: str
    run_id: str  # Empty if the session itself requested the slot
    offset: int  # Offset of the requesting event, in its session's partition
    state: QuotaClaimState


class RuleSet(NamedTuple):
    """The rules by which a partition is judged.

    Attributes:
        version: From 1; each version is described in ARCHITECTURE.md.
        row_bytes_max: Limit of a row's key and value; an event that would exceed it is rejected.
        finished_run_days: Days for which a run under these rules can be read after its end.
        output_bytes_max: Limit of an audit record, and of a request to a service; a longer one is
            truncated.
        rejected_bytes_max: Limit of a rejected record; a longer one is truncated.
        quotas: True if runs that begin request a slot of their tenant's quota.
        session_quotas: True if created sessions request a slot of their tenant's quota.
        resume_ms: Time after its failure in which a run may be resumed.
        token_quotas: True if used tokens are reported to the quotas that are in use.
    """

    version: int
    row_bytes_max: int
    finished_run_days: int
    output_bytes_max: int
    rejected_bytes_max: int
    quotas: bool = False
    session_quotas: bool = False
    resume_ms: int = 86_400_000
    token_quotas: bool = False


class AnnouncedRules(NamedTuple):
    """Rules that begin with the partition's next record of `RulesActivation`.

    Attributes:
        from_offset: The partition's offset at the announcement; the rules begin there or later.
        principal: The principal that activated the rules.
    """

    version: int
    row_bytes_max: int
    finished_run_days: int
    output_bytes_max: int
    rejected_bytes_max: int
    quotas: bool
    session_quotas: bool
    resume_ms: int
    token_quotas: bool
    from_offset: int
    principal: str

    @property
    def rules(self) -> RuleSet:
        """The rules that begin."""
        return RuleSet._make(self[: len(RuleSet._fields)])


class Checkpoint(NamedTuple):
    """The last checkpoint of a run, without its data, which are in the event.

    Attributes:
        checkpoint_id: Its id.
        operation: The run's operation at the time.
        at: Log time of the checkpoint, ms.
        kind: The point that the run has reached, if it is one of the usual points.
        stage: The operation's stage.
        processed_count: Items done.
        last_item_id: The last done item.
        bytes_written: Bytes written.
    """

    checkpoint_id: str
    operation: str
    at: int
    kind: CheckpointKind | None = None
    stage: str | None = None
    processed_count: int | None = None
    last_item_id: str | None = None
    bytes_written: int | None = None


class SavedCheckpoint(NamedTuple):
    """A checkpoint with its data, or a snapshot with its content.

    Attributes:
        checkpoint_id: Its id; of a snapshot, the snapshot's.
        at: Log time of the checkpoint, ms.
        data_json: Its data as JSON; of a snapshot, the state.
        kind: The point that the run has reached, if it is one of the usual points.
        stage: The operation's stage.
        processed_count: Items done.
        last_item_id: The last done item.
        bytes_written: Bytes written.
    """

    checkpoint_id: str
    at: int
    data_json: str
    kind: CheckpointKind | None = None
    stage: str | None = None
    processed_count: int | None = None
    last_item_id: str | None = None
    bytes_written: int | None = None


class OpenTransaction(NamedTuple):
    """A transaction on a session's content that is pending."""

    transaction_id: str
    started_at: int  # Log time of its begin, ms
    agent_id: str


class OpenRun(NamedTuple):
    """A run of a session that has not finished."""

    run_id: str
    detached: bool


class ErrorInfo(NamedTuple):
    """An error as an agent reports it.

    Attributes:
        error_class: `retryable` if the same work may succeed later, else `fatal`.
        code: Short and stable, for programs; for example the exception's name.
        message: The error's text, for people.
    """

    error_class: ErrorClass
    code: str
    message: str


class Limits(NamedTuple):
    """Limits that a session requests; None means the default (`sessionary.schemas.limits`).

    Name only values that differ: `Limits(idle_ms=600_000)`. Fields that end in `_ms` are
    milliseconds, `context_limit_bytes` is bytes. A value outside its recommended range needs
    `override=True`, and is reported in the audit trail.

    Attributes:
        init_ms: Longest time in Idle, from creation to start.
        model_ms: The model's part of the inactivity budget; recommended 30,000 to 60,000.
        tool_ms: A tool's part of the inactivity budget; recommended 10,000 to 30,000.
        network_ms: The network's part of the inactivity budget; recommended 5,000 to 15,000.
        idle_ms: Longest time in Active without work; heartbeats are no work.
        attached_run_ms: Longest time of an attached run from its start, or from a pause of its
            session on; then it fails.
        max_duration_ms: Longest life from the start on; Paused, and time between turns, stop the
            clock.
        grace_ms: Time in Timeout until the session is terminated.
        hold_ms: Time in Paused until the session is terminated.
        user_idle_ms: Time between turns until the session ends; recommended 60,000 to
            2,592,000,000.
        recovery_ms: Time in Error until the session is terminated.
        archive_delay_ms: Time from a confirmed clean-up to Archived.
        release_limit_ms: Time in Terminated until Archived if no clean-up is confirmed.
        context_limit_bytes: Context size above which the audit trail gets a record; recommended
            50,000,000 to 200,000,000.
        override: Values outside the recommended ranges are intended.
    """

    init_ms: int | None = None
    model_ms: int | None = None
    tool_ms: int | None = None
    network_ms: int | None = None
    idle_ms: int | None = None
    attached_run_ms: int | None = None
    max_duration_ms: int | None = None
    grace_ms: int | None = None
    hold_ms: int | None = None
    user_idle_ms: int | None = None
    recovery_ms: int | None = None
    archive_delay_ms: int | None = None
    release_limit_ms: int | None = None
    context_limit_bytes: int | None = None
    override: bool = False


class SnapshotMessage(NamedTuple):
    """A message in the model's context, by its hash.

    The hash is the SHA-256 of its text in UTF-8, as hex.
    """

    role: str
    content_hash: str
    tokens: int | None = None


class ToolExecution(NamedTuple):
    """The tool call that a snapshot was taken before or after.

    Attributes:
        tool_call_id: The call's id, as its events have it.
        tool_name: The tool.
        parameters_json: The arguments as JSON; large ones are a reference to the call's event.
        status: None before the call, else `succeeded` or `failed`.
        data_json: The result, or the error, as JSON; a large one is a reference to the call's
            event.
        execution_time_ms: How long the call took.
    """

    tool_call_id: str
    tool_name: str
    parameters_json: str
    status: str | None = None
    data_json: str | None = None
    execution_time_ms: int | None = None


class AccessedResource(NamedTuple):
    """An access to a resource.

    Attributes:
        uri: The resource.
        accessed_at: The agent's clock, in µs since the epoch.
        operation: What was done to it, such as `read`.
    """

    uri: str
    accessed_at: int
    operation: str


class Snapshot(NamedTuple):
    """A session's content at one version.

    It also says what the agent did. Snapshots form a chain: each names its parent.
    `sessionary.schemas.snapshots` makes and reads deltas and compressed snapshots; the session's
    row always has the whole content of the last one.

    Attributes:
        snapshot_id: `snap_` and 12 hex digits, unique in the session.
        parent_snapshot_id: The snapshot before it; None for the first.
        schema_version: Version of the schema of `state_json`, which the agent chooses.
        state_json: The state as JSON if `encoding` is `full`; of a delta, the changes since the
            parent as a JSON Patch (RFC 6902). Empty if `body` has it.
        context: The model's context as text, if it is stored with the state.
        content_hash: SHA-256 of the whole content (`sessionary.schemas.ids.snapshot_hash`), as hex.
        encoding: `full` for the whole content, `delta` for the changes of state, context and
            messages since the parent.
        compression: The compression of `body`: `none` or `gzip`.
        conversation_id: The conversation.
        turn: Number of the turn of the conversation; None outside of turns.
        messages: The messages in the model's context, oldest first.
        total_tokens: Tokens of the model's context.
        tool: The tool call that the snapshot was taken before or after.
        resources: Resources accessed since the snapshot before.
        metadata: Such as `server_version` and `protocol_version`.
        content_bytes: Size of state, context and messages in bytes, before delta and compression;
            0 if it was not counted.
        body: The compressed `state_json` and context; None without compression.
    """

    snapshot_id: str
    parent_snapshot_id: str | None
    schema_version: int
    state_json: str
    context: str | None
    content_hash: str
    encoding: SnapshotEncoding
    compression: Compression
    conversation_id: str | None = None
    turn: int | None = None
    messages: Sequence[SnapshotMessage] = ()
    total_tokens: int | None = None
    tool: ToolExecution | None = None
    resources: Sequence[AccessedResource] = ()
    metadata: Mapping[str, str] = MappingProxyType({})
    content_bytes: int = 0
    body: bytes | None = None


class CleanupAction(NamedTuple):
    """One step of a clean-up, with its success.

    Attributes:
        action: Name of the step, as the request has it.
        done: False if it failed; `detail` has the reason.
        at: Time of the end; µs since the epoch.
        detail: Details, for people.
    """

    action: str
    done: bool
    at: int
    detail: str | None = None


class Candidate(NamedTuple):
    """An option that a model weighed, with its score."""

    name: str
    score: float


class SessionLimits(NamedTuple):
    """A session's limits with defaults filled in; the fields are those of `Limits`."""

    init_ms: int
    model_ms: int
    tool_ms: int
    network_ms: int
    idle_ms: int
    attached_run_ms: int
    max_duration_ms: int
    grace_ms: int
    hold_ms: int
    user_idle_ms: int
    recovery_ms: int
    archive_delay_ms: int
    release_limit_ms: int
    context_limit_bytes: int


class SeqRange(NamedTuple):
    """A range of sequence numbers, both ends included."""

    first: int
    last: int


class ProducerLedger(NamedTuple):
    """The sequence numbers of one producer in one session."""

    producer_id: str
    last_seq: int
    missing: Sequence[SeqRange] = ()  # Skipped numbers, oldest first
    epoch: int = 0  # The session's epoch at the producer's last event
    last_at: int = 0  # Log time of the producer's last event, ms
    inexact_to: int = 0  # Numbers up to this one may have been applied although `missing` has them
    # Hashes of the ids of its last events, two bytes for each number, the last one last; zero if
    # the number has no event.
    recent_ids: bytes | None = None
    offsets: Sequence[int] = ()  # Offsets of the last 8 events: the newest, then the distance to each older one


class ForgottenProducer(NamedTuple):
    """The remains of a producer that was dropped from the ledger for lack of room."""

    id_hash: int  # The first 8 bytes of SHA-256 of its id, big-endian and signed
    last_seq: int
    epoch: int  # The session's epoch at the producer's last event


class Rejection(NamedTuple):
    """One of a session's last rejections."""

    offset: int
    reason: RejectionReason
    event_id: str


class Cleanup(NamedTuple):
    """A requested clean-up."""

    cleanup_id: str
    requested_at: int  # Log time, ms
    released: bool
    service_id: str = ""  # The service that is asked
    epoch: int = 0  # The session's epoch at the request
    reason_code: str = ""  # The reason of the transition
    actions: Sequence[str] = ()  # The requested actions


class Envelope(NamedTuple):
    """The fields that every event carries.

    Attributes:
        event_id: UUID, the event's identity; also its CloudEvents id.
        event_type: Name of the payload's type (`EVENT_TYPES`).
        schema_version: Version of the payload's schema, from 1.
        tenant_id: The tenant; part of the record key.
        session_id: UUID of RFC 9562 in lower case, unique per tenant; part of the record key.
        user_id: The user; personal data.
        agent_id: The agent that works in the session.
        agent_role: Its role, if there are several.
        service_id: The service that sends the event.
        actor: Name of the principal that requested the event; never a token.
        epoch: The session's epoch as the client knows it; only processors raise it.
        producer_id: UUID of the client process.
        producer_seq: Number per session and producer, from 1; 0 for types without one.
        run_id: The event's run, if any.
        run_seq: Number within the run, as the client counts; stored, not trusted.
        step_id: The event's step, if any.
        causation_id: Id of the event that caused this one, if any.
        occurred_at: The agent's clock in µs since the epoch: reported, never used by the judge.
        data_classes: Classes of the data that the session handles from now on.
        context_bytes: Size of the model's context, in bytes.
        server_version: Version of the agent's server.
        protocol_version: Version of the agent's protocol.
    """

    event_id: str
    event_type: str
    schema_version: int
    tenant_id: str
    session_id: str
    user_id: str | None
    agent_id: str
    agent_role: str | None
    service_id: str
    actor: str | None
    epoch: int
    producer_id: str
    producer_seq: int
    run_id: str | None
    run_seq: int | None
    step_id: str | None
    causation_id: str | None
    occurred_at: int
    data_classes: Sequence[DataClass] = ()
    context_bytes: int | None = None
    server_version: str | None = None
    protocol_version: str | None = None


__all__ = [
    "AccessedResource",
    "AgentHandover",
    "AgentRole",
    "AnnouncedRules",
    "Answer",
    "ArtifactStateName",
    "AuditKind",
    "Candidate",
    "Checkpoint",
    "CheckpointKind",
    "Cleanup",
    "CleanupAction",
    "ClockName",
    "ClockRepair",
    "Compression",
    "DataClass",
    "Envelope",
    "ErrorClass",
    "ErrorInfo",
    "FencedBeats",
    "ForgottenProducer",
    "Limits",
    "Migration",
    "MigrationStep",
    "OpenRun",
    "OpenTransaction",
    "PartitionDecision",
    "PauseKind",
    "Phase",
    "ProducerLedger",
    "Question",
    "QuotaClaim",
    "QuotaClaimState",
    "QuotaName",
    "QuotaStep",
    "Rejection",
    "RejectionReason",
    "RuleSet",
    "RunMode",
    "RunQuota",
    "RunStateName",
    "SavedCheckpoint",
    "SeqRange",
    "SessionAgent",
    "SessionLimits",
    "SessionQuota",
    "SessionStateName",
    "SharedResult",
    "Snapshot",
    "SnapshotEncoding",
    "SnapshotMessage",
    "StartFailureReason",
    "StepStateName",
    "TerminationReason",
    "ToolCallStateName",
    "ToolExecution",
    "ToolOutcome",
]
