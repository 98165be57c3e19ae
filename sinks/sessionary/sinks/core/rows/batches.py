"""Rows of the tables `batches` and `batch_acknowledgements`."""

from typing import Final

from sessionary.schemas.codec import Decoder
from sessionary.schemas.records import BatchAcknowledged, BatchRecord
from sessionary.sinks.core.column_times import check_log_time
from sessionary.sinks.core.rows.raw_record import RawRecord
from sessionary.sinks.core.rows.shared import SOURCE_COLUMNS, TableRow, decode_as, source_values

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
