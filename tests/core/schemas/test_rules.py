"""The versions of the rules, and what each knows and writes. The tests have a second one."""

import pytest

from sessionary.schemas.codec import Decoder, Event, encode_event, encode_position, encode_record
from sessionary.schemas.errors import DecodeError
from sessionary.schemas.events import SessionActivity
from sessionary.schemas.records import BatchRecord, Position, RulesActivation
from sessionary.schemas.rules import NEWEST_RULES, known_rules, newest_known, rules_to_write
from sessionary.schemas.types import AnnouncedRules
from tests.support.second_rules import SECOND_RULES
from tests.support.second_rules.known import second_activity, second_rules_known
from tests.support.values import every_example, example, example_event

FIRST, SECOND = NEWEST_RULES.version, SECOND_RULES.version
ANNOUNCED = AnnouncedRules(*SECOND_RULES, from_offset=7, principal="ops")


def test_a_process_knows_the_rules_of_its_release_and_what_is_added() -> None:
    assert list(known_rules()) == [FIRST]
    with second_rules_known():
        assert list(known_rules()) == [FIRST, SECOND]
        assert newest_known() == SECOND_RULES
    assert newest_known() == NEWEST_RULES


def test_a_position_is_written_by_the_newest_rules_in_force_or_announced() -> None:
    position = Position(5, 1, 0, 2, 0)
    assert rules_to_write(position.rules, None) == FIRST
    assert rules_to_write(position.rules, ANNOUNCED) == rules_to_write(SECOND_RULES, None) == SECOND
    with second_rules_known():
        for one in (position, position._replace(announced=ANNOUNCED), position._replace(rules=SECOND_RULES)):
            assert Decoder(rules=SECOND).decode_record(encode_position(one)) == one


@pytest.mark.usefixtures("second_rules")
def test_each_record_is_read_as_it_was_by_the_rules_that_wrote_it() -> None:
    first, second = Decoder(rules=FIRST), Decoder(rules=SECOND)
    for value in every_example():
        if isinstance(value, Event):
            assert first.decode_event(encode_event(value)) == second.decode_event(encode_event(value)) == value
        else:
            assert first.decode_record(encode_record(value, FIRST)) == value
            assert second.decode_record(encode_record(value, FIRST)) == value
            assert second.decode_record(encode_record(value, SECOND)) == value
            assert Decoder(rules=SECOND, compiled=False).decode_record(encode_record(value, SECOND)) == value


@pytest.mark.usefixtures("second_rules")
def test_older_rules_do_not_know_what_came_later() -> None:
    decoder, event = Decoder(rules=SECOND), example_event(SessionActivity)
    later = second_activity(encode_event(event))
    assert decoder.decode_event(later) == event
    with pytest.raises(DecodeError) as raised:
        decoder.as_of(FIRST).decode_event(later)
    assert raised.value.reason == "unknown_schema"
    with pytest.raises(DecodeError):
        decoder.as_of(FIRST).decode_record(encode_record(example(BatchRecord), SECOND))
    assert decoder.as_of(SECOND) is decoder
    assert decoder.as_of(FIRST) is decoder.as_of(FIRST)
    assert decoder.as_of(FIRST).as_of(SECOND) is decoder


@pytest.mark.usefixtures("second_rules")
def test_a_client_writes_the_oldest_form_that_holds_its_event() -> None:
    event = example_event(SessionActivity)
    assert Decoder(rules=FIRST).decode_event(encode_event(event)) == event


def test_the_record_with_which_rules_begin_is_known_to_all() -> None:
    activation = RulesActivation(*SECOND_RULES, "ops", "w1")
    assert Decoder(rules=FIRST).decode_event(encode_record(activation)) == activation


def test_unknown_rules_write_nothing() -> None:
    with pytest.raises(KeyError):
        encode_record(example(BatchRecord), SECOND)
