import pytest

from sessionary.schemas.codec import encode_record
from sessionary.schemas.records import BatchAcknowledged, RejectedEvent
from sessionary.sinks.core.rows.outputs import (
    ACKNOWLEDGEMENT_COLUMNS,
    AUDIT_COLUMNS,
    BATCH_COLUMNS,
    DEAD_LETTER_COLUMNS,
    REJECTED_COLUMNS,
    acknowledgement_row,
    audit_row,
    batch_row,
    dead_letter_row,
    rejected_row,
)
from sessionary.sinks.core.rows.shared import NEVER_S
from sessionary.sinks.errors import BadRow
from sessionary.stream_processors.core.model import OutputCause
from sessionary.stream_processors.core.trail import ACCESS_N, Access, access_record
from tests.core.sinks.samples import DECODER, KEY, raw_record
from tests.support.sink_records import DAY_US, NOW_US, audit_record, batch_record


def test_an_audit_record_becomes_a_row_with_its_position_and_size() -> None:
    record = audit_record(1, 1, personal_until=NOW_US + 30 * DAY_US)
    value = encode_record(record)
    row = dict(zip(AUDIT_COLUMNS, audit_row(raw_record(value), DECODER), strict=True))
    for name in record._fields:
        assert row[name] == getattr(record, name), name
    assert row["personal_expires"] == (NOW_US + 30 * DAY_US) // 1_000_000
    assert [row[name] for name in ("src_topic", "src_partition", "src_offset")] == ["t.x", 3, 42]
    assert row["value_size"] == len(value) + len(KEY)


def test_without_a_personal_limit_personal_columns_never_expire() -> None:
    row = dict(zip(AUDIT_COLUMNS, audit_row(raw_record(encode_record(audit_record(1, 1))), DECODER), strict=True))
    assert row["personal_expires"] == NEVER_S


@pytest.mark.parametrize("field", ["appended_at", "retain_until", "due_at", "fired_at", "personal_until"])
@pytest.mark.parametrize("value", [-1, 4_260_211_200_000_000, 253_370_764_800_000_000])
def test_a_log_time_out_of_range_is_a_bad_row(field: str, value: int) -> None:
    with pytest.raises(BadRow, match=field):
        audit_row(raw_record(encode_record(audit_record(1, 1, **{field: value}))), DECODER)


def test_an_access_becomes_a_row_of_its_tenant_without_a_number() -> None:
    record = access_record(
        Access("acme", "ann", "unknown_run", "requests: 2"), OutputCause(1, 9, ACCESS_N, NOW_US // 1_000, 4)
    )
    row = dict(zip(AUDIT_COLUMNS, audit_row(raw_record(encode_record(record)), DECODER), strict=True))
    names = ("kind", "tenant_id", "session_id", "audit_seq", "actor", "security", "source_n")
    assert [row[name] for name in names] == ["access", "acme", "", 0, "ann", True, ACCESS_N]


def test_a_wrong_clock_of_an_agent_costs_no_audit_row() -> None:
    row = dict(
        zip(
            AUDIT_COLUMNS,
            audit_row(raw_record(encode_record(audit_record(1, 1, occurred_at=1 << 62))), DECODER),
            strict=True,
        )
    )
    assert row["occurred_at"] == 10_413_791_999_999_999


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


def test_a_rejected_event_becomes_a_row() -> None:
    rejected = RejectedEvent(
        "bad_key", "d", False, None, None, None, None, None, "t.events", 1, 5, NOW_US, None, b"\xff", {"h": b"\xfe"}
    )
    found = dict(zip(REJECTED_COLUMNS, rejected_row(raw_record(encode_record(rejected)), DECODER), strict=True))
    assert (found["value"], found["headers"], found["source_offset"]) == (b"\xff", {"h": b"\xfe"}, 5)
    assert found["personal_expires"] == (NOW_US + 30 * DAY_US) // 1_000_000


def test_a_dead_letter_can_always_be_written() -> None:
    letter = dict(
        zip(DEAD_LETTER_COLUMNS, dead_letter_row("audit", raw_record(b"\xff", timestamp_ms=-1), "why"), strict=True)
    )
    assert (letter["value"], letter["appended_at"], letter["detail"]) == (b"\xff", 0, "why")
    assert letter["personal_expires"] == NEVER_S
