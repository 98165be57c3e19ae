import json

import pytest
from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError, ProgrammingError

from sessionary.schemas.codec import Decoder, Event, encode_event, encode_record
from sessionary.schemas.events import SessionActivity
from sessionary.schemas.headers import event_headers
from sessionary.schemas.records import RejectedEvent, Tick
from sessionary.schemas.retention import retention_of
from sessionary.schemas.topics import REJECTED_BYTES_MAX
from sessionary.schemas.types import DataClass, Envelope
from sessionary.sinks.clickhouse.migrate import Migration, migrations, pending
from sessionary.sinks.core.retention import NEVER_S
from sessionary.sinks.core.rows import (
    AUDIT_COLUMNS,
    BATCH_COLUMNS,
    DEAD_LETTER_COLUMNS,
    HISTORY_COLUMNS,
    REJECTED_COLUMNS,
    RawRecord,
    audit_row,
    batch_row,
    dead_letter_row,
    history_row,
    rejected_row,
)
from sessionary.sinks.errors import BadRow, OperatorError, Transient, classify
from sessionary.sinks.runtime.dead_letters import encoded_letter
from sessionary.sinks.settings import SinkSettings
from tests.integration.sink_rig import DAY_US, NOW_US, audit, batch, session_id

KEY = f"acme:{session_id(1)}".encode()
DECODER = Decoder()


