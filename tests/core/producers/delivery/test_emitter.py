"""Sequence numbers."""

from collections.abc import Callable

import pytest

from sessionary.producers.delivery.emitter import SequenceRegistry
from sessionary.producers.errors import Invalid
from sessionary.producers.testing import memory_client
from sessionary.schemas.events import SessionActivity
from sessionary.schemas.ids import SessionKey


def test_every_event_of_a_session_takes_the_next_number_and_heartbeats_none() -> None:
    client, memory = memory_client()
    with client:
        first, second = (client.session(user_id="u") for _ in range(2))
        for _ in range(5):
            first.activity("a")
            second.info("b")
        for session in (first, second):
            session._send_heartbeat()
            session.close()
        for session in (first, second):
            events = memory.events(session.session_id)
            assert [event.envelope.producer_seq for event in events] == list(range(1, len(events) + 1))
        assert {event.envelope.producer_id for event in memory.events()} == {client.producer_id}
        assert [event.envelope.producer_seq for event in memory.heartbeats()] == [0, 0]


def test_a_forgotten_sequence_goes_on_as_a_new_producer() -> None:
    sequences = SequenceRegistry("first", limit=2)
    keys = [SessionKey("t", str(n)) for n in range(3)]
    known = [sequences.sequence_for(key, new=True) for key in keys]
    assert {sequence.producer_id for sequence in known} == {"first"}
    assert sequences.sequence_for(keys[2]) is known[2]
    again = sequences.sequence_for(keys[0])
    assert again.producer_id != "first"
    assert again.last == 0


def test_an_event_out_of_bounds_is_refused_at_the_call_and_takes_no_number() -> None:
    client, memory = memory_client()
    with client:
        session = client.session(user_id="u")
        sent = len(memory.events())
        calls: list[tuple[Callable[[], object], str]] = [
            (lambda: session.usage(tokens_in=-5), "usage_recorded: tokens_in is -5; it must be from 0 to"),
            (lambda: session.activity("k" * 257), "session_activity: kind has 257 characters, more than 256"),
            (lambda: session.pause("r" * 16_385), "session_paused: reason has 16385 characters, more than 16384"),
            (lambda: session.emit(SessionActivity("a"), run_id="r" * 257), "session_activity: run_id has 257"),
        ]
        for send, detail in calls:
            with pytest.raises(Invalid, match=detail):
                send()
        with pytest.raises(Invalid, match="user_id has 300 characters"):
            client.session(user_id="u" * 300)
        assert session.local_state == "Active"
        assert len(memory.events()) == sent
        session.activity("llm", text="t" * 500_000)
        assert [event.envelope.producer_seq for event in memory.events(session.session_id)][-1] == sent + 1
