"""Records that processors write (`avro/records/*.avsc`).

Times are µs since the epoch; in the changelog's records (`SessionState`, `Gravestone`, `Position`)
they are ms of log time.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from sessionary.schemas.rules import FIRST_RULES
from sessionary.schemas.types import (
    AnnouncedRules,
    AuditKind,
    Cleanup,
    ClockRepair,
    DataClass,
    ErrorClass,
    ErrorInfo,
    ForgottenProducer,
    OpenRun,
    Phase,
    ProducerLedger,
    Refusal,
    RefusalReason,
    RuleSet,
    RunMode,
    RunStateName,
    SessionLimits,
    SessionStateName,
    Snapshot,
)


class Tick(NamedTuple):
    """Says on the events topic that time has passed. The broker stamps it.

    Attributes:
        instance: The processor that sent it.
    """

    instance: str


class RulesActivation(NamedTuple):
    """Says on the events topic that a partition is judged by other rules from this record on.

    It counts only if the partition's owner announced it in the changelog.

    Attributes:
        version: See `RuleSet`.
        row_bytes_max: See `RuleSet`.
        principal: Who activated them.
        instance: The processor that sent it.
    """

    version: int
    row_bytes_max: int
    principal: str
    instance: str


class AuditRecord(NamedTuple):
    """One line of the audit trail; only processors write it."""

    audit_id: str  # UUIDv5 of (tenant, session, audit_seq, source)
    tenant_id: str
    session_id: str
    audit_seq: int  # Per session, from 1, without gaps; 0 if no session is known
    kind: AuditKind
    transition: str | None  # Id of the transition, from T01 to T14; None for other kinds
    event_id: str | None  # Of the event that caused it
    event_type: str
    from_state: SessionStateName
    to_state: SessionStateName
    reason_code: str
    reason: str  # For people; names the limit that was hit
    security: bool
    cleanup_id: str | None
    cleanup_actions: Sequence[str]  # Requested; not done yet
    actions_done: Sequence[str]
    actions_failed: Sequence[str]
    bytes_released: int | None
    host_lost: bool
    compliance_tags: Sequence[str]
    user_id: str | None  # Personal data
    agent_id: str | None
    agent_role: str | None
    service_id: str | None
    owner_service: str | None
    actor: str | None
    epoch: int
    version: int
    producer_id: str | None
    producer_seq: int | None
    gap_first: int | None
    gap_last: int | None
    context_bytes: int | None
    occurred_at: int  # Of a timeout: when it was due
    appended_at: int  # Log time of the record that caused it
    due_at: int | None  # Of a timeout: when it was due
    fired_at: int | None  # Of a timeout: log time of the record with which it fired
    source_partition: int
    source_offset: int
    source_n: int  # Which of that record's outcomes
    batch_number: int  # The transaction that wrote it
    retention_class: str
    retain_until: int  # The record may be deleted then
    personal_until: int | None = None  # Personal columns are blanked then
    run_id: str | None = None  # Of the run, for records of the kind run
    from_run_state: str | None = None  # The run's state before
    to_run_state: str | None = None  # The run's state after


class RejectedEvent(NamedTuple):
    """A refused record with its original bytes: key, value and headers."""

    reason: RefusalReason
    detail: str
    security: bool
    tenant_id: str | None
    session_id: str | None
    event_id: str | None
    event_type: str | None
    service_id: str | None
    source_topic: str
    source_partition: int
    source_offset: int
    appended_at: int
    key: bytes | None = None
    value: bytes | None = None
    headers: Mapping[str, bytes] = MappingProxyType({})


class BatchRecord(NamedTuple):
    """One transaction of a partition: offsets and counts of what it applied."""

    partition: int
    number: int  # From 1, without gaps
    first_offset: int
    last_offset: int
    applied: int
    duplicate: int
    refused: int
    audited: int
    timers: int
    ticks: int
    started_at: int  # The processor's clock
    previous_acknowledged_at: int | None  # When the batch before it was acknowledged, if known
    instance: str
    rules: int = 1  # Version of the rules that its records were judged by


class BatchAcknowledged(NamedTuple):
    """Says when the last transaction before a pause was acknowledged.

    Of any other one the `BatchRecord` after it says that. Written outside of transactions; it may
    be lost, or come twice.

    Attributes:
        partition: The partition.
        number: Of the transaction's `BatchRecord`.
        acknowledged_at: The processor's clock; µs since the epoch.
        instance: The processor that wrote both.
    """

    partition: int
    number: int
    acknowledged_at: int
    instance: str


class CleanupRequest(NamedTuple):
    """Asks the service that owns a session to release the session's resources.

    The service does the actions in their order, and confirms each in `ResourcesReleased`. A request
    may be delivered again, with the same `cleanup_id`.

    Attributes:
        cleanup_id: UUID of the request.
        tenant_id: The tenant.
        session_id: The session.
        service_id: The service that is asked: the session's owner.
        epoch: The session's epoch at the request.
        reason_code: Why, for programs: the reason of the transition.
        reason: Why, for people.
        actions: Names of the steps, in the order in which they are to be done.
        requested_at: Log time of the request; µs since the epoch.
        context_bytes: Size of the model's context, in bytes, if known.
    """

    cleanup_id: str
    tenant_id: str
    session_id: str
    service_id: str
    epoch: int
    reason_code: str
    reason: str
    actions: Sequence[str]
    requested_at: int
    context_bytes: int | None = None


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
    refusals: Sequence[Refusal] = ()  # The last 16
    cleanups: Sequence[Cleanup] = ()
    parent_session_id: str | None = None
    restored_from_snapshot_id: str | None = None
    forgotten: Sequence[ForgottenProducer] = ()  # Oldest first
    content_apart: bool = False  # state_json and snapshot are in a SessionContent, and empty here
    holder: str = ""  # Producer id of the client that created it or took it over last; empty by rules 1
    owner_heard_at: int = 0  # Last event of the owning service, heartbeats included; 0 by rules 1
    clock_repair: int = 0  # The last repair of the partition's clock that all times here include
    open_runs: Sequence[OpenRun] = ()  # In the order in which they began; none by rules 1


class SessionContent(NamedTuple):
    """A session's content, if it is large; a record of its own beside the session's state.

    Its key is the session's, a zero byte and `content`. It is written only if it changes.
    """

    state_json: str
    snapshot: Snapshot


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


class RunContent(NamedTuple):
    """A run's content, if it is large; a record of its own beside the run's row.

    Its key is the row's, a zero byte and `content`. It is written only if it changes.
    """

    input_json: str | None
    plan_json: str | None
    result_json: str | None
    artifact_id: str | None


class Gravestone(NamedTuple):
    """What is kept of an archived session until no event of it can be delivered again."""

    tenant_id: str
    session_id: str
    producers: Sequence[ProducerLedger]
    reason_code: str
    epoch: int
    audit_seq: int
    expires_at: int  # Log time, ms


class GravestoneChunk(NamedTuple):
    """Gravestones that vanish at the same time, packed."""

    expires_at: int  # Log time, ms; the end of a day (UTC)
    key_hashes: bytes  # 16 bytes for each key, sorted: its BLAKE2b hash of that length


class Position(NamedTuple):
    """A partition's position: the next offset to read, whatever the group has committed."""

    next_offset: int
    clock_ms: int
    quiet_until_ms: int
    batch_number: int
    outcome_n: int  # Outcomes of next_offset that are written already; above 0 if its timers filled a batch
    previous_acknowledged_at: int | None = None  # µs since the epoch
    rules: RuleSet = FIRST_RULES  # that next_offset is judged by
    announced: AnnouncedRules | None = None  # rules that are to begin
    leader_epoch: int | None = None  # of the leader that appended the last record below next_offset
    row_count: int | None = None  # the partition's rows; contents that are apart count as well
    row_checksum: int | None = None  # sum of their CRC-32 modulo 2**63
    clock_repairs: Sequence[ClockRepair] = ()  # of the partition's clock; oldest first


__all__ = [
    "AuditRecord",
    "BatchAcknowledged",
    "BatchRecord",
    "CleanupRequest",
    "FinishedRun",
    "Gravestone",
    "GravestoneChunk",
    "Position",
    "RejectedEvent",
    "RulesActivation",
    "RunContent",
    "RunState",
    "SessionContent",
    "SessionState",
    "Tick",
]
