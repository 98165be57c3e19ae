"""Records that the sinks' tests write: events, and audit and batch records of a fixed time."""

import uuid
from typing import Any

from sessionary.schemas.codec import Event, encode_event
from sessionary.schemas.events import EVENT_TYPES, Payload, UsageRecorded
from sessionary.schemas.records import AuditRecord, BatchRecord
from sessionary.schemas.types import DataClass, Envelope

DAY_US = 86_400_000_000
# A whole second of the year 2026, so late that no row made from it has expired.
NOW_US = 1_795_219_200_000_000


def session_id(number: int) -> str:
    """Return the id of the n-th session."""
    return f"00000000-0000-4000-8000-{number:012d}"


def agent_event(payload: Payload, *classes: DataClass, session: int = 1, seq: int = 1, **fields: Any) -> bytes:
    """Return an event of the n-th session, encoded."""
    envelope = Envelope(
        event_id=f"event-{session}-{seq}",
        event_type=EVENT_TYPES[type(payload)],
        schema_version=1,
        tenant_id="acme",
        session_id=session_id(session),
        user_id="u1",
        agent_id="agent-1",
        agent_role=None,
        service_id="billing",
        actor=None,
        epoch=1,
        producer_id="p",
        producer_seq=seq,
        run_id=None,
        run_seq=None,
        step_id=None,
        causation_id=None,
        occurred_at=1,
        data_classes=classes,
    )
    return encode_event(Event(envelope._replace(**fields), payload))


def usage(*classes: DataClass, tokens: int = 100, **fields: Any) -> bytes:
    """Return a call of 10 and 2 billionths of a dollar."""
    return agent_event(UsageRecorded("m-large", tokens, 10, 10, 2, is_timeout_retry=False), *classes, **fields)


def audit_record(number: int, seq: int, **fields: Any) -> AuditRecord:
    """Return an audit record of the n-th session: a transition unless `fields` replace that."""
    at: int = fields.pop("at", NOW_US + seq * 1_000_000)
    record = AuditRecord(
        audit_id=str(uuid.uuid5(uuid.NAMESPACE_URL, f"{number}:{seq}")),
        tenant_id="acme",
        session_id=session_id(number),
        audit_seq=seq,
        kind="transition",
        transition="T02",
        event_id=None,
        event_type="session_started",
        from_state="Idle",
        to_state="Active",
        reason_code="started",
        reason="",
        security=False,
        cleanup_id=None,
        cleanup_actions=(),
        actions_done=(),
        actions_failed=(),
        bytes_released=None,
        host_lost=False,
        compliance_tags=(),
        user_id="u1",
        agent_id="agent-1",
        agent_role=None,
        service_id="billing",
        owner_service="billing",
        actor=None,
        epoch=1,
        version=1,
        producer_id=None,
        producer_seq=None,
        gap_first=None,
        gap_last=None,
        context_bytes=None,
        occurred_at=at,
        appended_at=at,
        due_at=None,
        fired_at=None,
        source_partition=number % 4,
        source_offset=number * 100 + seq,
        source_n=0,
        batch_number=1,
        retention_class="default",
        retain_until=at + 365 * DAY_US,
        personal_until=None,
    )
    return record._replace(**fields)


def batch_record(partition: int, number: int, **fields: Any) -> BatchRecord:
    """Return one transaction's record; the one before was acknowledged 40 ms before its start."""
    started_at = NOW_US + number * 1_000_000
    record = BatchRecord(
        partition=partition,
        number=number,
        first_offset=number * 10,
        last_offset=number * 10 + 9,
        applied=10,
        duplicate=0,
        rejected=0,
        audited=1,
        timers=0,
        ticks=0,
        started_at=started_at,
        previous_acknowledged_at=started_at - 40_000 if number > 1 else None,
        instance="p1",
        cleanup=0,
        tasks=0,
        migrations=0,
        quotas=0,
    )
    return record._replace(**fields)
