"""A process whose threads are replaced, that may start none, or that forgets its clients."""

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

from sessionary.producers import AsyncSessionClient, ProducerError, SessionClient, Unavailable
from sessionary.producers.testing import memory_client
from tests.core.producers.kafka_clients import new_client, new_settings
from tests.support.waiting import wait_until


def _own_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("sessionary-")}


def _foreign_threads() -> set[threading.Thread]:
    """Return the threads that `threading` did not start, and that asked it who they are."""
    return {thread for thread in threading.enumerate() if isinstance(thread, threading._DummyThread)}


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


_AGENT = """
import faulthandler, sys
faulthandler.dump_traceback_later(60, exit=True)
PATCH
from sessionary.producers import ProducerError, SessionClient
try:
    client = SessionClient(tenant_id="acme", service_id="s", agent_id="a", on_error=lambda error: None)
except ProducerError as error:
    print("refused:", error)
    raise SystemExit
ran = []
spawn(lambda: ran.append(1))
for _ in range(3):
    with client.session(user_id="u") as session:
        session.activity("llm")
        sleep(0.01)
client.close(0.1)
print(f"works: greenlets ran {len(ran)}, {client.counters.sent > 9}")
"""
_GEVENT = "from gevent import monkey, sleep, spawn; monkey.patch_all(GIVEN)"
_EVENTLET = """
import warnings; warnings.simplefilter("ignore")
import eventlet; from eventlet import sleep, spawn; eventlet.monkey_patch(GIVEN)
"""


def _run_agent(patch: str, closed_address: str, folder: Path, **more: str) -> str:
    own = {"SESSIONARY_BOOTSTRAP_SERVERS": closed_address, "SESSIONARY_SPOOL_DIR": str(folder), **more}
    done = subprocess.run(
        [sys.executable, "-c", _AGENT.replace("PATCH", patch)],
        env={name: value for name, value in os.environ.items() if not name.startswith("SESSIONARY_")} | own,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _require(name: str) -> None:
    """Skip a test without a library, which is not imported here: it would look at each fork."""
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed")


@pytest.mark.parametrize(("name", "patch"), [("gevent", _GEVENT), ("eventlet", _EVENTLET)], ids=["gevent", "eventlet"])
def test_replaced_threads_are_refused_at_once(name: str, patch: str, closed_address: str, tmp_path: Path) -> None:
    _require(name)
    said = _run_agent(patch.replace("GIVEN", ""), closed_address, tmp_path)
    assert said.startswith(f"refused: {name} has replaced the threads of this process")
    assert "gunicorn -k gthread" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "patch"), [("gevent", _GEVENT), ("eventlet", _EVENTLET)], ids=["gevent", "eventlet"])
def test_all_but_threads_may_be_replaced(name: str, patch: str, closed_address: str, tmp_path: Path) -> None:
    _require(name)
    said = _run_agent(patch.replace("GIVEN", "thread=False"), closed_address, tmp_path)
    assert said == "works: greenlets ran 1, True"


@pytest.mark.parametrize(("name", "patch"), [("gevent", _GEVENT), ("eventlet", _EVENTLET)], ids=["gevent", "eventlet"])
def test_a_client_that_is_turned_off_works_beside_replaced_threads(
    name: str, patch: str, closed_address: str, tmp_path: Path
) -> None:
    _require(name)
    said = _run_agent(patch.replace("GIVEN", ""), closed_address, tmp_path, SESSIONARY_DISABLED="1")
    assert said == "works: greenlets ran 1, False"


@pytest.mark.parametrize(
    ("module", "question", "name"),
    [("gevent.monkey", "is_module_patched", "gevent"), ("eventlet.patcher", "is_monkey_patched", "eventlet")],
)
def test_a_module_that_says_so_is_believed(
    module: str, question: str, name: str, closed_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced, errors = ModuleType(module), list[Exception]()
    setattr(replaced, question, lambda of: of in ("thread", "threading"))
    monkeypatch.setitem(sys.modules, module, replaced)
    before = _own_threads()
    with pytest.raises(ProducerError, match=f"^{name} has replaced the threads"):
        new_client(new_settings(closed_address, tmp_path), errors)
    assert (_own_threads() - before, errors, list(tmp_path.iterdir())) == (set(), [], [])
    client, _ = memory_client("acme", "s", "a")
    with client.session(user_id="u") as session:  # no thread of it waits in C
        session.activity("llm")


def _refuse_threads(monkeypatch: pytest.MonkeyPatch, started_before: int) -> Callable[[], None]:
    """Let this process start so many further threads of the client; return what allows more."""
    start, left = threading.Thread.start, [started_before]

    def start_or_fail(thread: threading.Thread) -> None:
        if thread.name.startswith("sessionary-"):
            left[0] -= 1
            if left[0] < 0:
                raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_fail)
    return lambda: monkeypatch.setattr(threading.Thread, "start", start)


