"""The part of an envelope that is read alone is that of the whole event."""

import pytest
from hypothesis import example as with_example
from hypothesis import given
from hypothesis import strategies as st

from sessionary.schemas.codec import Event, encode_event, encode_record, read_identity
from sessionary.schemas.events import EVENT_TYPES
from sessionary.schemas.headers import EventIdentity, event_headers
from sessionary.schemas.records import Tick
from tests.support.values import events_of, every_example, example

EVENTS = [value for value in every_example() if isinstance(value, Event)]


def assert_same_identity(event: Event) -> None:
    identity = read_identity(encode_event(event))
    assert identity is not None
    assert identity == EventIdentity(*(getattr(event.envelope, field) for field in EventIdentity._fields))


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.envelope.event_type)
def test_the_identity_is_that_of_the_envelope_and_makes_the_same_headers(event: Event) -> None:
    assert_same_identity(event)
    identity = read_identity(encode_event(event))
    assert identity is not None
    assert event_headers(identity) == event_headers(event.envelope)


# The first time that takes ten bytes.
BEYOND_NINE_BYTES = EVENTS[0]._replace(envelope=EVENTS[0].envelope._replace(occurred_at=1 << 62))


@given(st.sampled_from(sorted(EVENT_TYPES.values())).flatmap(events_of))
@with_example(BEYOND_NINE_BYTES)
def test_any_event_s_identity_is_read(event: Event) -> None:
    assert_same_identity(event)


def test_other_bytes_have_no_identity() -> None:
    event = encode_event(EVENTS[0])
    for value in (b"", b"\x00\x00\x00\x00\x01abc", b"\xc3\x01" + bytes(8), event[:30], encode_record(example(Tick))):
        assert read_identity(value) is None