def raw(value: bytes | None, key: bytes | None = KEY, timestamp_ms: int = NOW_US // 1_000) -> RawRecord:
    return RawRecord("t.x", 3, 42, timestamp_ms, key, value, lambda: [("h", b"\xff"), ("h", None)])


def activity(*data_classes: DataClass, occurred_at: int = NOW_US) -> bytes:
    envelope = Envelope(
        event_id="e1",
        event_type="session_activity",
        schema_version=1,
        tenant_id="acme",
        session_id=session_id(1),
        user_id="u1",
        agent_id="a1",
        agent_role=None,
        service_id="billing",
        actor=None,
        epoch=1,
        producer_id="p1",
        producer_seq=7,
        run_id=None,
        run_seq=None,
        step_id=None,
        causation_id=None,
        occurred_at=occurred_at,
        data_classes=data_classes,
    )
    return encode_event(Event(envelope, SessionActivity("llm")))


def test_an_audit_record_becomes_a_row_with_its_position_and_size() -> None:
    record = audit(1, 1, personal_until=NOW_US + 30 * DAY_US)
    value = encode_record(record)
    row = dict(zip(AUDIT_COLUMNS, audit_row(raw(value), DECODER), strict=True))
    for name in record._fields:
        assert row[name] == getattr(record, name), name
    assert row["personal_expires"] == (NOW_US + 30 * DAY_US) // 1_000_000
    assert [row[name] for name in ("src_topic", "src_partition", "src_offset")] == ["t.x", 3, 42]
    assert row["value_size"] == len(value) + len(KEY)


def test_without_a_personal_limit_personal_columns_never_expire() -> None:
    row = dict(zip(AUDIT_COLUMNS, audit_row(raw(encode_record(audit(1, 1))), DECODER), strict=True))
    assert row["personal_expires"] == NEVER_S


@pytest.mark.parametrize("field", ["appended_at", "retain_until", "due_at", "fired_at", "personal_until"])
@pytest.mark.parametrize("value", [-1, 4_260_211_200_000_000, 253_370_764_800_000_000])
def test_a_time_of_the_log_outside_all_reason_is_a_bad_row(field: str, value: int) -> None:
    with pytest.raises(BadRow, match=field):
        audit_row(raw(encode_record(audit(1, 1, **{field: value}))), DECODER)


def test_an_agents_lying_clock_costs_no_row() -> None:
    row = dict(
        zip(AUDIT_COLUMNS, audit_row(raw(encode_record(audit(1, 1, occurred_at=1 << 62))), DECODER), strict=True)
    )
    assert row["occurred_at"] == 10_413_791_999_999_999
    found = history_row(raw(activity(occurred_at=-(1 << 62))), DECODER)
    assert dict(zip(HISTORY_COLUMNS, found, strict=True))["occurred_at"] == -2_208_988_800_000_000


@pytest.mark.parametrize("value", [b"", b"junk", None, encode_record(Tick("i1"))])
def test_what_is_no_record_of_the_topic_is_a_bad_row(value: bytes | None) -> None:
    for build in (audit_row, batch_row, rejected_row):
        with pytest.raises(BadRow):
            build(raw(value), DECODER)


def test_history_holds_an_event_with_its_body_and_its_bytes() -> None:
    value = activity("personal", "medical")
    row = dict(zip(HISTORY_COLUMNS, history_row(raw(value), DECODER), strict=True))
    assert json.loads(row["payload_json"])["kind"] == "llm"
    assert (row["event_type"], row["producer_seq"], row["user_id"]) == ("session_activity", 7, "u1")
    assert (row["key_bytes"], row["value_bytes"], row["decode_error"]) == (KEY, value, "")
    assert row["headers"] == [("h", b"\xff"), ("h", None)]
    assert row["retention_class"] == "hipaa_privacy"
    assert row["personal_until"] == NOW_US + 30 * DAY_US


def test_history_holds_ticks() -> None:
    row = dict(zip(HISTORY_COLUMNS, history_row(raw(encode_record(Tick("i1")), key=None), DECODER), strict=True))
    assert (row["event_type"], row["tenant_id"], row["key_bytes"]) == ("tick", "", None)
    assert json.loads(row["payload_json"]) == {"instance": "i1"}


@pytest.mark.parametrize(
    ("value", "reason"), [(None, "undecodable"), (b"junk", "undecodable"), (b"\xc3\x01" + b"0" * 9, "unknown_schema")]
)
def test_history_holds_what_nobody_can_read_as_it_came(value: bytes | None, reason: str) -> None:
    row = dict(zip(HISTORY_COLUMNS, history_row(raw(value), DECODER), strict=True))
    assert (row["decode_error"], row["event_type"], row["value_bytes"]) == (reason, "", value)
    assert (row["tenant_id"], row["session_id"]) == ("acme", session_id(1))
    assert row["personal_until"] == NOW_US + 30 * DAY_US


def test_a_history_record_without_a_time_is_a_bad_row() -> None:
    with pytest.raises(BadRow):
        history_row(raw(activity(), timestamp_ms=-1), DECODER)


def test_batches_and_refusals_become_rows() -> None:
    record = batch(2, 9)
    row = dict(zip(BATCH_COLUMNS, batch_row(raw(encode_record(record)), DECODER), strict=True))
    assert (row["partition"], row["number"], row["started_at"]) == (2, 9, record.started_at)
    with pytest.raises(BadRow, match="started_at"):
        batch_row(raw(encode_record(record._replace(started_at=-1))), DECODER)
    refusal = RejectedEvent(
        "bad_key", "d", False, None, None, None, None, None, "t.events", 1, 5, NOW_US, None, b"\xff", {"h": b"\xfe"}
    )
    found = dict(zip(REJECTED_COLUMNS, rejected_row(raw(encode_record(refusal)), DECODER), strict=True))
    assert (found["value"], found["headers"], found["source_offset"]) == (b"\xff", {"h": b"\xfe"}, 5)
    assert found["personal_expires"] == (NOW_US + 30 * DAY_US) // 1_000_000


def test_history_keeps_of_an_events_headers_what_its_envelope_does_not_say() -> None:
    value = activity("none")
    event = DECODER.decode_event(value)
    assert isinstance(event, Event)
    own = event_headers(event.envelope)
    place = HISTORY_COLUMNS.index("headers")

    def kept(*headers: tuple[str, bytes | None], value: bytes = value) -> list[tuple[str, bytes | None]]:
        return list(history_row(raw(value)._replace(read_headers=lambda: headers), DECODER)[place])

    assert kept() == []
    found = history_row(raw(value)._replace(read_headers=lambda: [*own, ("x", b"1")]), DECODER)
    assert list(found[place]) == [("x", b"1")]
    assert kept(*own[1:]) == own[1:]
    assert kept(*own, value=b"junk") == own


def test_a_dead_letter_can_always_be_written() -> None:
    letter = dict(zip(DEAD_LETTER_COLUMNS, dead_letter_row("audit", raw(b"\xff", timestamp_ms=-1), "why"), strict=True))
    assert (letter["value"], letter["appended_at"], letter["detail"]) == (b"\xff", 0, "why")
    assert letter["personal_expires"] == NEVER_S


def test_a_value_too_large_for_a_letter_stays_where_it_is_and_the_letter_says_so() -> None:
    fits, large = raw(b"v" * 1_000_000), raw(b"v" * REJECTED_BYTES_MAX)
    whole, letter = (DECODER.decode_record(encoded_letter(found, "why")) for found in (fits, large))
    assert isinstance(whole, RejectedEvent)
    assert isinstance(letter, RejectedEvent)
    assert whole.value == fits.value
    assert (letter.value, letter.headers, letter.source_offset) == (None, {}, 42)
    assert f"why (value of {REJECTED_BYTES_MAX} bytes left out" in letter.detail


def test_the_row_stays_for_the_longest_period_and_personal_columns_for_30_days() -> None:
    assert retention_of(("none",), 0) == ("default", 365 * DAY_US, None)
    assert retention_of(("personal",), 0) == ("gdpr_retention", 30 * DAY_US, 30 * DAY_US)
    name, until, personal = retention_of(("personal", "financial", "medical"), 0)
    assert (name, personal) == ("sox_audit", 30 * DAY_US)
    assert 7 * 365 * DAY_US <= until <= (7 * 365 + 2) * DAY_US


def _error(kind: type[DatabaseError], code: int | None) -> DatabaseError:
    return kind(f"Code: {code}. DB::Exception: text", code=code)


@pytest.mark.parametrize("code", [159, 202, 209, 210, 241, 242, 252, 286, 319, 999])
def test_trouble_that_passes(code: int) -> None:
    assert isinstance(classify(_error(DatabaseError, code)), Transient)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (60, "no_table"),
        (81, "no_database"),
        (16, "no_column"),
        (192, "authentication"),
        (497, "no_right"),
        (516, "authentication"),
        (4_242, "code_4242"),
    ],
)
def test_trouble_that_stays_and_any_unknown_code_stop_the_sink(code: int, reason: str) -> None:
    found = classify(_error(DatabaseError, code))
    assert isinstance(found, OperatorError)
    assert found.reason == reason


