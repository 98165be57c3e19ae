"""What a program set up for itself is as it was, while a client works and after it."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sessionary.producers import ProducerSettings
from tests.core.producers.kafka_clients import new_client, new_settings
from tests.support.waiting import wait_until

_PROGRAM = """
import json, locale, logging, os, random, signal, socket, sys, threading, warnings

kept = {}
signal.signal(signal.SIGINT, lambda *_: None)
signal.signal(signal.SIGUSR1, lambda *_: None)
OWN_SIGTERM
sys.excepthook = lambda *_: None
logging.basicConfig(level=logging.INFO, format="host %(message)s")
random.seed(7)
os.umask(0o027)
logging.getLogger("host").addHandler(logging.NullHandler())
loggers = [logging.getLogger(), *map(logging.getLogger, sorted(logging.root.manager.loggerDict))]

def look():
    return {
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals() if number != SKIPPED},
        "logging": {one.name: (one.level, list(one.handlers), one.disabled, one.propagate) for one in loggers},
        "disabled": logging.root.manager.disable,
        "environ": dict(os.environ),
        "excepthooks": (sys.excepthook, threading.excepthook, sys.unraisablehook, threading.__excepthook__),
        "warnings": (list(warnings.filters), warnings.showwarning),
        "locale": locale.setlocale(locale.LC_ALL),
        "umask": (os.umask(0o027), os.umask(0o027)),
        "cwd": os.getcwd(),
        "random": random.getstate(),
        "sockets": socket.getdefaulttimeout(),
        "limits": (sys.getrecursionlimit(), sys.getswitchinterval(), threading.stack_size()),
        "tracing": (sys.gettrace(), sys.getprofile(), threading.gettrace()),
        "streams": (sys.stdout, sys.stderr, sys.stdin),
    }

before = look()
from sessionary.producers import SessionClient

client = SessionClient(tenant_id="acme", service_id="s", agent_id="a", on_error=lambda error: None)
with client.session(user_id="u", state={"n": 1}) as session:
    session.activity("llm")
    session.update_state({"n": 2}, wait=False)
    during = look()
client.close(0.1)
after = look()
sys.excepthook = sys.__excepthook__
for name in before:
    assert before[name] == during[name], (name, before[name], during[name])
    assert before[name] == after[name], (name, before[name], after[name])
print("untouched", len(before))
"""


@pytest.mark.parametrize("own", [True, False])
def test_a_client_leaves_its_host_as_it_was(*, own: bool, closed_address: str, tmp_path: Path) -> None:
    """SIGTERM is the one exception, and only if the program has no handler for it."""
    program = _PROGRAM.replace("OWN_SIGTERM", "signal.signal(signal.SIGTERM, lambda *_: None)" if own else "")
    program = program.replace("SKIPPED", "None" if own else "signal.SIGTERM")
    env = {name: value for name, value in os.environ.items() if not name.startswith("SESSIONARY_")}
    env |= {
        "SESSIONARY_BOOTSTRAP_SERVERS": closed_address,
        "SESSIONARY_CONTROL_URL": f"http://{closed_address}",
        "SESSIONARY_SPOOL_DIR": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout.split()) == (0, ["untouched", "14"]), done.stderr


_MOVES = """
import os, sys
from sessionary.producers import SessionClient

client = SessionClient(tenant_id="acme", service_id="s", agent_id="a", on_error=lambda error: None)
os.chdir(sys.argv[1])
session = client.session(user_id="u")
child = os.fork()
if child == 0:
    client.session(user_id="u").activity("llm")
    client.close(0.1)
    os._exit(0)
os.waitpid(child, 0)
client.close(0.1)
"""


def test_a_relative_folder_is_the_one_at_construction(closed_address: str, tmp_path: Path) -> None:
    began, moved = tmp_path / "began", tmp_path / "moved"
    began.mkdir()
    moved.mkdir()
    env = {name: value for name, value in os.environ.items() if not name.startswith("SESSIONARY_")}
    own = {
        "SESSIONARY_BOOTSTRAP_SERVERS": closed_address,
        "SESSIONARY_SPOOL_DIR": "spool",
        "SESSIONARY_JOURNAL_PATH": "journal",
    }
    program = [sys.executable, "-c", _MOVES, str(moved)]
    subprocess.run(program, env=env | own, cwd=began, timeout=120, check=True)
    assert list(moved.iterdir()) == []
    assert {one.name for one in began.iterdir()} == {"spool", "journal"}
    assert len([one for one in (began / "spool").rglob("*") if one.is_file()]) > 1


def test_folders_of_settings_are_absolute() -> None:
    settings = ProducerSettings.from_env({"SESSIONARY_SPOOL_DIR": "spool", "SESSIONARY_JOURNAL_PATH": "j"})
    assert (settings.spool_dir, settings.journal_path) == (Path.cwd() / "spool", Path.cwd() / "j")


@pytest.mark.parametrize(
    "name",
    ["with space", "übung-日本", "a,b", "back\\slash", "per%20cent#hash=1", "$HOME", "{x}", "*", "a?b", "\udcff"],
)
def test_a_spool_folder_may_have_any_name(name: str, closed_address: str, tmp_path: Path) -> None:
    settings = new_settings(closed_address, tmp_path / name / "spool")
    errors: list[Exception] = []
    with new_client(settings, errors) as client, client.session(user_id="u") as session:
        session.activity("llm")
        assert client.delivery_policy == "spool"
    assert [one.name for one in tmp_path.iterdir()] == [name]
    with new_client(settings, errors) as client:
        wait_until(lambda: client.counters.replayed >= 4, 20, "the events of the first client")


_LEFT_AT_ONCE = """
import os
from sessionary.producers import SessionClient

client = SessionClient(tenant_id="acme", service_id="s", agent_id="a", on_error=lambda error: None)
child = os.fork()
if child == 0:
    client.session(user_id="u").activity("llm")
    os._exit(0)
os.waitpid(child, 0)
client.close(0.1)
"""


def test_the_next_client_sends_what_a_child_left_at_os_exit(closed_address: str, tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("SESSIONARY_")}
    own = {"SESSIONARY_BOOTSTRAP_SERVERS": closed_address, "SESSIONARY_SPOOL_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", _LEFT_AT_ONCE], env=env | own, timeout=120, check=True)
    with new_client(new_settings(closed_address, tmp_path), []) as client:
        wait_until(lambda: client.counters.replayed >= 3, 20, "the child's events")


_DURING_EXIT = """
import atexit, os, sys, threading, time
from sessionary.producers import SessionClient

def make_client():
    return SessionClient(tenant_id="acme", service_id="s", agent_id="a", on_error=lambda error: None)

client = make_client()
session = client.session(user_id="u")

def work_on():
    while True:
        try:
            session.activity("llm")
        except Exception as error:
            print(type(error).__name__, flush=True)
            return

threading.Thread(target=work_on, daemon=True).start()
atexit.register(session.close)  # called before the client's end, which was registered first
atexit.register(lambda: print("last", client.core.is_open))
"""


def test_an_exit_beside_threads_that_work_on_is_orderly(closed_address: str, tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("SESSIONARY_")}
    own = {
        "SESSIONARY_BOOTSTRAP_SERVERS": closed_address,
        "SESSIONARY_SPOOL_DIR": str(tmp_path),
        "SESSIONARY_CLOSE_TIMEOUT_S": "0.2",
    }
    began_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", _DURING_EXIT], env=env | own, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "Fatal" not in done.stderr
    assert done.stdout.splitlines()[0] == "last True"
    assert time.monotonic() - began_s < 100
