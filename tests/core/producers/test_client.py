"""The client on an in-memory outside: making and attaching sessions, names, the end."""

import uuid
from typing import Any

import pytest

from sessionary.producers import (
    ClientClosed,
    Invalid,
    Limits,
    ProducerSettings,
    SessionClient,
    SessionLost,
)
from sessionary.producers.client_core import sessions
from sessionary.producers.testing import memory_client, memory_ports
from sessionary.schemas.events import SessionCreated
from tests.core.producers.sent_events import START_EVENTS, sent_types

SETTINGS = ProducerSettings.from_env({})


def test_attach_learns_state_and_epoch_and_goes_on_in_the_same_sequence() -> None:
    client, memory = memory_client()
    with client:
        first = client.session(user_id="u", state={"n": 1})
        first.pause()
        again = client.attach(first.session_id)
        assert (again.local_state, again.epoch, again.state) == ("Paused", 1, {"n": 1})
        assert again.resume() == {"n": 1}
        again.close()
        numbers = [event.envelope.producer_seq for event in memory.events()]
        assert numbers == list(range(1, len(numbers) + 1))
        with pytest.raises(SessionLost):
            client.attach(str(uuid.uuid4()))


def test_an_attached_session_keeps_the_sessions_data_classes() -> None:
    client, memory = memory_client()
    other = SessionClient(
        tenant_id="acme", service_id="other", agent_id="a", settings=SETTINGS, ports=memory_ports(memory)
    )
    with client, other:
        session = client.session(user_id="u", data_classes=("personal",))
        attached = other.attach(session.session_id)
        attached.activity("x")
        assert memory.events()[-1].envelope.data_classes == ("personal",)
        third = client.attach(session.session_id)
        third.core.emitter.add_data_classes(("medical",))
        third.activity("x")
        for one in (attached, session):
            one.sync()
            one.activity("x")
            assert sorted(memory.events()[-1].envelope.data_classes) == ["medical", "personal"]


@pytest.mark.parametrize("name", ["", "a b", "a:b", "-a", "x" * 129])
def test_names_are_checked(name: str) -> None:
    with pytest.raises(Invalid):
        memory_client(tenant_id=name)
    with pytest.raises(Invalid):
        memory_client(service_id=name)


def test_a_closed_client_says_so() -> None:
    client, memory = memory_client()
    s = client.session(user_id="u")
    client.close()
    client.close()
    with pytest.raises(ClientClosed):
        s.activity("x")
    with pytest.raises(ClientClosed):
        client.create(user_id="u")
    assert sent_types(memory) == START_EVENTS


@pytest.mark.parametrize("version", [4, 7])
def test_session_ids_are_of_the_version_that_was_set(version: int) -> None:
    client, _ = memory_client(settings=ProducerSettings.from_env({}, session_id_version=version))
    with client:
        assert uuid.UUID(client.create(user_id="u").session_id).version == version


def test_a_client_makes_events_as_fast_as_its_build_can(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(sessions, "speed_up", asked.append)
    with memory_client()[0]:
        assert asked == ["sessionary"]


def test_a_session_names_its_parent() -> None:
    client, memory = memory_client()
    with client:
        parent = client.session(user_id="u")
        children = [
            client.session(user_id="u", parent=parent.session_id.upper()),
            client.create(user_id="u", parent=parent.session_id),
        ]
        for child in children:
            created = memory.events(child.session_id)[0].payload
            assert isinstance(created, SessionCreated)
            assert created.parent_session_id == parent.session_id
        with pytest.raises(Invalid, match="parent session id '' is empty"):
            client.session(user_id="u", parent="")


def test_a_session_takes_the_limits_it_is_given() -> None:
    client, memory = memory_client()
    limits = Limits(idle_ms=60_000)
    with client:
        client.create(user_id="u", limits=limits)
        client.create(user_id="u")
    given = [event.payload.limits for event in memory.events() if isinstance(event.payload, SessionCreated)]
    assert given == [limits, limits._replace(idle_ms=None)]


@pytest.mark.parametrize(
    "wrong",
    [{"parent": ""}, {"state": ["no dict"]}, {"session_id": "0b0e7f0a-0000-4000-8000-000000000000", "state": 1}],
)
def test_a_creation_with_a_bad_value_leaves_nothing(wrong: dict[str, Any]) -> None:
    client, memory = memory_client()
    with client:
        with pytest.raises(Invalid):
            client.create(user_id="u", **wrong)
        assert (client.core.sequences._sequences, memory.events()) == ({}, [])


def test_a_creation_that_is_not_taken_leaves_nothing_and_a_running_session_its_numbers() -> None:
    client, memory = memory_client()
    with client:
        with pytest.raises(Invalid, match="session_created"):  # by the emitter
            client.create(user_id="u" * 10_000)
        assert client.core.sequences._sequences == {}
        session = client.session(user_id="u")
        with pytest.raises(Invalid):
            client.create(user_id="u" * 10_000, session_id=session.session_id)
        session.activity("goes on")
        again = client.attach(session.session_id)
        again.activity("in the same sequence")
    numbers = [event.envelope.producer_seq for event in memory.events(session.session_id)]
    assert numbers == list(range(1, len(numbers) + 1))
