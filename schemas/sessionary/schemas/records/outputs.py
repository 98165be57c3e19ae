"""Records that processors write besides their state; times are µs since the epoch."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from sessionary.schemas.types import (
    AuditKind,
    DataClass,
    MigrationStep,
    QuotaClaim,
    QuotaName,
    QuotaStep,
    RejectionReason,
    RuleSet,
    SessionStateName,
)


class AuditRecord(NamedTuple):
    """One line of the audit trail; only processors write it."""

    audit_id: str  # UUIDv5 of (tenant, session, audit_seq, source)
    tenant_id: str
    session_id: str
    audit_seq: int  # Per session, from 1, without gaps; 0 if no session is known
    kind: AuditKind
    transition: str | None  # Id of the transition, from T01 to T14; None for other kinds
    event_id: str | None  # Id of the event that caused the record
    event_type: str
    from_state: SessionStateName
    to_state: SessionStateName
    reason_code: str
    reason: str  # For people; names the exceeded limit
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
    occurred_at: int  # For a timeout: the deadline
    appended_at: int  # Log time of the record that caused this one
    due_at: int | None  # For a timeout: the deadline
    fired_at: int | None  # For a timeout: log time of the record with which it fired
    source_partition: int
    source_offset: int
    source_n: int  # Number of the outcome among those of the causing record
    batch_number: int  # The transaction that wrote the record
    retention_class: str
    retain_until: int  # Time from which the record may be deleted
    personal_until: int | None = None  # Time at which personal columns are blanked
    run_id: str | None = None  # The run, for records of the kind run
    from_run_state: str | None = None  # The run's former state
    to_run_state: str | None = None  # The run's new state
    tool_name: str | None = None  # The called tool, for records of the kind tool_call
    idem_key: str | None = None  # The call's key
    from_call_state: str | None = None  # The call's former state
    to_call_state: str | None = None  # The call's new state
    step_name: str | None = None  # The step's name, for records of the kind step
    step_attempt: int | None = None  # Number of the attempt, for the same records
    from_step_state: str | None = None  # The step's former state
    to_step_state: str | None = None  # The step's new state
    checkpoint_id: str | None = None  # The last checkpoint of the run, for records of the kind run
    migration_id: str | None = None  # The migration, for records of the kind migration
    from_service: str | None = None  # The owning service before the migration
    to_service: str | None = None  # The migration's target
    migration_step: str | None = None  # The step that the migration has reached: one of `MigrationStep`
    # The snapshot of a pause or an end, for records of transitions; the target of a rollback
    snapshot_id: str | None = None
    transaction_id: str | None = None  # The transaction, for records of the kind transaction
    row_hash: str | None = None  # The hash of the session's row, for transitions and the kind state_hash
    outage_end_at: int | None = None  # End of the partition's last outage, for a session's first record


class RejectedEvent(NamedTuple):
    """A rejected record with its original bytes: key, value and headers."""

    reason: RejectionReason
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
    """One transaction of a partition: offsets, and counts of the applied records."""

    partition: int
    number: int  # From 1, without gaps
    first_offset: int
    last_offset: int
    applied: int
    duplicate: int
    rejected: int
    audited: int
    timers: int
    ticks: int
    started_at: int  # The processor's clock
    previous_acknowledged_at: int | None  # Acknowledgement of the batch before, if known
    instance: str
    rules: int = 1  # Version of the rules by which the records were judged
    fenced_beats: int = 0  # Heartbeats of fenced clients without a record on `rejected`; `rejected` excludes them
    cleanup: int | None = None  # Records written to `cleanup`; None if not counted, as for the next three
    tasks: int | None = None  # Records written to `tasks`
    migrations: int | None = None  # Records written to `migrations`
    quotas: int | None = None  # Records written to `quotas`


class BatchAcknowledged(NamedTuple):
    """Reports the acknowledgement of the last transaction before a pause.

    For any other transaction, the next `BatchRecord` reports it. Written outside of transactions;
    may be lost, or come twice.

    Attributes:
        partition: The partition.
        number: The number of the transaction's `BatchRecord`.
        acknowledged_at: The processor's clock; µs since the epoch.
        instance: The processor that wrote both.
    """

    partition: int
    number: int
    acknowledged_at: int
    instance: str


class CleanupRequest(NamedTuple):
    """Requests the release of a session's resources from the service that owns the session.

    The service does the actions in their order, and confirms each in `ResourcesReleased`. A request
    may be delivered again, with the same `cleanup_id`.

    Attributes:
        cleanup_id: UUID of the request.
        tenant_id: The tenant.
        session_id: The session.
        service_id: The service that is asked: the session's owner.
        epoch: The session's epoch at the request.
        reason_code: The reason of the transition, for programs.
        reason: The reason, for people.
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


