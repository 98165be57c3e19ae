"""A client in forked children, and its end: without a broker."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from sessionary.producers import AuthenticationFailed, ClientClosed, SessionClient
from sessionary.producers.delivery.spool.spool import Spool
from sessionary.producers.metrics import ClientMeter, Sample
from sessionary.producers.ports import OnCleanupRequest
from sessionary.producers.testing import InMemoryTransport, memory_client, memory_ports
from tests.core.producers.kafka_clients import new_client, new_settings
from tests.support.fake_control import ControlRequest, ControlResponse, control_server
from tests.support.waiting import wait_until

# A program with its own interpreter: from Python 3.12 on a fork beside threads is a warning.
_HEAD = """
import json, os, signal, sys, threading, time
from pathlib import Path
from sessionary.producers import ClientClosed, ProducerSettings, SessionClient
from sessionary.producers.delivery.spool.spool import Spool

settings = ProducerSettings.from_env(
    {}, bootstrap_servers="127.0.0.1:1", spool_dir=Path(sys.argv[1]), close_timeout_s=0.1, delivery_policy=sys.argv[2]
)
client = SessionClient(tenant_id="acme", service_id="s", agent_id="a", settings=settings, on_error=lambda error: None)
reported = {}

def wait_child(pid):
    end = time.monotonic() + 120
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    return "hangs"
"""
# A prefork server: the master makes the client, workers use it, or do not.
_SERVER = """
client.on_cleanup(lambda request: None)
before = client.session(user_id="u")
pids = {}
for name in ("worker", "idle", "closes"):
    pid = os.fork()
    if pid == 0:
        reported = {"id": client.producer_id, "counted": client.counters.sent, "threads": threading.active_count()}
        if name == "worker":
            try:
                before.activity("llm")
            except ClientClosed as error:
                reported["refused"] = str(error)
            with client.session(user_id="u") as session:
                session.activity("llm")
            reported["sent"] = client.counters.sent
            reported["names"] = sorted(thread.name for thread in threading.enumerate())
        if name == "closes":
            client.close()
            reported["after"] = [client.counters.sent, client.backlog.events, client.flush(0.1)]
            for use in (lambda: client.session(user_id="u"), lambda: client.on_cleanup(lambda request: None)):
                try:
                    use()
                except ClientClosed:
                    reported["refused"] = reported.get("refused", 0) + 1
        if name == "idle":
            grandchild = os.fork()
            if grandchild == 0:
                Path(sys.argv[1], "grandchild").write_text(client.producer_id)
                os._exit(0)
            wait_child(grandchild)
        Path(sys.argv[1], name).write_text(json.dumps(reported))
        sys.exit(0)
    pids[name] = pid
for name, pid in pids.items():
    reported[name] = wait_child(pid)
before.activity("llm")
reported |= {"id": client.producer_id, "sent": client.counters.sent}
client.close()
print(json.dumps(reported))
"""
# A worker that never uses the client outlives its master, which dies with events in its spool.
_ORPHAN = """
master = os.fork()
if master == 0:
    client.session(user_id="u")
    worker = os.fork()
    if worker == 0:
        Path(sys.argv[1], "written").write_text(str(os.getpid()))
        Path(sys.argv[1], "written").rename(Path(sys.argv[1], "worker"))  # whole once it is there
        time.sleep(60)
        os._exit(0)
    while not Path(sys.argv[1], "worker").exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
reported["master"] = wait_child(master)
found = Spool(settings.spool_folder, "later", 1 << 20)
reported["taken_over"] = found.taken_over
os.kill(int(Path(sys.argv[1], "worker").read_text()), signal.SIGKILL)
print(json.dumps(reported))
os._exit(0)
"""
# The child leaves the `with` block of its parent's session, as its code after the fork does.
_BLOCK = """
with client.session(user_id="u") as session:
    pid = os.fork()
if pid == 0:
    os._exit(0)
