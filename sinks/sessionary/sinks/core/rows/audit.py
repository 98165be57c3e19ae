"""Rows of the table `audit`."""

from typing import Final

from sessionary.schemas.codec import Decoder
from sessionary.schemas.records import AuditRecord
from sessionary.sinks.core.column_times import check_log_time, clamp_reported_time, expiry_seconds
from sessionary.sinks.core.rows.raw_record import RawRecord
from sessionary.sinks.core.rows.shared import SOURCE_COLUMNS, TableRow, decode_as, source_values

AUDIT_COLUMNS: Final = (*AuditRecord._fields, "personal_expires", *SOURCE_COLUMNS)


def audit_row(raw: RawRecord, decoder: Decoder) -> TableRow:
    """Return the row of `AUDIT_COLUMNS`.

    Raises `BadRow`; `Unavailable` if a schema cannot be fetched.
    """
    record = decode_as(AuditRecord, raw, decoder)
    for name in ("appended_at", "retain_until"):
        check_log_time(name, getattr(record, name))
    for name in ("due_at", "fired_at", "personal_until"):
        if (value := getattr(record, name)) is not None:
            check_log_time(name, value)
    occurred_at = clamp_reported_time(record.occurred_at)
    if occurred_at != record.occurred_at:
        record = record._replace(occurred_at=occurred_at)
    return (*record, expiry_seconds(record.personal_until), *source_values(raw))
