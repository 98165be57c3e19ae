"""Records that processors write: tick, audit, refusals, batches, clean-up, changelog (`avro/records/*.avsc`)."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from sessionary.schemas.types import (
    AuditKind,
    Cleanup,
    DataClass,
    ErrorClass,
    Phase,
    ProducerLedger,
    Refusal,
    RefusalReason,
    SessionLimits,
    SessionStateName,
    Snapshot,
)


class Tick(NamedTuple):
    """Says that time has passed, on the events topic; the broker stamps it."""

    instance: str  # Who sent it


class AuditRecord(NamedTuple):
    """One line of the audit trail; written by a processor only."""

    audit_id: str  # UUIDv5 of (tenant, session, audit_seq, source)
    tenant_id: str
    session_id: str
    audit_seq: int  # Per session, from 1, without gaps; 0 where no session is known
    kind: AuditKind
    transition: str | None  # T01 to T14
    event_id: str | None  # Of the event that caused it
    event_type: str
    from_state: SessionStateName
    to_state: SessionStateName
    reason_code: str
    reason: str  # For people; names the limit that was hit
    security: bool
    cleanup_id: str | None
    cleanup_actions: Sequence[str]  # Requested, never done
    actions_done: Sequence[str]
    actions_failed: Sequence[str]
    bytes_released: int | None
    host_lost: bool
    compliance_tags: Sequence[str]
    user_id: str | None  # Personal
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
    occurred_at: int  # A timeout's is its due time; µs since the epoch
    appended_at: int  # Log time of the record that caused it; µs since the epoch
    due_at: int | None  # µs since the epoch
    fired_at: int | None  # µs since the epoch
    source_partition: int
    source_offset: int
    source_n: int  # Which of that record's outcomes
    batch_number: int  # The transaction that wrote it
    retention_class: str
    retain_until: int  # µs since the epoch
    personal_until: int | None = None  # Personal columns are blanked then; µs since the epoch


class RejectedEvent(NamedTuple):
    """A refused record with its original bytes."""

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
    appended_at: int  # µs since the epoch
    key: bytes | None = None
    value: bytes | None = None
    headers: Mapping[str, bytes] = MappingProxyType({})


class BatchRecord(NamedTuple):
    """One transaction of a partition."""

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
    started_at: int  # The processor's clock; µs since the epoch
    previous_acknowledged_at: int | None  # When batch number - 1 was acknowledged, where known; µs since the epoch
    instance: str


class CleanupRequest(NamedTuple):
    """Asks a session's owning service to release its resources."""

    cleanup_id: str
    tenant_id: str
    session_id: str
    service_id: str
    epoch: int
    reason_code: str
    reason: str
    actions: Sequence[str]  # To be done in this order
    requested_at: int  # µs since the epoch
    context_bytes: int | None = None


class SessionState(NamedTuple):
    """The one state record of a session."""

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
    max_due_at: int | None  # When the maximum duration ends; while Paused: what is left of it
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


class Gravestone(NamedTuple):
    """What stays of an archived session until no re-delivery can come."""

    tenant_id: str
    session_id: str
    producers: Sequence[ProducerLedger]
    reason_code: str
    epoch: int
    audit_seq: int
    expires_at: int  # Log time, ms


class Position(NamedTuple):
    """Where a partition's fold stands; rules over the group's offset."""

    next_offset: int
    clock_ms: int
    quiet_until_ms: int
    batch_number: int
    outcome_n: int  # Outcomes of record next_offset already written; above 0 where its timers filled a transaction
    previous_acknowledged_at: int | None = None  # µs since the epoch