reported["child"] = wait_child(pid)
reported["state"] = session.local_state
print(json.dumps(reported))
client.close()
"""


def run_program(text: str, folder: Path, policy: str = "spool") -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", _HEAD + text, folder, policy], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "" or "DeprecationWarning" in done.stderr, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("policy", ["spool", "drop"])
def test_a_client_made_before_the_fork_works_in_each_child(policy: str, tmp_path: Path) -> None:
    server = run_program(_SERVER, tmp_path, policy)
    worker, idle, closes = (json.loads((tmp_path / name).read_text()) for name in ("worker", "idle", "closes"))
    assert [server[name] for name in ("worker", "idle", "closes")] == [0, 0, 0]
    grandchild = (tmp_path / "grandchild").read_text()
    assert len({grandchild, *(one["id"] for one in (server, worker, idle, closes))}) == 5
    assert (closes["after"], closes["refused"]) == ([0, 0, 0], 2)
    assert [(one["counted"], one["threads"]) for one in (worker, idle, closes)] == [(0, 1)] * 3
    assert (worker["sent"], server["sent"]) == (6, 5)
    assert "made before the fork" in worker["refused"]
    assert {"sessionary-delivery", "sessionary-heartbeat", "sessionary-cleanup"} <= set(worker["names"])
    if policy == "spool":
        folder = next(path for path in tmp_path.iterdir() if path.is_dir())
        left = {path.name.split(".")[0] for path in folder.iterdir()}
        assert left == {server["id"], worker["id"]}
        later = Spool(folder, "later", 1 << 20)
        assert later.taken_over == worker["sent"] + server["sent"]
        later.close()


def test_a_child_does_not_hold_the_spool_of_its_dead_parent(tmp_path: Path) -> None:
    found = run_program(_ORPHAN, tmp_path)
    assert found == {"master": -9, "taken_over": 4}


def test_a_child_that_leaves_its_parent_s_block_ends_nothing(tmp_path: Path) -> None:
    assert run_program(_BLOCK, tmp_path) == {"child": 0, "state": "Terminated"}


def test_a_child_that_uses_the_client_takes_migrations_itself() -> None:
    client, _ = memory_client()
    client.accept_migrations(lambda session: None)
    before, port = client.core.acceptor, client.core.ports.migrations
    child = os.fork()
    if child == 0:
        client.session(user_id="u")
        is_anew = client.core.acceptor is not before and getattr(port, "on_request", None) is client.core.acceptor
        os._exit(0 if is_anew else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert client.core.acceptor is before


def test_a_closed_client_stays_closed_in_a_child() -> None:
    client, _ = memory_client()
    client.close()
    child = os.fork()
    if child == 0:
        try:
            client.create(user_id="u")
        except ClientClosed as error:
            os._exit(0 if "create a new one" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("policy", ["spool", "block", "drop"])
@pytest.mark.parametrize("timeout_s", [0.0, 0.5, -1.0])
def test_closing_waits_at_most_for_what_it_is_given(
    timeout_s: float, policy: str, closed_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[Exception] = []
    client = new_client(new_settings(closed_address, tmp_path, delivery_policy=policy, close_timeout_s=600.0), errors)
    client.session(user_id="u")
    given_s: dict[str, float] = {}  # how long each thread is waited for at most
    join, caller = threading.Thread.join, threading.current_thread()

    def note_join(thread: threading.Thread, timeout: float | None = None) -> None:
        if threading.current_thread() is caller:  # a client that another test left may close itself meanwhile
            given_s[thread.name] = float("inf") if timeout is None else timeout
        join(thread, timeout)

    monkeypatch.setattr(threading.Thread, "join", note_join)
    begun = time.monotonic()
    client.close(timeout_s)
    taken_s = time.monotonic() - begun
    assert 0.9 * timeout_s <= taken_s < 300  # and not for the setting's 600 s
    # The events take nine tenths of the time, as none is acknowledged; the threads what is left.
    assert given_s.pop("sessionary-heartbeat") <= max(timeout_s, 0.0)
    assert set(given_s) == {"sessionary-delivery"} | ({"sessionary-spool"} if policy == "spool" else set())
    assert max(given_s.values()) <= 0.11 * max(timeout_s, 0.0)
    fate = "are in the spool" if policy == "spool" else "lost"
    assert any(isinstance(error, ClientClosed) and fate in str(error) for error in errors)
    client.close()


class BrokenTransport(InMemoryTransport):
    """A transport whose disk fails when it is closed."""

    def close(self, timeout_s: float = 0.0) -> int:
        raise OSError(30, "Read-only file system")


def test_closing_reports_what_fails_and_raises_nothing() -> None:
    errors: list[Exception] = []
    client = SessionClient(
        tenant_id="acme", service_id="s", agent_id="a", on_error=errors.append, ports=memory_ports(BrokenTransport())
    )
    client.close()
    assert [type(error) for error in errors] == [OSError]


def test_a_part_that_fails_keeps_no_other_part_open() -> None:
    class BrokenCleanups(BusyCleanups):
        def close(self, timeout_s: float) -> None:
            raise OSError("broken")

    errors: list[Exception] = []
    ports = memory_ports(InMemoryTransport())._replace(cleanups=BrokenCleanups())
    client = SessionClient(tenant_id="acme", service_id="s", agent_id="a", on_error=errors.append, ports=ports)
    client.close(1.0)
    assert client.core.follower._closed
    assert {str(error) for error in errors} == {"broken"}


class BusyCleanups:
    """A clean-up consumer whose handler does not return in time."""

    def __init__(self) -> None:
        self.given_s: list[float] = []

    def start(self, on_request: OnCleanupRequest) -> None:
        return None

    def close(self, timeout_s: float) -> None:
        self.given_s.append(timeout_s)


def test_a_clean_up_handler_gets_the_time_that_is_left() -> None:
    busy = BusyCleanups()
    ports = memory_ports(InMemoryTransport())._replace(cleanups=busy)
    client = SessionClient(tenant_id="acme", service_id="s", agent_id="a", ports=ports)
    client.close(600.0)
    assert busy.given_s[0] == 0.0  # it is asked to stop before anything is waited for
    assert 400.0 < busy.given_s[1] <= 600.0


def test_a_second_close_waits_for_nothing() -> None:
    """As the exit of the process after a program that had no time."""
    busy = BusyCleanups()
    ports = memory_ports(InMemoryTransport())._replace(cleanups=busy)
    client = SessionClient(tenant_id="acme", service_id="s", agent_id="a", ports=ports)
    client.close(0.0)
    waited = len(busy.given_s)
    client.close(600.0)
    assert max(busy.given_s) == 0.0
    assert len(busy.given_s) == waited


def test_two_that_close_at_once_do_not_wait_for_ever() -> None:
    entered, leave = threading.Event(), threading.Event()

    class SlowTransport(InMemoryTransport):
        def close(self, timeout_s: float = 0.0) -> int:
            entered.set()
            assert leave.wait(30)
            return 0

    client = SessionClient(tenant_id="acme", service_id="s", agent_id="a", ports=memory_ports(SlowTransport()))
    first = threading.Thread(target=client.close, args=(30.0,))
    first.start()
    assert entered.wait(30)
    client.close(0.05)
    assert first.is_alive()
    leave.set()
    first.join(30)
    assert not first.is_alive()


@pytest.mark.parametrize("poll_interval_s", [0.0, 5.0, 3_600.0])
@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_token_is_reported_and_counted_once_while_nothing_asks(
    status: int, poll_interval_s: float, closed_address: str, tmp_path: Path
) -> None:
    asked: list[ControlRequest] = []

    def answer(request: ControlRequest) -> ControlResponse:
        asked.append(request)
        return ControlResponse(status, {"detail": "the token is not known"})

    errors: list[Exception] = []
    with control_server(answer) as url:
        settings = new_settings(
            closed_address, tmp_path, control_url=url, api_token="wrong", poll_interval_s=poll_interval_s
        )
        with new_client(settings, errors) as client:
            # It is reported a moment after it was counted.
            wait_until(lambda: any(isinstance(error, AuthenticationFailed) for error in errors), 60, "the report")
            assert client.counters.errors["control_authentication"] == 1
            refused = [error for error in errors if isinstance(error, AuthenticationFailed)]
            assert ["the token is not known" in str(error) for error in refused] == [True]
            assert "wrong" not in str(refused)
            samples = ClientMeter(client).read_samples()["sessionary_client_delivery_errors_total"]
            assert Sample("control_authentication", 1) in samples
    assert [request.authorization for request in asked] == ["Bearer wrong"]


@pytest.mark.parametrize("poll_interval_s", [0.0, 5.0])
@pytest.mark.parametrize("status", [404, 503, 200])
def test_any_other_answer_is_left_to_the_verb_that_waits_for_one(
    status: int, poll_interval_s: float, closed_address: str, tmp_path: Path
) -> None:
    asked = threading.Event()

    def answer(_: ControlRequest) -> ControlResponse:
        asked.set()
        return ControlResponse(status, {})

    errors: list[Exception] = []
    with control_server(answer) as url:
        settings = new_settings(closed_address, tmp_path, control_url=url, poll_interval_s=poll_interval_s)
        with new_client(settings, errors) as client:
            assert asked.wait(60)
            assert "control_authentication" not in client.counters.errors
    assert not [error for error in errors if "control API" in str(error)]


def test_a_follower_that_is_opened_while_the_client_closes_does_not_wait_for_ever() -> None:
    client, _ = memory_client()
    session = client.session(user_id="u")
    client.core.begin_stop()  # the first step of `close`, in another thread
    with pytest.raises(ClientClosed):
        client.follow(session.session_id)
    client.close()
