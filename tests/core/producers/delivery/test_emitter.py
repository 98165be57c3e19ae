"""Sequence numbers."""

from sessionary.producers.delivery.emitter import SequenceRegistry
from sessionary.producers.testing import memory_client
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
