"""Kafka records to rows, one function per table; pure.

What a record becomes is a property of its bytes alone: a replay of the same records must give the same block.
Times go in as integers in the column's own unit.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from sessionary.schemas.codec import Decoder, Event
from sessionary.schemas.errors import DecodeError, Invalid
from sessionary.schemas.headers import Headers, headers_beyond_envelope
from sessionary.schemas.ids import parse_key
from sessionary.schemas.records import AuditRecord, BatchRecord, RejectedEvent
from sessionary.schemas.retention import DEFAULT_US, PERSONAL_US, retention_of, unknown_retention
from sessionary.schemas.types import Envelope
from sessionary.sinks.core.payload_json import payload_text
from sessionary.sinks.core.retention import (
    REPORTED_MAX_US,
    REPORTED_MIN_US,
    TIME_MAX_US,
    checked_time,
    expiry_s,
    reported_time,
)
from sessionary.sinks.errors import BadRow

Row = tuple[Any, ...]


def no_headers() -> Headers | None:
    """Read the headers of a record that has none."""
    return None


class RawRecord(NamedTuple):
    """A record as Kafka delivers it. Its headers are read when they are needed: as objects they are many."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    read_headers: Callable[[], Headers | None] = no_headers

    @property
    def headers(self) -> list[tuple[str, bytes]]:
        """The headers in their order; one without a value has an empty one."""
        found = self.read_headers()
        return [(name, value or b"") for name, value in found] if found else []

    @property
    def size(self) -> int:
        """Bytes of key and value."""
        return len(self.key or b"") + len(self.value or b"")


RowBuilder = Callable[[RawRecord, Decoder], Row]

_SOURCE = ("src_topic", "src_partition", "src_offset", "value_size")
AUDIT_COLUMNS = (*AuditRecord._fields, "personal_expires", *_SOURCE)
BATCH_COLUMNS = (*BatchRecord._fields, *_SOURCE)
REJECTED_COLUMNS = (*RejectedEvent._fields, "retain_until", "personal_expires", *_SOURCE)
HISTORY_COLUMNS = (
    *("source_partition", "source_offset", "appended_at", "decode_error"),
    *Envelope._fields,
    *("payload_json", "key_bytes", "value_bytes", "headers"),
    *("retention_class", "retain_until", "personal_until", "personal_expires", "src_topic", "value_size"),
)
DEAD_LETTER_COLUMNS = (
    *("sink", "reason", "detail", "source_topic", "source_partition", "source_offset", "appended_at"),
    *("key", "value", "headers", "retain_until", "personal_expires", "value_size"),
)
_NOBODY = Envelope("", "", 0, "", "", None, "", None, "", None, 0, "", 0, None, None, None, None, 0)


def _record(raw: RawRecord, decoder: Decoder) -> Any:
    try:
        return decoder.decode_record(raw.value)
    except DecodeError as error:
        raise BadRow(str(error)) from None


def _position(raw: RawRecord) -> tuple[str, int, int, int]:
    return raw.topic, raw.partition, raw.offset, raw.size


def audit_row(raw: RawRecord, decoder: Decoder) -> Row:
    """Return the row of `AUDIT_COLUMNS`. Raises `BadRow`; `Unavailable` where a schema cannot be fetched."""
    record = _record(raw, decoder)
    if not isinstance(record, AuditRecord):
        raise BadRow(f"a {type(record).__name__} is no audit record")
    for name in ("appended_at", "retain_until"):
        checked_time(name, getattr(record, name))
    for name in ("due_at", "fired_at", "personal_until"):
        if (value := getattr(record, name)) is not None:
            checked_time(name, value)
    if reported_time(record.occurred_at) != record.occurred_at:
        record = record._replace(occurred_at=reported_time(record.occurred_at))
    return (*record, expiry_s(record.personal_until), *_position(raw))


def batch_row(raw: RawRecord, decoder: Decoder) -> Row:
    """Return the row of `BATCH_COLUMNS`. Raises as `audit_row`."""
    record = _record(raw, decoder)
    if not isinstance(record, BatchRecord):
        raise BadRow(f"a {type(record).__name__} is no batch record")
    checked_time("started_at", record.started_at)
    if record.previous_acknowledged_at is not None:
        checked_time("previous_acknowledged_at", record.previous_acknowledged_at)
    return (*record, *_position(raw))


