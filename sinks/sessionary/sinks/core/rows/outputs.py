"""Rows of the tables of outputs: audit, batches, rejected, and dead letters."""

from typing import Final

from sessionary.schemas.codec import Decoder
from sessionary.schemas.records import AuditRecord, BatchAcknowledged, BatchRecord, RejectedEvent
from sessionary.schemas.retention import DEFAULT_US, PERSONAL_US
from sessionary.sinks.core.rows.shared import (
    SOURCE_COLUMNS,
    TIME_MAX_US,
    RawRecord,
    TableRow,
    check_log_time,
    decode_as,
    envelope_from_key,
    expiry_seconds,
    reported_time,
    source_values,
)
from sessionary.sinks.errors import BadRow

AUDIT_COLUMNS: Final = (*AuditRecord._fields, "personal_expires", *SOURCE_COLUMNS, "occurred_at_text")


def audit_row(raw: RawRecord, decoder: Decoder) -> TableRow:
    """Return the row of `AUDIT_COLUMNS`.

    Raises `BadRow`; `Unavailable` if a schema cannot be fetched.
    """
    record = decode_as(AuditRecord, raw, decoder)
    for name in ("appended_at", "retain_until"):
        check_log_time(name, getattr(record, name))
    for name in ("due_at", "fired_at", "personal_until", "outage_end_at"):
        if (value := getattr(record, name)) is not None:
            check_log_time(name, value)
    occurred_at, time_text = reported_time(record.occurred_at)
    if time_text:
        record = record._replace(occurred_at=occurred_at)
    return (*record, expiry_seconds(record.personal_until), *source_values(raw), time_text)


# Rows of the tables `batches` and `batch_acknowledgements`.


BATCH_COLUMNS: Final = (*BatchRecord._fields, *SOURCE_COLUMNS)
ACKNOWLEDGEMENT_COLUMNS: Final = (*BatchAcknowledged._fields, *SOURCE_COLUMNS)


def batch_row(raw: RawRecord, decoder: Decoder) -> TableRow:
    """Return the row of `BATCH_COLUMNS`.

    Raises `BadRow`; `Unavailable` if a schema cannot be fetched.
    """
    record = decode_as(BatchRecord, raw, decoder)
    check_log_time("started_at", record.started_at)
    if record.previous_acknowledged_at is not None:
        check_log_time("previous_acknowledged_at", record.previous_acknowledged_at)
    return (*record, *source_values(raw))


def acknowledgement_row(raw: RawRecord, decoder: Decoder) -> TableRow:
    """Return the row of `ACKNOWLEDGEMENT_COLUMNS`. Raises as `batch_row` does."""
    record = decode_as(BatchAcknowledged, raw, decoder)
    check_log_time("acknowledged_at", record.acknowledged_at)
    return (*record, *source_values(raw))


# Rows of the table `rejected`: events that the processor rejected.


REJECTED_COLUMNS: Final = (*RejectedEvent._fields, "retain_until", "personal_expires", *SOURCE_COLUMNS)


def rejected_row(raw: RawRecord, decoder: Decoder) -> TableRow:
    """Return the row of `REJECTED_COLUMNS`.

    A rejected event's bytes may hold personal data, so they expire after 30 days.
    Raises `BadRow`; `Unavailable` if a schema cannot be fetched.
    """
    record = decode_as(RejectedEvent, raw, decoder)
    appended = check_log_time("appended_at", record.appended_at)
    record = record._replace(headers=dict(record.headers))
    return (*record, appended + DEFAULT_US, expiry_seconds(appended + PERSONAL_US), *source_values(raw))


# Dead letters: copies of records that a sink cannot store.


DEAD_LETTER_COLUMNS: Final = (
    *("sink", "reason", "detail", "source_topic", "source_partition", "source_offset", "appended_at"),
    *("key", "value", "headers", "retain_until", "personal_expires", "value_size"),
)


def dead_letter_record(raw: RawRecord, detail: str) -> RejectedEvent:
    """Return a record's dead letter, with its original bytes, for the topic `sink-rejected`."""
    named = envelope_from_key(raw)
    return RejectedEvent(
        reason="bad_row",
        detail=detail,
        security=False,
        tenant_id=named.tenant_id or None,
        session_id=named.session_id or None,
        event_id=None,
        event_type=None,
        service_id=None,
        source_topic=raw.topic,
        source_partition=raw.partition,
        source_offset=raw.offset,
        appended_at=raw.timestamp_ms * 1_000,
        key=raw.key,
        value=raw.value,
        headers=dict(raw.headers),
    )


def dead_letter_row(sink: str, raw: RawRecord, detail: str) -> TableRow:
    """Return the row of `DEAD_LETTER_COLUMNS`; a letter of unknown age never expires."""
    letter = dead_letter_record(raw, detail)
    try:
        appended = check_log_time("timestamp", letter.appended_at)
        retain_until, personal_until = appended + DEFAULT_US, appended + PERSONAL_US
    except BadRow:
        appended, retain_until, personal_until = 0, TIME_MAX_US, TIME_MAX_US
    return (
        *(sink, letter.reason, detail, raw.topic, raw.partition, raw.offset, appended, raw.key, raw.value),
        *(dict(letter.headers), retain_until, expiry_seconds(personal_until), raw.size),
    )
