"""Following the sessions of a client in memory, on its fake time."""

import threading
from pathlib import Path

import pytest

from sessionary.producers import ClientClosed, Invalid, ProducerSettings, SessionClient, SessionLost, SettingsError
from sessionary.producers.ports import Ports
from sessionary.producers.testing import memory_client
from tests.core.producers.served_memory import new_memory, serve_memory
from tests.support.waiting import wait_until

UNKNOWN = "0b0e7f0a-0000-4000-8000-000000000000"


def test_each_iteration_tells_what_changed_since_the_last_one() -> None:
    client, memory = memory_client()
    other, _ = memory_client(service_id="other", memory=memory)
    with client, other:
        session = client.session(user_id="u", state={"n": 0})
        own, others = client.follow(session, timeout_s=0), other.follow(session.session_id, timeout_s=0)
        for follower in (own, others):
            assert [(view.version, view.state) for view in follower] == [(1, "Active")]
        session.update_state({"n": 1})
        session.update_state({"n": 2})
        for follower in (own, others):
            assert [(view.version, view.state_json) for view in follower] == [(3, '{"n":2}')]
        memory.advance(20)  # heartbeats
        assert list(own) == list(others) == []
        session.close()
        assert [view.state for view in own] == ["Terminated"]
        memory.advance(1e7)
        assert (list(own), own.is_archived) == ([], True)


def test_a_clock_s_effect_is_reported() -> None:
    client, memory = memory_client(on_timed_out=lambda _: None)
    with client:
        session = client.session(user_id="u")
        follower = client.follow(session, timeout_s=0)
        assert len(list(follower)) == 1
        memory.silence(session)
        memory.advance(120)
        assert [view.state for view in follower] == ["Timeout"]


def test_a_wait_ends_with_another_thread_s_change_or_the_client() -> None:
    client, _ = memory_client()
    session = client.session(user_id="u", state={"n": 0})
    reported: list[int] = []
    follower = client.follow(session)
    waiting = threading.Thread(target=lambda: reported.extend(view.version for view in follower), daemon=True)
    waiting.start()
    wait_until(lambda: follower._reported is not None, 20, "the first state")
    session.update_state({"n": 1})
    wait_until(lambda: follower._reported is not None and follower._reported.version == 2, 20, "the second state")
    client.close()
    waiting.join(60)
    assert not waiting.is_alive()
    assert reported == [1, 2]
    with pytest.raises(ClientClosed):
        client.follow(session.session_id)


def test_what_cannot_be_followed_is_said() -> None:
    client, memory = memory_client()
    with client:
        with pytest.raises(SessionLost):
            next(client.follow(UNKNOWN))
        with pytest.raises(Invalid):
            client.follow("")
        ports = Ports(memory, memory, client.core.ports.cleanups)
        settings = ProducerSettings.from_env({})
        with (
            SessionClient(tenant_id="acme", service_id="s", agent_id="a", settings=settings, ports=ports) as bare,
            pytest.raises(SettingsError, match="no control API"),
        ):
            bare.follow(UNKNOWN)


def test_a_silent_control_api_is_asked_again() -> None:
    client, memory = memory_client()
    with client:
        session = client.session(user_id="u", state={"n": 0})
        follower = client.follow(session, timeout_s=0)
        assert len(list(follower)) == 1
        memory.silence_control(silent=True)
        session.update_state({"n": 1})
        assert list(follower) == []
        memory.silence_control(silent=False)
        assert [view.version for view in client.follow(session, timeout_s=0)] == [2]
        follower._timeout_s = 20
        assert next(follower).version == 2


def test_the_real_api_tells_the_same(tmp_path: Path) -> None:
    memory = new_memory()
    client, _ = memory_client(memory=memory)
    with client, serve_memory(memory, tmp_path / "api") as url:
        session = client.session(user_id="u", state={"n": 0})
        settings = ProducerSettings.from_env({}, control_url=url, api_token="token", spool_dir=tmp_path / "spool")
        reader = SessionClient(tenant_id="acme", service_id="reader", agent_id="r", settings=settings)
        with client.follow(session, timeout_s=0) as here, reader.follow(session.session_id) as there:
            assert next(here) == next(there)
        reader.close(0)
