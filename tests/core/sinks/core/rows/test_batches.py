import pytest

from sessionary.schemas.codec import encode_record
from sessionary.schemas.records import BatchAcknowledged
from sessionary.sinks.core.rows.batches import ACKNOWLEDGEMENT_COLUMNS, BATCH_COLUMNS, acknowledgement_row, batch_row
from sessionary.sinks.errors import BadRow
from tests.core.sinks.samples import DECODER, raw_record
from tests.support.sink_records import batch_record


def test_a_batch_record_becomes_a_row() -> None:
    record = batch_record(2, 9)
    row = dict(zip(BATCH_COLUMNS, batch_row(raw_record(encode_record(record)), DECODER), strict=True))
    assert (row["partition"], row["number"], row["started_at"]) == (2, 9, record.started_at)
    assert row["rules"] == record.rules
    newer = batch_row(raw_record(encode_record(record._replace(rules=record.rules + 1))), DECODER)
    assert dict(zip(BATCH_COLUMNS, newer, strict=True))["rules"] == record.rules + 1
    with pytest.raises(BadRow, match="started_at"):
        batch_row(raw_record(encode_record(record._replace(started_at=-1))), DECODER)


def test_an_acknowledgement_becomes_a_row_of_its_own_table() -> None:
    record = BatchAcknowledged(2, 9, 1_000_000, "w1")
    row = acknowledgement_row(raw_record(encode_record(record)), DECODER)
    named = dict(zip(ACKNOWLEDGEMENT_COLUMNS, row, strict=True))
    assert (named["partition"], named["number"], named["acknowledged_at"]) == (2, 9, 1_000_000)
    for bad in (record._replace(acknowledged_at=-1), batch_record(2, 9)):
        with pytest.raises(BadRow):
            acknowledgement_row(raw_record(encode_record(bad)), DECODER)