def rejected_row(raw: RawRecord, decoder: Decoder) -> Row:
    """Return the row of `REJECTED_COLUMNS`. Raises as `audit_row`.

    Nobody knows what stands in refused bytes: they go after 30 days, as personal data do.
    """
    record = _record(raw, decoder)
    if not isinstance(record, RejectedEvent):
        raise BadRow(f"a {type(record).__name__} is no refusal")
    appended = checked_time("appended_at", record.appended_at)
    record = record._replace(headers=dict(record.headers))
    return (*record, appended + DEFAULT_US, expiry_s(appended + PERSONAL_US), *_position(raw))


def _keyed(raw: RawRecord) -> Envelope:
    """Return an empty envelope with the session that the key names, if it names one."""
    try:
        key = parse_key(raw.key)
    except Invalid:
        return _NOBODY
    return _NOBODY._replace(tenant_id=key.tenant_id, session_id=key.session_id)


def history_row(raw: RawRecord, decoder: Decoder) -> Row:
    """Return the row of `HISTORY_COLUMNS`: every record has one, readable or not.

    Raises `BadRow` only for a record without a usable log time; `Unavailable` as `audit_row`.
    """
    topic, partition, offset, timestamp_ms, key, value, read_headers = raw[:]  # a plain tuple comes apart faster
    appended = checked_time("the record's timestamp", timestamp_ms * 1_000)
    headers: Headers = read_headers() or ()
    error: str = ""
    try:
        found = decoder.decode_event(value)
    except DecodeError as failure:
        error, envelope, text, kept = failure.reason, _keyed(raw), "", unknown_retention(appended)
    else:
        if isinstance(found, Event):
            envelope, payload = found[:]
            text, headers = payload_text(payload), headers_beyond_envelope(envelope, headers)
            if not REPORTED_MIN_US <= envelope.occurred_at <= REPORTED_MAX_US:
                envelope = envelope._replace(occurred_at=reported_time(envelope.occurred_at))
        else:
            envelope, text = _NOBODY._replace(event_type="tick", occurred_at=appended), payload_text(found)
        kept = retention_of(envelope.data_classes, appended)
    name, retain_until, personal_until = kept[:]
    # Added up, they make a tuple in two thirds of the time that unpacking takes.
    return (
        (partition, offset, timestamp_ms, error)  # noqa: RUF005
        + envelope
        + (text, key, value, headers)
        + (name, retain_until, personal_until, expiry_s(personal_until), topic, raw.size)
    )


def rejected_event(raw: RawRecord, detail: str) -> RejectedEvent:
    """Return the dead letter of a record that can become no row, with its original bytes."""
    named = _keyed(raw)
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


def dead_letter_row(sink: str, raw: RawRecord, detail: str) -> Row:
    """Return the row of `DEAD_LETTER_COLUMNS`; never fails: of unknown age it stays until somebody looks."""
    letter = rejected_event(raw, detail)
    try:
        appended = checked_time("timestamp", letter.appended_at)
        retain_until, personal_until = appended + DEFAULT_US, appended + PERSONAL_US
    except BadRow:
        appended, retain_until, personal_until = 0, TIME_MAX_US, TIME_MAX_US
    return (
        *(sink, letter.reason, detail, raw.topic, raw.partition, raw.offset, appended, raw.key, raw.value),
        *(dict(letter.headers), retain_until, expiry_s(personal_until), raw.size),
    )


__all__ = [
    "AUDIT_COLUMNS",
    "BATCH_COLUMNS",
    "DEAD_LETTER_COLUMNS",
    "HISTORY_COLUMNS",
    "REJECTED_COLUMNS",
    "RawRecord",
    "Row",
    "RowBuilder",
    "audit_row",
    "batch_row",
    "dead_letter_row",
    "history_row",
    "no_headers",
    "rejected_event",
    "rejected_row",
]