@pytest.mark.parametrize(("policy", "needed"), [("spool", 2), ("drop", 1), ("block", 1)])
def test_a_process_that_may_start_no_thread_gets_one_error_and_nothing_stays(
    policy: str, needed: int, closed_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = new_settings(closed_address, tmp_path, delivery_policy=policy, journal_path=tmp_path / "journal")
    before = _own_threads()
    for started in range(needed):
        errors: list[Exception] = []
        files = _open_files()
        allow = _refuse_threads(monkeypatch, started)
        with pytest.raises(ProducerError, match=r"may start no further thread \(can't start new thread\)"):
            new_client(settings, errors)
        allow()
        wait_until(lambda: _own_threads() <= before, 20, "the end of the threads that did start")
        wait_until(lambda files=files: _open_files() <= files, 20, "the end of librdkafka's files")  # type: ignore[misc]
        assert [error for error in errors if not isinstance(error, Unavailable)] == []  # that Kafka is away
    with new_client(settings, errors) as client:
        assert client.delivery_policy == policy


def test_a_thread_that_librdkafka_may_not_start_is_the_same_error(
    closed_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from confluent_kafka import KafkaError, KafkaException

    from sessionary.producers.delivery import kafka_producer

    def fail(_config: object) -> None:
        raise KafkaException(KafkaError(KafkaError._FAIL, "Failed to create thread: Resource temporarily unavailable"))

    monkeypatch.setattr(kafka_producer, "Producer", fail)
    with pytest.raises(ProducerError, match=r"may start no further thread \(Failed to create thread"):
        new_client(new_settings(closed_address, tmp_path), [])


def test_without_a_thread_for_heartbeats_the_session_runs_and_the_next_one_tries_again(
    closed_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[Exception] = []
    with new_client(new_settings(closed_address, tmp_path), errors) as client:
        allow = _refuse_threads(monkeypatch, 0)
        with client.session(user_id="u") as session:
            session.activity("llm")
        allow()
        assert [type(error) for error in errors if "thread" in str(error)] == [ProducerError]
        client.session(user_id="u")
        assert "sessionary-heartbeat" in {thread.name for thread in _own_threads()}


@pytest.mark.parametrize("policy", ["spool", "drop"])
def test_a_client_that_is_made_again_and_again_leaves_no_threads_and_no_files(
    policy: str, closed_address: str, tmp_path: Path
) -> None:
    settings = new_settings(closed_address, tmp_path, delivery_policy=policy)
    before, files, foreign = _own_threads(), _open_files(), _foreign_threads()
    for _ in range(10):
        client = new_client(settings, [])
        with client.session(user_id="u") as session:
            session.activity("llm")
        tenant = client.for_tenant("globex")
    del client, session, tenant
    gc.collect()
    wait_until(lambda: _own_threads() <= before, 20, "the end of the threads")
    wait_until(lambda: _open_files() <= files, 20, "the end of the files")
    assert _foreign_threads() <= foreign


def test_what_a_forgotten_client_has_not_sent_is_in_its_spool(closed_address: str, tmp_path: Path) -> None:
    errors: list[Exception] = []
    client = new_client(new_settings(closed_address, tmp_path), errors)
    session = client.session(user_id="u")
    del client
    gc.collect()
    session.activity("llm")  # a session keeps its client open
    del session
    gc.collect()
    wait_until(lambda: any("are in the spool" in str(error) for error in errors), 20, "the client's end")


@pytest.mark.parametrize("kept", ["session", "tenant", "handler", "asyncio", "not_entered", "it"])
def test_a_client_stays_open_as_long_as_it_is_used(kept: str, closed_address: str, tmp_path: Path) -> None:
    uses: dict[str, Callable[[SessionClient], object]] = {
        "session": lambda client: client.session(user_id="u"),
        "tenant": lambda client: client.for_tenant("globex"),
        "handler": lambda client: client.on_cleanup(lambda _request: None),
        "asyncio": AsyncSessionClient.wrap,
        "not_entered": lambda client: AsyncSessionClient.wrap(client).session(user_id="u"),
        "it": lambda client: client,
    }
    client = new_client(new_settings(closed_address, tmp_path, delivery_policy="drop"), [])
    core, held = client.core, uses[kept](client)
    del client
    gc.collect()
    assert core._without_lease is not None
    assert core._without_lease.alive
    assert core.is_open
    del held
    core.close(0.0)
    assert not core._without_lease.alive


_EXIT = """
import time, atexit
began = []
atexit.register(lambda: print(f"{time.monotonic() - began[0]:.3f}"))  # before the client's, so it is called after it
from sessionary.producers import SessionClient
clients = [
    SessionClient(tenant_id="acme", service_id="s", agent_id=f"a{n}", on_error=lambda error: print(error))
    for n in range(4)
]
for client in clients:
    client.session(user_id="u")
began.append(time.monotonic())
"""


@pytest.mark.parametrize("policy", ["spool", "drop"])
def test_an_exit_without_kafka_takes_one_wait_for_all_clients(policy: str, closed_address: str, tmp_path: Path) -> None:
    wait_s = 2.0
    own = {
        "SESSIONARY_BOOTSTRAP_SERVERS": closed_address,
        "SESSIONARY_SPOOL_DIR": str(tmp_path),
        "SESSIONARY_CLOSE_TIMEOUT_S": str(wait_s),
        "SESSIONARY_DELIVERY_POLICY": policy,
    }
    began_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", _EXIT],
        env={name: value for name, value in os.environ.items() if not name.startswith("SESSIONARY_")} | own,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert time.monotonic() - began_s > wait_s
    *said, took_s = done.stdout.splitlines()
    ends = [line for line in said if "were not acknowledged before the client closed" in line]
    assert len(ends) == 4
    assert float(took_s) < len(ends) * wait_s  # one after the other they take at least as long
