"""The audit trail: the next number of a session, and the records that carry it.

Audit numbers of a session are gap-free from 1, and given by `next_number` alone; 0 stands for a
session that is not known. Each record also has the position in the log that caused it.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from sessionary.schemas.codec import encode_record
from sessionary.schemas.fast_replace import make_replacer
from sessionary.schemas.ids import SessionKey, derived_id
from sessionary.schemas.records import AuditRecord, RejectedEvent, SessionState, Tombstone
from sessionary.schemas.retention import compliance_tags, retention_of
from sessionary.schemas.types import (
    AuditKind,
    DataClass,
    Envelope,
    PartitionDecision,
    RejectionReason,
    RuleSet,
    SessionStateName,
)
from sessionary.stream_processors.core.judge import NO_SESSION, Arrival
from sessionary.stream_processors.core.model import (
    BatchResult,
    ClockSetting,
    Emitted,
    EventLog,
    OutputCause,
    SkippedOffsets,
    Stream,
)
from sessionary.stream_processors.core.rows import Remains

# Rejections that suggest that the sender speaks for someone else.
SECURITY_REASONS: Final[frozenset[RejectionReason]] = frozenset(
    {"foreign_tenant", "key_mismatch", "not_owner", "stale_epoch", "not_member", "bad_signature"}
)

# From here on accesses are numbered among the outputs of a batch's last record: it never has as
# many. So they take no number that a replay, which does not know them, gives to another output.
ACCESS_N: Final = 1 << 19
_DECISIONS_KEPT: Final = 8
_FINGERPRINT_BEGIN: Final = 2  # of an encoded record: its header without the marker
_FINGERPRINT_END: Final = 10
_DIGEST_DIGITS: Final = 32


class Access(NamedTuple):
    """Requests of one caller of the control API for ids that its tenant does not have."""

    tenant_id: str
    principal: str
    reason_code: str  # of the last such request's problem
    reason: str  # for people; with the number of requests


class Numbered(Protocol):
    """A row (a NamedTuple) that counts its session's audit records."""

    @property
    def audit_seq(self) -> int:
        """The number of the session's latest audit record."""
        ...


NumberedT = TypeVar("NumberedT", bound=Numbered)


class Subject(NamedTuple):
    """The session that an audit record is about, as it is after the event."""

    state: SessionStateName = "UNKNOWN"
    audit_seq: int = 0
    epoch: int = 0
    version: int = 0
    owner_service: str | None = None
    data_classes: Sequence[DataClass] = ()


UNKNOWN_SUBJECT: Final = Subject()


def next_number(row: NumberedT) -> NumberedT:
    """Return the row with its session's next audit number, for one record."""
    numbered: NumberedT = _replacer_of(type(row))(row, row.audit_seq + 1)
    return numbered


@cache
def _replacer_of(row_class: type[Any]) -> Callable[..., Any]:
    return make_replacer(row_class, "audit_seq")


def audit_record(
    session: SessionKey, subject: Subject, envelope: Envelope | None, cause: OutputCause, kind: AuditKind
) -> AuditRecord:
    """Return the common fields of all audit records; callers add the fields of their kind."""
    kept = retention_of(subject.data_classes, cause.now_ms * 1000)
    return AuditRecord(
        audit_id=_audit_id(session, subject.audit_seq, cause),
        tenant_id=session.tenant_id,
        session_id=session.session_id,
        audit_seq=subject.audit_seq,
        kind=kind,
        transition=None,
        event_id=envelope.event_id if envelope else None,
        event_type=envelope.event_type if envelope else "",
        from_state=subject.state,
        to_state=subject.state,
        reason_code="",
        reason="",
        security=False,
        cleanup_id=None,
        cleanup_actions=(),
        actions_done=(),
        actions_failed=(),
        bytes_released=None,
        host_lost=False,
        compliance_tags=compliance_tags(subject.data_classes),
        user_id=envelope.user_id if envelope else None,
        agent_id=envelope.agent_id if envelope else None,
        agent_role=envelope.agent_role if envelope else None,
        service_id=envelope.service_id if envelope else None,
        owner_service=subject.owner_service,
        actor=envelope.actor if envelope else None,
        epoch=subject.epoch,
        version=subject.version,
        producer_id=envelope.producer_id if envelope else None,
        producer_seq=envelope.producer_seq if envelope else None,
        gap_first=None,
        gap_last=None,
        context_bytes=envelope.context_bytes if envelope else None,
        occurred_at=envelope.occurred_at if envelope else cause.now_ms * 1000,
        appended_at=cause.now_ms * 1000,
        due_at=None,
        fired_at=None,
        source_partition=cause.partition,
        source_offset=cause.offset,
        source_n=cause.n,
        batch_number=cause.batch_number,
        retention_class=kept.retention_class,
        retain_until=kept.retain_until,
        personal_until=kept.personal_until,
    )


