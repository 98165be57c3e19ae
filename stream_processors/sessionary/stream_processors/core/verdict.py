"""How one record is judged, in a fixed order; pure.

    key → bytes → tenant and session as the key says → row → values → sequence → who may send it → epoch → owner → table

Up to the row a refusal leaves no trace in the session but its audit number. From the sequence on, a refusal moves the
ledger too: else each would fake a gap. A refusal never changes anything else of the session.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sessionary.schemas.codec import Decoder, Event
from sessionary.schemas.errors import DecodeError, Invalid
from sessionary.schemas.events import ResourcesReleased, SessionCreated, SessionStartFailed, SessionTerminated
from sessionary.schemas.ids import SessionKey, parse_key, partition_of, valid_name
from sessionary.schemas.records import AuditRecord, CleanupRequest, Gravestone, RejectedEvent, SessionState, Tick
from sessionary.schemas.types import Cleanup, Envelope, Refusal, RefusalReason, SeqRange
from sessionary.stream_processors.core import trail
from sessionary.stream_processors.core.fast_replace import replacer
from sessionary.stream_processors.core.sequencing import epoch_refusal, heard
from sessionary.stream_processors.core.session.limits import outside_ranges, resolved
from sessionary.stream_processors.core.session.machine import Fact, Refused, Released, Transitioned, decide, evolve
from sessionary.stream_processors.core.session.transitions import BY_ID, OWNER_ONLY, PROCESSOR_ONLY, PROCESSOR_REASONS

if TYPE_CHECKING:
    from sessionary.stream_processors.core.partition import FoldSettings, LogRecord

REFUSALS_KEPT = 16
CLEANUPS_KEPT = 8
NewSource = Callable[[], trail.Source]


class Arrival(NamedTuple):
    """A record, the row of its key, and where and when it stands."""

    record: "LogRecord"
    row: SessionState | Gravestone | None
    partition: int
    partitions: int
    now_ms: int


class Ticked(NamedTuple):
    """The record only moved the clock."""


class Duplicate(NamedTuple):
    """The record was heard before."""


class Applied(NamedTuple):
    """The event changed the session, or was accepted as it is."""

    row: SessionState
    audits: Sequence[AuditRecord] = ()
    cleanup: CleanupRequest | None = None


class Rejected(NamedTuple):
    """The event was refused; `row` where the refusal was written into it."""

    key: SessionKey
    reason: RefusalReason
    detail: str
    envelope: Envelope | None
    row: SessionState | Gravestone | None
    audits: Sequence[AuditRecord]

    def dead_letter(self, record: "LogRecord", topic: str, partition: int) -> RejectedEvent:
        """Return what the refusal leaves in the rejected topic: the record as it came, and why."""
        envelope = self.envelope
        return RejectedEvent(
            reason=self.reason,
            detail=self.detail,
            security=self.reason in trail.SECURITY_REASONS,
            tenant_id=self.key.tenant_id or None,
            session_id=self.key.session_id or None,
            event_id=envelope.event_id if envelope else None,
            event_type=envelope.event_type if envelope else None,
            service_id=envelope.service_id if envelope else None,
            source_topic=topic,
            source_partition=partition,
            source_offset=record.offset,
            appended_at=record.timestamp_ms * 1000,
            key=record.key,
            value=record.value,
            headers=dict(record.headers),
        )


Verdict = Ticked | Duplicate | Applied | Rejected
_NOBODY = SessionKey("", "")
_heard_of = replacer(SessionState, "producers")


def judge(arrival: Arrival, decoder: Decoder, source: NewSource) -> Verdict:
    """Judge one record. Raises `Unavailable` where a schema registry does not answer."""
    record, row = arrival.record, arrival.row
    try:
        if record.key is None and isinstance(decoder.decode_event(record.value), Tick):
            return Ticked()
        key = SessionKey(row.tenant_id, row.session_id) if row is not None else parse_key(record.key)
    except Invalid as error:
        detail = error.detail if record.key is not None else "a record without key is a tick, and this is none"
        return _refused(_NOBODY, None, None, "bad_key", detail, source)
    try:
        event = decoder.decode_event(record.value)
    except DecodeError as error:
        return _refused(key, row, None, error.reason, error.detail, source)
    if isinstance(event, Tick):
        return _refused(key, row, None, "bad_key", "a tick has no key", source)
    envelope = event.envelope
    if envelope.tenant_id != key.tenant_id:
        detail = f"tenant {envelope.tenant_id!r} under the key of {key.tenant_id!r}"
        return _refused(key, row, envelope, "foreign_tenant", detail, source)
    if envelope.session_id != key.session_id:
        detail = f"session {envelope.session_id!r} under the key of {key.session_id!r}"
        return _refused(key, row, envelope, "key_mismatch", detail, source)
    match row:
        case None:
            return _unknown(key, arrival, event, source)
        case Gravestone():
            return _archived(key, row, envelope, source)
    return _known(key, row, event, arrival.now_ms, source)


def _refused(
    key: SessionKey,
    row: SessionState | Gravestone | None,
    envelope: Envelope | None,
    reason: RefusalReason,
    detail: str,
    source: NewSource,
    audits: Sequence[AuditRecord] = (),
) -> Rejected:
    """Refuse; with a row, under its next audit number. Heartbeats make no audit row."""
    if envelope is not None and envelope.event_type == "heartbeat":
        return Rejected(key, reason, detail, envelope, None, audits)
    if row is not None:
        row = row._replace(audit_seq=row.audit_seq + 1)
    line = trail.refusal_record(key, row, envelope, reason, detail, source())
    return Rejected(key, reason, detail, envelope, row, (*audits, line))


def _unknown(key: SessionKey, arrival: Arrival, event: Event, source: NewSource) -> Verdict:
    envelope = event.envelope
    home = partition_of(arrival.record.key or b"", arrival.partitions)
    if home != arrival.partition:
        detail = f"this key belongs to partition {home}: the producer's partitioner is not murmur2"
        return _refused(key, None, envelope, "wrong_partition", detail, source)
    if not isinstance(event.payload, SessionCreated):
        detail = f"{envelope.event_type} before session_created"
        return _refused(key, None, envelope, "unknown_session", detail, source)
    if detail := _fault(envelope):
        return _refused(key, None, envelope, "invalid_value", detail, source)
    return _created(key, event.payload, envelope, arrival.now_ms, source)


def _created(
    key: SessionKey, payload: SessionCreated, envelope: Envelope, now_ms: int, source: NewSource
) -> Applied | Rejected:
    try:
        limits = resolved(payload.limits)
    except Invalid as error:
        return _refused(key, None, envelope, error.reason, error.detail, source)
    sequence = heard((), envelope.producer_id, envelope.producer_seq)
    row = SessionState(
        tenant_id=key.tenant_id,
        session_id=key.session_id,
        user_id=envelope.user_id,
        agent_id=envelope.agent_id,
        owner_service=envelope.service_id,
        state="Idle",
        phase="creating",
        epoch=1,
        version=1,
        reason_code="created",
        limits=limits,
        created_at=now_ms,
        entered_at=now_ms,
        last_event_at=now_ms,
        last_work_at=now_ms,
        max_due_at=None,
        released_at=None,
        recovery_attempts=0,
        error_class=None,
        state_schema_version=payload.snapshot.schema_version,
        state_json=payload.snapshot.state_json,
        snapshot=payload.snapshot,
        audit_seq=1,
        data_classes=tuple(sorted(set(envelope.data_classes))),
        context_bytes=None,
        context_exceeded=False,
        late_epoch=0,
        producers=sequence.producers,
        parent_session_id=payload.parent_session_id,
        restored_from_snapshot_id=payload.restored_from_snapshot_id,
    )
    fact = Transitioned(BY_ID["T01"], now_ms, "created", "created")
    audits = [trail.transition_record(key, None, row, fact, envelope, source(), None)]
    if sequence.gap is not None:
        row, line = _gap(key, row, envelope, sequence.gap, source)
        audits.append(line)
    if outside := outside_ranges(limits):
        row = row._replace(audit_seq=row.audit_seq + 1)
        audits.append(trail.limit_record(key, row, envelope, "limits_override", "; ".join(outside), source()))
    return _noted(key, row, envelope, Applied(row, audits), source)


def _archived(key: SessionKey, grave: Gravestone, envelope: Envelope, source: NewSource) -> Verdict:
    """Refuse what comes after the end; what was heard before it is a duplicate still."""
    audits: list[AuditRecord] = []
    if envelope.event_type != "heartbeat" and not _fault(envelope):
        sequence = heard(grave.producers, envelope.producer_id, envelope.producer_seq)
        if sequence.duplicate:
            return Duplicate()
        grave = grave._replace(producers=sequence.producers)
        if sequence.gap is not None:
            grave = grave._replace(audit_seq=grave.audit_seq + 1)
            audits.append(trail.gap_record(key, grave, envelope, sequence.gap, source()))
    return _refused(key, grave, envelope, "session_archived", "the session is archived", source, audits)


def _known(key: SessionKey, row: SessionState, event: Event, now_ms: int, source: NewSource) -> Verdict:
    envelope = event.envelope
    audits: list[AuditRecord] = []
    if detail := _fault(envelope, row):
        return _kept(key, row, envelope, Refused("invalid_value", detail), source, audits)
    if envelope.event_type != "heartbeat":
        sequence = heard(row.producers, envelope.producer_id, envelope.producer_seq)
        if sequence.duplicate:
            return Duplicate()
        if sequence.refusal is not None:
            detail = f"number {envelope.producer_seq} of producer {envelope.producer_id}"
            return _kept(key, row, envelope, Refused(sequence.refusal, detail), source, audits)
        row = _heard_of(row, sequence.producers)
        if sequence.gap is not None:
            row, line = _gap(key, row, envelope, sequence.gap, source)
            audits.append(line)
    fact = _barred(row, event) or decide(row, envelope.event_type, event.payload, now_ms)
    if isinstance(fact, Refused):
        return _kept(key, row, envelope, fact, source, audits)
    applied = _evolved(key, row, fact, event, source, audits)
    return applied if envelope.event_type == "heartbeat" else _noted(key, applied.row, envelope, applied, source)


def _evolved(
    key: SessionKey, row: SessionState, fact: Fact, event: Event, source: NewSource, audits: list[AuditRecord]
) -> Applied:
    match fact:
        case Transitioned():
            moved = transitioned(key, row, fact, event.envelope, source())
            return Applied(moved.row, [*audits, *moved.audits], moved.cleanup)
        case Released():
            assert isinstance(event.payload, ResourcesReleased)
            after = evolve(row, fact)._replace(audit_seq=row.audit_seq + 1)
            return Applied(after, [*audits, trail.release_record(key, after, event.envelope, event.payload, source())])
    return Applied(evolve(row, fact), audits)


def transitioned(
    key: SessionKey, row: SessionState, fact: Transitioned, envelope: Envelope | None, source: trail.Source
) -> Applied:
    """Apply a transition: the row after it, its audit record, and the clean-up that it asks for."""
    after = evolve(row, fact)._replace(audit_seq=row.audit_seq + 1)
    if envelope is not None and envelope.data_classes:
        after = _classed(after, envelope)
    cleanup = trail.cleanup_request(key, after, fact)
    if cleanup is not None:
        asked = Cleanup(cleanup.cleanup_id, fact.at_ms, released=False)
        after = after._replace(cleanups=(*after.cleanups, asked)[-CLEANUPS_KEPT:])
    return Applied(after, (trail.transition_record(key, row, after, fact, envelope, source, cleanup),), cleanup)


def buried(row: SessionState, now_ms: int, settings: "FoldSettings") -> Gravestone:
    """Return what stays of an archived session: enough to know a re-delivery for what it is."""
    return Gravestone(
        tenant_id=row.tenant_id,
        session_id=row.session_id,
        producers=row.producers,
        reason_code=row.reason_code,
        epoch=row.epoch,
        audit_seq=row.audit_seq,
        expires_at=now_ms + settings.gravestone_ms,
    )


def _fault(envelope: Envelope, row: SessionState | None = None) -> str:
    """Return what is wrong with an envelope's values, or ''. Names that the row already bears are right."""
    if envelope.event_type != "heartbeat" and envelope.producer_seq < 1:
        return f"producer_seq is {envelope.producer_seq}; it counts from 1"
    if envelope.epoch < 0:
        return f"epoch is {envelope.epoch}"
    if not (row is not None and envelope.service_id == row.owner_service) and not valid_name(envelope.service_id):
        return f"service_id {envelope.service_id!r} is no name"
    if not (row is not None and envelope.agent_id == row.agent_id) and not valid_name(envelope.agent_id):
        return f"agent_id {envelope.agent_id!r} is no name"
    if not valid_name(envelope.producer_id):
        return f"producer_id {envelope.producer_id!r} is no name"
    if envelope.event_type == "session_created" and not envelope.user_id:
        return "session_created names no user"
    return ""


