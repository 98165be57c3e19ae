"""Dead letters: what is kept of a record that a sink cannot store."""

from typing import Final

from sessionary.schemas.records import RejectedEvent
from sessionary.schemas.retention import DEFAULT_US, PERSONAL_US
from sessionary.sinks.core.column_times import TIME_MAX_US, check_log_time, expiry_seconds
from sessionary.sinks.core.rows.raw_record import RawRecord
from sessionary.sinks.core.rows.shared import TableRow, envelope_from_key
from sessionary.sinks.errors import BadRow

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