def test_without_a_code_a_connection_is_retried_and_misuse_is_not() -> None:
    assert isinstance(classify(OperationalError("Error executing HTTP request")), Transient)
    assert isinstance(classify(DatabaseError("HTTP 502")), Transient)
    assert isinstance(classify(ConnectionResetError()), Transient)
    assert isinstance(classify(ProgrammingError("Unrecognized column")), OperatorError)
    assert isinstance(classify(TypeError("bug")), OperatorError)


def test_migrations_are_numbered_from_1_without_gaps_and_split_into_statements() -> None:
    shipped = migrations()
    assert [migration.version for migration in shipped] == list(range(1, len(shipped) + 1))
    for migration in shipped:
        statements = migration.statements("db_x")
        assert statements
        assert all("{database}" not in statement and not statement.endswith(";") for statement in statements)


def test_a_changed_migration_is_an_error_and_a_newer_one_is_none() -> None:
    one, two = Migration(1, "a", "SELECT 1;\n"), Migration(2, "b", "SELECT 2;\n")
    assert pending([(1, one.checksum)], [one, two]) == [two]
    assert pending([(1, one.checksum), (2, two.checksum), (3, "x")], [one, two]) == []
    with pytest.raises(OperatorError, match="0001_a"):
        pending([(1, "other")], [one, two])


def test_groups_are_named_by_prefix_kind_and_pipeline() -> None:
    assert SinkSettings().group("audit") == "sessionary.sink.audit"
    assert SinkSettings(topic_prefix="x", pipeline="eu").group("audit") == "x.sink.audit.eu"
