import pytest

from sessionary.schemas.codec import encode_record
from sessionary.sinks.core.rows.batches import BATCH_COLUMNS, batch_row
from sessionary.sinks.errors import BadRow
from tests.core.sinks.samples import DECODER, raw_record
from tests.support.sink_records import batch_record


def test_a_batch_record_becomes_a_row() -> None:
    record = batch_record(2, 9)
    row = dict(zip(BATCH_COLUMNS, batch_row(raw_record(encode_record(record)), DECODER), strict=True))
    assert (row["partition"], row["number"], row["started_at"]) == (2, 9, record.started_at)
    with pytest.raises(BadRow, match="started_at"):
        batch_row(raw_record(encode_record(record._replace(started_at=-1))), DECODER)
