from sessionary.schemas.codec import encode_record
from sessionary.schemas.records import RejectedEvent
from sessionary.sinks.core.rows.rejected import REJECTED_COLUMNS, rejected_row
from tests.core.sinks.samples import DECODER, raw_record
from tests.support.sink_records import DAY_US, NOW_US


def test_a_rejected_event_becomes_a_row() -> None:
    rejected = RejectedEvent(
        "bad_key", "d", False, None, None, None, None, None, "t.events", 1, 5, NOW_US, None, b"\xff", {"h": b"\xfe"}
    )
    found = dict(zip(REJECTED_COLUMNS, rejected_row(raw_record(encode_record(rejected)), DECODER), strict=True))
    assert (found["value"], found["headers"], found["source_offset"]) == (b"\xff", {"h": b"\xfe"}, 5)
    assert found["personal_expires"] == (NOW_US + 30 * DAY_US) // 1_000_000
