import json

import pytest

from sessionary.schemas.codec import Event, encode_record
from sessionary.schemas.headers import UNREADABLE_HEADERS, event_headers
from sessionary.schemas.limits import REPORTED_MAX_US, REPORTED_MIN_US
from sessionary.schemas.records import RulesActivation, Tick
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.schemas.types import DataClass
from sessionary.sinks.core.rows.history import HISTORY_COLUMNS, history_row
from sessionary.sinks.core.rows.outputs import AUDIT_COLUMNS, audit_row
from sessionary.sinks.errors import BadRow
from tests.core.sinks.samples import DECODER, KEY, encoded_activity, message_with, raw_record
from tests.support.broken_headers import BrokenMessage
from tests.support.event_factory import EventFactory
from tests.support.sink_records import DAY_US, NOW_US, audit_record, session_id


def test_history_holds_an_event_with_its_body_and_its_bytes() -> None:
    value = encoded_activity("personal", "medical")
    row = dict(zip(HISTORY_COLUMNS, history_row(raw_record(value), DECODER), strict=True))
    assert json.loads(row["payload_json"])["kind"] == "llm"
    assert (row["event_type"], row["producer_seq"], row["user_id"]) == ("session_activity", 7, "u1")
    assert (row["key_bytes"], row["value_bytes"], row["decode_error"]) == (KEY, value, "")
    assert row["headers"] == [("h", b"\xff"), ("h", None)]
    assert row["retention_class"] == "hipaa_privacy"
    assert row["personal_until"] == NOW_US + 30 * DAY_US


def test_history_holds_ticks() -> None:
    row = dict(zip(HISTORY_COLUMNS, history_row(raw_record(encode_record(Tick("i1")), key=None), DECODER), strict=True))
    assert (row["event_type"], row["tenant_id"], row["key_bytes"]) == ("tick", "", None)
    assert json.loads(row["payload_json"]) == {"instance": "i1"}
    assert row["retention_class"] == "idle"


@pytest.mark.parametrize(
    ("classes", "retention_class", "days"),
    [((), "idle", 365), (("personal",), "idle", 30), (("financial", "personal"), "sox_audit", 2_557)],
)
def test_heartbeats_have_a_class_of_their_own_unless_a_law_names_one(
    classes: tuple[DataClass, ...], retention_class: str, days: int
) -> None:
    value = EventFactory().event_bytes("heartbeat", {"data_classes": classes})
    row = dict(zip(HISTORY_COLUMNS, history_row(raw_record(value), DECODER), strict=True))
    assert (row["event_type"], row["retention_class"]) == ("heartbeat", retention_class)
    assert row["retain_until"] == NOW_US + days * DAY_US
    assert row["personal_until"] == (NOW_US + 30 * DAY_US if "personal" in classes else None)


def test_history_holds_the_records_with_which_rules_begin() -> None:
    value = encode_record(RulesActivation(*NEWEST_RULES, "ops", "i1"))
    row = dict(zip(HISTORY_COLUMNS, history_row(raw_record(value, key=None), DECODER), strict=True))
    assert (row["event_type"], row["decode_error"], row["key_bytes"]) == ("rules_activation", "", None)
    assert json.loads(row["payload_json"]) == {**NEWEST_RULES._asdict(), "principal": "ops", "instance": "i1"}


@pytest.mark.parametrize(
    ("value", "reason"), [(None, "undecodable"), (b"junk", "undecodable"), (b"\xc3\x01" + b"0" * 9, "unknown_schema")]
)
def test_history_holds_undecodable_bytes_unchanged(value: bytes | None, reason: str) -> None:
    row = dict(zip(HISTORY_COLUMNS, history_row(raw_record(value), DECODER), strict=True))
    assert (row["decode_error"], row["event_type"], row["value_bytes"]) == (reason, "", value)
    assert (row["tenant_id"], row["session_id"]) == ("acme", session_id(1))
    assert row["personal_until"] == NOW_US + 30 * DAY_US


def test_a_history_record_without_a_time_is_a_bad_row() -> None:
    with pytest.raises(BadRow):
        history_row(raw_record(encoded_activity(), timestamp_ms=-1), DECODER)


@pytest.mark.parametrize(
    ("sent_us", "stored_us", "text"),
    [
        (NOW_US, NOW_US, ""),
        (-1, -1, ""),
        (REPORTED_MIN_US, REPORTED_MIN_US, ""),
        (REPORTED_MAX_US, REPORTED_MAX_US, ""),
        (REPORTED_MIN_US - 1, REPORTED_MIN_US, "1899-12-31T23:59:59.999999+00:00"),
        (REPORTED_MAX_US + 1, REPORTED_MAX_US, "2300-01-01T00:00:00+00:00"),
        (253_402_300_799_999_999, REPORTED_MAX_US, "9999-12-31T23:59:59.999999+00:00"),
        (-(1 << 62), REPORTED_MIN_US, f"{-(1 << 62)} µs since 1970"),
        ((1 << 62), REPORTED_MAX_US, f"{1 << 62} µs since 1970"),
    ],
)
def test_a_time_that_no_column_holds_costs_no_row_and_stays_as_a_text(sent_us: int, stored_us: int, text: str) -> None:
    found = history_row(raw_record(encoded_activity(occurred_at=sent_us)), DECODER)
    row = dict(zip(HISTORY_COLUMNS, found, strict=True))
    assert (row["occurred_at"], row["occurred_at_text"]) == (stored_us, text)
    audited = audit_row(raw_record(encode_record(audit_record(1, 1, occurred_at=sent_us))), DECODER)
    kept = dict(zip(AUDIT_COLUMNS, audited, strict=True))
    assert (kept["occurred_at"], kept["occurred_at_text"]) == (stored_us, text)


def test_history_leaves_out_headers_that_repeat_the_envelope() -> None:
    value = encoded_activity("none")
    event = DECODER.decode_event(value)
    assert isinstance(event, Event)
    own = event_headers(event.envelope)
    place = HISTORY_COLUMNS.index("headers")

    def stored_headers(*headers: tuple[str, bytes | None], value: bytes = value) -> list[tuple[str, bytes | None]]:
        return list(history_row(raw_record(value)._replace(header_source=message_with(*headers)), DECODER)[place])

    assert stored_headers() == []
    found = history_row(raw_record(value)._replace(header_source=message_with(*own, ("x", b"1"))), DECODER)
    assert list(found[place]) == [("x", b"1")]
    assert stored_headers(*own[1:]) == own[1:]
    assert stored_headers(*own, value=b"junk") == own


@pytest.mark.parametrize("value", [encoded_activity(), b"junk"])
def test_a_record_whose_headers_cannot_be_read_has_a_row_that_says_so(value: bytes) -> None:
    place, raw = HISTORY_COLUMNS.index("headers"), raw_record(value)._replace(header_source=BrokenMessage())
    for _ in range(3):  # a block is built again after each fault
        assert history_row(raw, DECODER)[place] == list(UNREADABLE_HEADERS)
    assert raw.headers == list(UNREADABLE_HEADERS)
