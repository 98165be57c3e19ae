"""The versions of the rules, and what each of them knows and writes."""

from typing import Any

import pytest

from sessionary.schemas.codec import Decoder, Event, encode_event, encode_position, encode_record
from sessionary.schemas.codec.catalogue import released_schemas, schema_fingerprint
from sessionary.schemas.codec.formats import ALL_RULES, record_formats
from sessionary.schemas.codec.mapping import absent_fields
from sessionary.schemas.errors import DecodeError, EncodeError
from sessionary.schemas.events import (
    AgentRegistered,
    AgentTaskUpdated,
    CheckpointSaved,
    ContextSynced,
    Heartbeat,
    RunCompleted,
    RunFailed,
    RunResumed,
    SessionMigrationAborted,
    SessionMigrationAccepted,
    SessionMigrationLoaded,
    SessionMigrationOffered,
    SessionPaused,
    SessionResumed,
    SessionTakenOver,
    SessionTerminated,
    StateUpdated,
    StepStarted,
    ToolCallStarted,
)
from sessionary.schemas.records import AuditRecord, BatchRecord, Position, RulesActivation, SessionState
from sessionary.schemas.rules import FIRST_RULES, NEWEST_RULES, RULES_BY_RELEASE, rules_to_write
from sessionary.schemas.types import AnnouncedRules, ForgottenProducer, ProducerLedger
from tests.support.values import every_example, example, example_event

ANNOUNCED = AnnouncedRules(*NEWEST_RULES, from_offset=7, principal="ops")


def test_every_release_has_rules_and_every_version_a_form() -> None:
    assert RULES_BY_RELEASE.keys() == released_schemas().keys()
    assert list(range(FIRST_RULES.version, NEWEST_RULES.version + 1)) == list(ALL_RULES)
    assert all(record_formats(version) for version in ALL_RULES)


@pytest.mark.parametrize("release", sorted(RULES_BY_RELEASE))
def test_each_record_is_written_with_the_schema_of_the_release_in_force(release: str) -> None:
    for cls, format_ in record_formats(RULES_BY_RELEASE[release]).items():
        schema = released_schemas()[release][f"sessionary.records.{cls.__name__}"]
        assert format_.header[2:] == schema_fingerprint(schema)


@pytest.mark.parametrize("rules", ALL_RULES)
def test_a_record_that_an_older_form_holds_is_read_as_it_was(rules: int) -> None:
    decoder, read = Decoder(rules=rules), 0
    for value in every_example():
        if isinstance(value, Event) or type(value) not in record_formats(rules):
            continue
        older = older_form(value) if rules < NEWEST_RULES.version else value
        assert decoder.decode_record(encode_record(older, rules)) == older
        assert Decoder(rules=rules, compiled=False).decode_record(encode_record(older, rules)) == older
        read += 1
    assert read >= 8


def older_form(record: Any) -> Any:
    """Return a record with the defaults of all fields that rules 1 have no place for."""
    older = record._replace(**absent_fields(type(record), record_formats(1)[type(record)].schema))
    if "producers" in older._fields:
        ledgers = tuple(
            ledger._replace(epoch=0, last_at=0, inexact_to=0, recent_ids=None, offsets=()) for ledger in older.producers
        )
        older = older._replace(producers=ledgers)
    return older


def test_what_an_older_form_has_no_place_for_is_not_left_out() -> None:
    batch = example(BatchRecord)._replace(rules=2)
    audit = example(AuditRecord)._replace(kind="decision")
    position = Position(5, 1, 0, 2, 0, rules=NEWEST_RULES)
    state = older_form(example(SessionState))
    later = [
        state._replace(holder="p"),
        state._replace(owner_heard_at=1),
        state._replace(forgotten=(ForgottenProducer(1, 2, 3),)),
        state._replace(producers=(ProducerLedger("p", 1, (), epoch=1),)),
        state._replace(producers=(ProducerLedger("p", 1, (), last_at=1),)),
        state._replace(producers=(ProducerLedger("p", 1, (), inexact_to=1),)),
        state._replace(producers=(ProducerLedger("p", 1, (), recent_ids=b"12"),)),
        state._replace(producers=(ProducerLedger("p", 1, (), offsets=(1,)),)),
    ]
    for record in (batch, audit, position, *later, Position(5, 1, 0, 2, 0, announced=ANNOUNCED)):
        with pytest.raises(EncodeError):
            encode_record(record, 1)
        assert Decoder().decode_record(encode_record(record)) == record
    with pytest.raises(DecodeError) as raised:
        Decoder(rules=1).decode_event(encode_event(example_event(SessionTakenOver)))
    assert raised.value.reason == "unknown_schema"
    with pytest.raises(EncodeError):
        encode_record(RulesActivation(*NEWEST_RULES, "ops", "w1"), 1)