def _barred(row: SessionState, event: Event) -> Refused | None:
    """Judge who may send the event at all: a processor, the epoch, the owner."""
    envelope, payload = event.envelope, event.payload
    name = envelope.event_type
    if name in PROCESSOR_ONLY or (
        isinstance(payload, SessionStartFailed | SessionTerminated) and payload.reason == PROCESSOR_REASONS[name]
    ):
        return Refused("processor_only", f"{name} is a processor's to say")
    if reason := epoch_refusal(row.epoch, envelope.epoch, name):
        return Refused(reason, f"epoch {envelope.epoch}, but the session is at {row.epoch}")
    if name == "session_created":
        return Refused("session_exists", "a session of this id exists")
    if name in OWNER_ONLY and envelope.service_id != row.owner_service:
        return Refused("not_owner", f"{name} is {row.owner_service}'s to say, not {envelope.service_id}'s")
    return None


def _kept(
    key: SessionKey, row: SessionState, envelope: Envelope, why: Refused, source: NewSource, audits: list[AuditRecord]
) -> Rejected:
    """Refuse, and keep the verdict in the row for whoever asks. Heartbeats and repeated lateness make no audit row."""
    if envelope.event_type == "heartbeat":
        return Rejected(key, why.reason, why.detail, envelope, row, audits)
    place = source()
    row = row._replace(refusals=(*row.refusals, Refusal(place.offset, why.reason, envelope.event_id))[-REFUSALS_KEPT:])
    if why.reason == "late" and row.late_epoch == row.epoch:
        return Rejected(key, why.reason, why.detail, envelope, row, audits)
    row = row._replace(audit_seq=row.audit_seq + 1, late_epoch=row.epoch if why.reason == "late" else row.late_epoch)
    line = trail.refusal_record(key, row, envelope, why.reason, why.detail, place)
    return Rejected(key, why.reason, why.detail, envelope, row, (*audits, line))


