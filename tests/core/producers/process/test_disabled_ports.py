"""A client that is turned off: its verbs work in the process, and nothing leaves it."""

import os
import signal
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pytest

from sessionary.producers import Backlog, Counters, ProducerError, ProducerSettings, SessionClient, SessionLost
from sessionary.producers.process.disabled_ports import DisabledTransport
from sessionary.producers.testing import InMemoryTransport, memory_ports

# Its SASL mechanism would be rejected, its spool folder is a file: neither is looked at.
_AGENT = """
import os, sys, threading
from sessionary.producers import SessionClient
files = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
client = SessionClient(tenant_id="acme", service_id="s", agent_id="a")
with client, client.session(user_id="u", state={"n": 1}) as session:
    session.activity("llm")
    session.pause()
    assert session.resume() == {"n": 1}
    client.on_cleanup(lambda request: None)
    assert threading.active_count() == 1, threading.enumerate()
    assert files == (len(os.listdir("/proc/self/fd")) if files else 0)
print(client.delivery_policy, session.local_state, client.counters.sent)
"""


def new_client(errors: list[Exception] | None = None) -> SessionClient:
    settings = ProducerSettings.from_env({"SESSIONARY_DISABLED": "1"})
    reported = [] if errors is None else errors
    return SessionClient(tenant_id="acme", service_id="s", agent_id="a", settings=settings, on_error=reported.append)


def test_a_variable_turns_the_client_off(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    env = {
        **os.environ,
        "SESSIONARY_DISABLED": "1",
        "SESSIONARY_SECURITY_PROTOCOL": "SASL_SSL",
        "SESSIONARY_SASL_MECHANISM": "NOPE",
        "SESSIONARY_SPOOL_DIR": str(tmp_path / "file" / "spool"),
    }
    done = subprocess.run(
        [sys.executable, "-c", _AGENT], env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.stdout.split(), done.stderr) == (["disabled", "Terminated", "0"], "")


def test_nothing_is_sent_kept_or_started() -> None:
    errors: list[Exception] = []
    threads, handler = set(threading.enumerate()), signal.getsignal(signal.SIGTERM)
    with new_client(errors) as client:
        session = client.session(user_id="u")
        session.activity("llm")
        assert set(threading.enumerate()) <= threads, "those of other tests may end"
        assert (client.counters, client.backlog, client.flush(10)) == (Counters(), Backlog(), 0)
        client.on_cleanup(lambda _: None)
        with pytest.raises(ProducerError):
            client.on_cleanup(lambda _: None)
    assert client.delivery_policy == "disabled"
    assert signal.getsignal(signal.SIGTERM) is handler
    assert [str(error) for error in errors] == []


@pytest.mark.parametrize("disabled", [False, True])
def test_waiting_verbs_are_answered_as_if_all_were_granted(disabled: bool) -> None:
    settings = ProducerSettings.from_env({})
    client = new_client()
    if not disabled:
        ports = memory_ports(InMemoryTransport())
        client = SessionClient(tenant_id="acme", service_id="s", agent_id="a", settings=settings, ports=ports)
    with client:
        session = client.session(user_id="u", state={"n": 1}, data_classes=("personal",))
        assert session.update_state({"n": 2}) == 2
        session.pause("lunch")
        assert session.resume() == {"n": 2}
        session.error(TimeoutError("slow"))
        assert session.recover() == {"n": 2}
        view = session.sync()
        assert (view.state, view.epoch, view.version, view.state_json) == ("Active", 3, 2, '{"n":2}')
        assert view.data_classes == ("personal",)
        again = client.attach(session.session_id, take_over=True)
        assert (again.local_state, again.state, again.epoch) == ("Active", {"n": 2}, 4)
        with pytest.raises(SessionLost):
            client.attach(str(uuid.uuid4()))
        again.complete()


def test_nothing_is_known_of_turns_and_the_own_state_is_taken_for_granted() -> None:
    with new_client() as client, client.session(user_id="u", state={"n": 1}) as session:
        session.message("user", "Hello")
        session.update_state({"n": 2})
        session.records.verify()
        assert list(session.conversation.read()) == list(client.conversation(session.session_id)) == []
        assert session.records.execution() == ((), ())
        assert list(session.records.artifacts()) == []


def test_an_ended_session_leaves_nothing_and_others_are_bounded() -> None:
    with new_client() as client:
        outside = client.core.ports.transport
        assert isinstance(outside, DisabledTransport)
        for _ in range(3):
            with client.session(user_id="u") as session:
                session.snapshot()
            client.create(user_id="u").lifecycle.fail_start("invalid_config")
        assert outside._sessions == {}
        outside._sessions_max = 2
        sessions = [client.create(user_id="u") for _ in range(4)]
        assert list(outside._sessions) == [session.session_id for session in sessions[2:]]


def test_its_own_sessions_can_be_followed_until_they_end() -> None:
    with new_client() as client:
        session = client.session(user_id="u", state={"n": 0})
        follower = client.follow(session, timeout_s=0)
        assert [(view.state, view.version) for view in follower] == [("Active", 1)]
        session.update_state({"n": 1})
        assert [(view.version, view.state_json) for view in follower] == [(2, '{"n":1}')]
        session.close()
        assert (list(follower), follower.is_archived) == ([], True)
        with pytest.raises(SessionLost):
            next(client.follow(str(uuid.uuid4())))