def _audit_id(session: SessionKey, audit_seq: int, cause: OutputCause) -> str:
    return derived_id(session.tenant_id, session.session_id, audit_seq, cause.partition, cause.offset, cause.n)


def subject_of(row: SessionState | Tombstone | Remains | None) -> Subject:
    """Return the session's own fields in an audit record."""
    if row is None:
        return UNKNOWN_SUBJECT
    if not isinstance(row, SessionState):
        return Subject("Archived")
    return Subject(row.state, row.audit_seq, row.epoch, row.version, row.owner_service, row.data_classes)


def session_record(
    session: SessionKey,
    after: SessionState | Tombstone | Remains | None,
    arrival: Arrival | None,
    cause: OutputCause,
    kind: AuditKind,
) -> AuditRecord:
    """Return the common fields of a session's audit records; `after`: the row after the fact."""
    subject, envelope = subject_of(after), None
    if arrival is not None and arrival.event is not None:
        envelope = arrival.event.envelope
        if not isinstance(after, SessionState):
            # No row says what the session handles: the event does.
            subject = subject._replace(data_classes=tuple(sorted(set(envelope.data_classes))))
    return audit_record(session, subject, envelope, cause, kind)


def hash_row(row: SessionState | Tombstone) -> str:
    """Return `SCHEMA:DIGEST` of a row, the same on every machine and in every process.

    `SCHEMA` is the fingerprint of the schema by which the row was encoded: only hashes of one
    schema can be compared. `DIGEST` is the beginning of the encoded row's SHA-256.
    """
    encoded = encode_record(row)
    return (
        f"{encoded[_FINGERPRINT_BEGIN:_FINGERPRINT_END].hex()}:{hashlib.sha256(encoded).hexdigest()[:_DIGEST_DIGITS]}"
    )


def at_due_time(record: AuditRecord, due_ms: int, fired_ms: int) -> AuditRecord:
    """Return the record of a clock's change: it occurred when due. Takes ms of log time."""
    due_at = due_ms * 1000
    return record._replace(occurred_at=due_at, due_at=due_at, fired_at=fired_ms * 1000)


def decision_record(event_type: str, reason: str, principal: str, cause: OutputCause) -> AuditRecord:
    """Return the record of a person's decision about a partition; it belongs to no session.

    `event_type` names the decision, `reason` is for people.
    """
    return audit_record(NO_SESSION, UNKNOWN_SUBJECT, None, cause, "decision")._replace(
        event_type=event_type, reason_code=event_type, reason=reason, actor=principal
    )


def rules_record(rules: RuleSet, former: RuleSet, principal: str, cause: OutputCause) -> AuditRecord:
    """Return the record that `rules` were announced while `former` are in force.

    The record's reason names the rules with all settings, for a replay: a later release may begin
    with other settings.
    """
    days = f"{rules.finished_run_days} day{'s' if rules.finished_run_days != 1 else ''}"
    reason = (
        f"rules {rules.version} begin, after rules {former.version}; rows have at most {rules.row_bytes_max} bytes, "
        f"outputs {rules.output_bytes_max}, rejected records {rules.rejected_bytes_max}; finished runs are kept for "
        f"{days}, and failed ones may be resumed for {rules.resume_ms} ms"
    )
    if rules.quotas:
        reason += "; runs ask for quotas"
    if rules.session_quotas:
        reason += "; sessions ask for quotas"
    if rules.token_quotas:
        reason += "; tokens count for quotas"
    return decision_record("rules_announced", reason, principal, cause)


_RULES: Final = re.compile(
    r"rules (\d+) begin, after rules \d+; rows have at most (\d+) bytes, outputs (\d+), rejected records (\d+); "
    r"finished runs are kept for (\d+) days?, and failed ones may be resumed for (\d+) ms(.*)$"
)


def read_rules(record: AuditRecord) -> RuleSet:
    """Return the rules that a `rules_record` announces. Raises `ValueError` for another record."""
    match = _RULES.match(record.reason)
    if match is None:
        raise ValueError(f"no announcement of rules: {record.reason!r}")
    *numbers, quotas = match.groups()
    version, row_bytes, output_bytes, rejected_bytes, days, resume_ms = map(int, numbers)
    rules = RuleSet(version, row_bytes, days, output_bytes, rejected_bytes, resume_ms=resume_ms)
    return rules._replace(
        quotas="runs ask" in quotas, session_quotas="sessions ask" in quotas, token_quotas="tokens count" in quotas
    )


def read_repair(record: AuditRecord) -> int:
    """Return from which time (ms) a `repair_record` set the clock. Raises `ValueError` as above."""
    match = re.search(r": clock set from (-?\d+) to ", record.reason)
    if match is None:
        raise ValueError(f"no repair of a clock: {record.reason!r}")
    return int(match[1])