def _gap(
    key: SessionKey, row: SessionState, envelope: Envelope, gap: SeqRange, source: NewSource
) -> tuple[SessionState, AuditRecord]:
    row = row._replace(audit_seq=row.audit_seq + 1)
    return row, trail.gap_record(key, row, envelope, gap, source())


def _classed(row: SessionState, envelope: Envelope) -> SessionState:
    """Add data classes: the tags of later records follow from all that were declared so far."""
    known = set(row.data_classes)
    return (
        row
        if known.issuperset(envelope.data_classes)
        else row._replace(data_classes=tuple(sorted(known.union(envelope.data_classes))))
    )


def _noted(key: SessionKey, row: SessionState, envelope: Envelope, applied: Applied, source: NewSource) -> Applied:
    """Take note of data classes and context size; a size above the limit is audited once, until it falls again."""
    if envelope.data_classes:
        row = _classed(row, envelope)
    size = envelope.context_bytes
    if size is None:
        return applied if row is applied.row else applied._replace(row=row)
    exceeded = size > row.limits.context_limit_bytes
    audits = applied.audits
    if exceeded and not row.context_exceeded:
        row = row._replace(audit_seq=row.audit_seq + 1)
        reason = f"context of {size} bytes is above the limit of {row.limits.context_limit_bytes}"
        audits = (*audits, trail.limit_record(key, row, envelope, "context_limit", reason, source()))
    if (size, exceeded) != (row.context_bytes, row.context_exceeded):
        row = row._replace(context_bytes=size, context_exceeded=exceeded)
    return applied._replace(row=row, audits=audits)


__all__ = ["Applied", "Arrival", "Duplicate", "Rejected", "Ticked", "Verdict", "buried", "judge", "transitioned"]
