"""What processors write beside their state; times are µs since the epoch."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from sessionary.schemas.types import AuditKind, DataClass, RefusalReason, SessionStateName


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
    tool_name: str | None = None  # Of the call, for records of the kind tool_call
    idem_key: str | None = None  # The call's key
    from_call_state: str | None = None  # The call's state before
    to_call_state: str | None = None  # The call's state after
    step_name: str | None = None  # Of the step, for records of the kind step
    step_attempt: int | None = None  # Number of the attempt at it, for the same records
    from_step_state: str | None = None  # The step's state before
    to_step_state: str | None = None  # The step's state after
    checkpoint_id: str | None = None  # The last checkpoint of the run, for records of the kind run
    migration_id: str | None = None  # Of the migration, for records of the kind migration
    from_service: str | None = None  # The owning service before it
    to_service: str | None = None  # The service that it goes to
    migration_step: str | None = None  # How far it is: one of `MigrationStep`
    snapshot_id: str | None = None  # That a pause or an end left, for records of transitions


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
    fenced_beats: int = 0  # Refused heartbeats of fenced clients that were not rejected; `refused` leaves them out


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


class TaskRequest(NamedTuple):
    """Asks the service that owns a session to carry out a task: a detached run that was queued.

    A worker of the service starts the run and ends it. A request may be delivered again.

    Attributes:
        tenant_id: The tenant.
        session_id: The session that the run belongs to.
        run_id: The run; as a task's id it names the task.
        service_id: The service that is asked: the session's owner.
        user_id: The user that the run is for, if one is known.
        epoch: The session's epoch at the request.
        task_type: What kind of task it is: the name of the worker's function.
        input_json: What the task is given.
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