class TaskRequest(NamedTuple):
    """Requests a task from the service that owns a session; a task is a queued, detached run.

    A worker of the service starts the run and ends it. A request may be delivered again.

    Attributes:
        tenant_id: The tenant.
        session_id: The session of the run.
        run_id: The run; as a task's id it names the task.
        service_id: The service that is asked: the session's owner.
        user_id: The user that the run is for, if one is known.
        epoch: The session's epoch at the request.
        task_type: The kind of task: the name of the worker's function.
        input_json: The task's input.
        data_classes: Classes of the data that the session handles.
        requested_at: Log time of the request; µs since the epoch.
    """

    tenant_id: str
    session_id: str
    run_id: str
    service_id: str
    user_id: str | None
    epoch: int
    task_type: str
    input_json: str | None
    data_classes: Sequence[DataClass]
    requested_at: int


# Records of processors on the events topic, next to the events of clients.


class Tick(NamedTuple):
    """Reports on the events topic that time has passed. The broker stamps the record.

    Attributes:
        instance: The processor that sent it.
    """

    instance: str


class RulesActivation(NamedTuple):
    """Begins other rules for a partition of the events topic, from this record on.

    The record counts only if the partition's owner announced it in the changelog.

    The first attributes are those of `RuleSet`.

    Attributes:
        principal: Who activated them.
        instance: The processor that sent it.
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
    principal: str
    instance: str

    @property
    def rules(self) -> RuleSet:
        """The rules that begin."""
        return RuleSet._make(self[: len(RuleSet._fields)])


# Records of processors for the target service of a migration; times are µs since the epoch.


class MigrationRequest(NamedTuple):
    """Requests the next step from the target of a migration: to load the session, or to accept it.

    A request may be delivered again.

    Attributes:
        migration_id: UUID of the migration.
        tenant_id: The tenant.
        session_id: The session.
        service_id: The service that is asked: the target.
        from_service: The session's owner.
        step: `offered`: load the session; `prepared`: accept it.
        user_id: The session's user.
        epoch: The session's epoch at the request.
        version: Version of its content at the request.
        data_classes: Classes of the data that the session handles.
        expires_at: Log time at which the migration is aborted.
        requested_at: Log time of the request.
    """

    migration_id: str
    tenant_id: str
    session_id: str
    service_id: str
    from_service: str
    step: MigrationStep
    user_id: str | None
    epoch: int
    version: int
    data_classes: Sequence[DataClass]
    expires_at: int
    requested_at: int


# Records of the quotas of tenants; times are ms of log time.
#
# Session, run (if one requests the slot) and the offset of the requesting event name a claim.


class QuotaNotice(NamedTuple):
    """Reports on the quotas topic a change of a claim to a tenant's quota, or a use of tokens.

    Used tokens are reported to each quota for which the session's events request slots.
    """

    quota: QuotaName
    step: QuotaStep
    tenant_id: str
    session_id: str
    run_id: str  # Empty if the session itself requests the slot, or used tokens
    offset: int  # Offset of the event that requested the slot or used tokens, in its session's partition
    tokens: int = 0  # Number of used tokens; 0 for a claim


class QuotaVerdict(NamedTuple):
    """Reports on the events topic the verdict on a claim to a tenant's quota.

    The verdict counts only for an open claim in the row of its run, or of its session.
    """

    quota: QuotaName
    run_id: str  # Empty if the session itself requests the slot
    offset: int  # Offset of the requesting event
    granted: bool
    limit: int  # The tenant's limit at the decision
    instance: str  # The processor that sent the record
    token_limit: int | None = None  # The tenant's token limit, if it caused the rejection


class TenantQuota(NamedTuple):
    """A tenant's claims to one quota, and its tokens: a row in the changelog of quotas."""

    tenant_id: str
    quota: QuotaName
    limit: int  # The tenant's limit at the last decision
    looked_at: int  # Time at which the limit was last checked. Log time, ms
    claims: Sequence[QuotaClaim]  # In the order of their requests
    clock_repair: int = 0  # The last repair of the partition's clock that all times here include
    tokens: int = 0  # Number of tokens that the tenant has used in its present window
    tokens_until: int = 0  # End of the present window; 0 if no token was used in it. Log time, ms
    token_limit: int | None = None  # The limit at the last decision; None without one
