"""Rows of the table `rejected`: events that the processor refused."""

from typing import Final

from sessionary.schemas.codec import Decoder
from sessionary.schemas.records import RejectedEvent
from sessionary.schemas.retention import DEFAULT_US, PERSONAL_US
from sessionary.sinks.core.column_times import check_log_time, expiry_seconds
from sessionary.sinks.core.rows.raw_record import RawRecord
from sessionary.sinks.core.rows.shared import SOURCE_COLUMNS, TableRow, decode_as, source_values

REJECTED_COLUMNS: Final = (*RejectedEvent._fields, "retain_until", "personal_expires", *SOURCE_COLUMNS)


def rejected_row(raw: RawRecord, decoder: Decoder) -> TableRow:
    """Return the row of `REJECTED_COLUMNS`.

    A refused event's bytes may hold personal data, so they expire after 30 days.
    Raises `BadRow`; `Unavailable` if a schema cannot be fetched.
    """
    record = decode_as(RejectedEvent, raw, decoder)
    appended = check_log_time("appended_at", record.appended_at)
    record = record._replace(headers=dict(record.headers))
    return (*record, appended + DEFAULT_US, expiry_seconds(appended + PERSONAL_US), *source_values(raw))
