"""Whether the state that a session's object knows is the processor's."""

import pytest

from sessionary.producers import SessionClient, StateMismatch, Unavailable
from sessionary.producers.testing import memory_client, memory_ports
from sessionary.schemas.ids import content_hash


def test_a_state_that_agrees_is_verified_after_each_update() -> None:
    client, _ = memory_client()
    with client, client.session(user_id="u", state={"n": 0}) as session:
        session.records.verify()
        for n in range(1, 4):
            session.update_state({"n": n})
            session.records.verify()


def test_a_state_that_another_process_updated_differs_until_sync() -> None:
    client, memory = memory_client()
    other = SessionClient(tenant_id="acme", service_id="service", agent_id="a2", ports=memory_ports(memory))
    with client, other, client.session(user_id="u", state={"n": 0}) as session:
        other.attach(session.session_id).update_state({"n": 1})
        with pytest.raises(StateMismatch) as found:
            session.records.verify()
        known, committed = (1, content_hash('{"n":0}')), (2, content_hash('{"n":1}'))
        assert (found.value.known, found.value.committed) == (known, committed)
        for part in (*map(str, known), *map(str, committed), session.session_id):
            assert part in str(found.value)
        assert session.state == {"n": 0}  # nothing was adopted
        session.sync()
        session.records.verify()


def test_an_update_of_the_same_version_but_another_content_differs() -> None:
    client, memory = memory_client()
    other = SessionClient(tenant_id="acme", service_id="service", agent_id="a2", ports=memory_ports(memory))
    with client, other, client.session(user_id="u", state={"n": 0}) as session:
        other.attach(session.session_id).update_state({"n": 1})
        session.update_state({"n": 2})  # rejected: it is based on version 1
        with pytest.raises(StateMismatch) as found:
            session.records.verify()
        assert found.value.known[0] == found.value.committed[0] == 2
        assert found.value.committed[1] == content_hash('{"n":1}')


def test_without_an_answer_nothing_is_said() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        memory.silence_control(silent=True)
        with pytest.raises(Unavailable):
            session.records.verify()
        memory.silence_control(silent=False)