def test_a_position_takes_the_oldest_form_that_holds_it() -> None:
    first = Position(5, 1, 0, 2, 0)
    assert Decoder(rules=1).decode_record(encode_position(first)) == first
    for later in (first._replace(rules=NEWEST_RULES), first._replace(announced=ANNOUNCED)):
        assert rules_to_write(later.rules, later.announced) == NEWEST_RULES.version
        with pytest.raises(DecodeError, match="no schema has the fingerprint"):
            Decoder(rules=1).decode_record(encode_position(later))
        assert Decoder().decode_record(encode_position(later)) == later


def test_older_rules_do_not_know_what_came_later() -> None:
    decoder = Decoder()
    value = encode_record(RulesActivation(*NEWEST_RULES, "ops", "w1"))
    with pytest.raises(DecodeError) as raised:
        decoder.as_of(1).decode_event(value)
    assert raised.value.reason == "unknown_schema"
    assert decoder.as_of(NEWEST_RULES.version) is decoder
    assert decoder.as_of(1) is decoder.as_of(1)
    assert isinstance(decoder.as_of(1).as_of(2).decode_event(value), RulesActivation)
    for example_ in every_example():
        if isinstance(example_, Event) and not isinstance(
            example_.payload,
            StateUpdated
            | SessionMigrationAborted
            | SessionMigrationAccepted
            | SessionMigrationLoaded
            | SessionMigrationOffered
            | AgentRegistered
            | AgentTaskUpdated
            | ContextSynced
            | SessionTakenOver
            | ToolCallStarted
            | RunCompleted
            | RunFailed
            | RunResumed
            | StepStarted
            | CheckpointSaved
            | Heartbeat
            | SessionPaused
            | SessionResumed
            | SessionTerminated,
        ):
            assert decoder.as_of(1).decode_event(encode_event(example_)) == example_


def test_an_event_takes_the_oldest_form_that_holds_it() -> None:
    decoder, later = Decoder(), example_event(StateUpdated)
    first = later._replace(payload=StateUpdated(1, 2, "{}"))
    schema = released_schemas()["0.1.0"]["sessionary.events.StateUpdated"]
    assert encode_event(first)[2:10] == schema_fingerprint(schema)
    assert decoder.as_of(1).decode_event(encode_event(first)) == decoder.decode_event(encode_event(first)) == first
    for phases in ({"updating_at": 3}, {"persisting_at": 4}, {"updating_at": 3, "persisting_at": 4}):
        timed = first._replace(payload=StateUpdated(1, 2, "{}", **phases))
        assert decoder.decode_event(encode_event(timed)) == timed
        with pytest.raises(DecodeError) as raised:
            decoder.as_of(1).decode_event(encode_event(timed))
        assert raised.value.reason == "unknown_schema"


def test_a_tool_call_without_a_limit_of_its_own_is_known_to_all_rules() -> None:
    example_ = example_event(ToolCallStarted)
    assert isinstance(example_.payload, ToolCallStarted)
    plain = example_._replace(payload=example_.payload._replace(limit_ms=None))
    limited = example_._replace(payload=example_.payload._replace(limit_ms=5))
    assert Decoder(rules=1).decode_event(encode_event(plain)) == plain
    assert Decoder().decode_event(encode_event(limited)) == limited
    with pytest.raises(DecodeError, match="no schema has the fingerprint"):
        Decoder(rules=1).decode_event(encode_event(limited))
