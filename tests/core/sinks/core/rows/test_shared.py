import pytest

from sessionary.schemas.codec import encode_record
from sessionary.schemas.records import Tick
from sessionary.sinks.core.rows.outputs import audit_row, batch_row, rejected_row
from sessionary.sinks.errors import BadRow
from tests.core.sinks.samples import DECODER, raw_record


@pytest.mark.parametrize("value", [b"", b"junk", None, encode_record(Tick("i1"))])
def test_a_record_of_another_type_is_a_bad_row(value: bytes | None) -> None:
    for build in (audit_row, batch_row, rejected_row):
        with pytest.raises(BadRow):
            build(raw_record(value), DECODER)