def with_accesses(outcome: BatchResult, partition: int, accesses: Sequence[Access]) -> BatchResult:
    """Return the writes of a batch of at least one record, with an audit record of each access.

    Accesses belong to no session and change nothing else: the state is the same without them.
    """
    position = outcome.position
    if not accesses:
        return outcome
    cause = OutputCause(partition, outcome.counts.last_offset, ACCESS_N, position.clock_ms, position.batch_number)
    reported = [access_record(access, cause._replace(n=ACCESS_N + n)) for n, access in enumerate(accesses)]
    return outcome._replace(
        emitted=[*outcome.emitted, *(Emitted("audit", None, record) for record in reported)],
        counts=outcome.counts._replace(audited=outcome.counts.audited + len(reported)),
    )


def access_record(access: Access, cause: OutputCause) -> AuditRecord:
    """Return the record of an access; it names the caller's tenant, and no session."""
    record = audit_record(SessionKey(access.tenant_id, ""), UNKNOWN_SUBJECT, None, cause, "access")
    return record._replace(reason_code=access.reason_code, reason=access.reason, actor=access.principal, security=True)


def skip_record(log: EventLog, skip: SkippedOffsets, cause: OutputCause) -> AuditRecord:
    """Return the record of offsets that are skipped at `cause`; it names all of them."""
    first, last = skip.replaced or (cause.offset, skip.next_offset - 1)
    reason = f"{log.topic}-{log.partition}, offsets {first} to {last}: {skip.reason}"
    record = decision_record(skip.event_type, reason, skip.principal, cause)
    return record._replace(gap_first=first, gap_last=last)


def rebuild_record(
    log: EventLog, event_type: str, found: str, reason: str, principal: str, cause: OutputCause
) -> AuditRecord:
    """Return the record that the rows of a partition were rebuilt; `found` says from what.

    It takes no number that an output of the record at its offset has in a replay.
    """
    cause = cause._replace(n=ACCESS_N + cause.batch_number % ACCESS_N)
    return decision_record(event_type, f"{log.topic}-{log.partition}: {found}: {reason}", principal, cause)


def repair_record(log: EventLog, setting: ClockSetting, former_ms: int, cause: OutputCause) -> AuditRecord:
    """Return the record of a clock that is set at `cause`, from `former_ms`.

    `appended_at` is the time to which the clock is set. The record names the offsets whose stamps
    do not move the clock, if there are any.
    """
    first, last = cause.offset, setting.until_offset - 1
    unmoved = f"; the stamps of offsets {first} to {last} do not move it" if last >= first else ""
    reason = (
        f"{log.topic}-{log.partition}: clock set from {former_ms} to {setting.clock_ms} ms "
        f"({(setting.clock_ms - former_ms) / 1_000:+,.1f} s){unmoved}: {setting.reason}"
    )
    record = decision_record("clock_repaired", reason, setting.principal, cause)
    return record._replace(gap_first=first, gap_last=last) if unmoved else record


def add_decision(decisions: Sequence[PartitionDecision], record: AuditRecord) -> Sequence[PartitionDecision]:
    """Return a partition's last decisions with the one that `record` reports."""
    decision = PartitionDecision(
        record.event_type,
        record.source_offset,
        record.gap_first,
        record.gap_last,
        record.appended_at // 1000,
        record.actor or "",
    )
    return (*decisions, decision)[-_DECISIONS_KEPT:]


def failure_record(arrival: Arrival, detail: str, cause: OutputCause) -> AuditRecord:
    """Return the record of an event on which the judge failed; the event changes no session."""
    record = audit_record(arrival.session, UNKNOWN_SUBJECT, None, cause, "rejection")
    return record._replace(reason_code="internal_error", reason=detail)


def rejected_record(arrival: Arrival, reason: RejectionReason, detail: str) -> RejectedEvent:
    """Return a rejection for the rejected topic: the record as it came, and the reason."""
    record, envelope = arrival.record, arrival.event.envelope if arrival.event else None
    return RejectedEvent(
        reason=reason,
        detail=detail,
        security=reason in SECURITY_REASONS,
        tenant_id=arrival.session.tenant_id or None,
        session_id=arrival.session.session_id or None,
        event_id=envelope.event_id if envelope else None,
        event_type=envelope.event_type if envelope else None,
        service_id=envelope.service_id if envelope else None,
        source_topic=arrival.log.topic,
        source_partition=arrival.log.partition,
        source_offset=record.offset,
        appended_at=record.timestamp_ms * 1000,
        key=record.key,
        value=record.value,
        headers=dict(record.list_headers()),
    )


def event_offset(stream: Stream, record: Any) -> int | None:
    """Return the offset of the event that a record of a stream reports on.

    Returns None for a request to a service, and for what time or a person caused: its place in the
    log is another event's.
    """
    if stream == "rejected" or (stream == "audit" and (record.event_id is not None or record.kind == "rejection")):
        offset: int = record.source_offset
        return offset
    return None
