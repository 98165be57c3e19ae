"""The client on a Python without POSIX's extras: its import, and a part of its own tests."""

import subprocess
import sys
from pathlib import Path

from tests.style.project import ROOT

# Without forks, and without several processes.
_TESTS = [
    *("test_client.py", "delivery/test_direct_transport.py", "delivery/test_emitter.py"),
    *("delivery/spool/test_transport.py", "process/test_guards.py"),
]
_AGENT = """
import sys
from pathlib import Path
import tests.support.bare_platform
from sessionary.producers import ProducerSettings, SessionClient

for _ in range(2):  # the second one replays what the first one left
    settings = ProducerSettings.from_env(
        {}, bootstrap_servers="127.0.0.1:1", spool_dir=Path(sys.argv[1]), close_timeout_s=0.1
    )
    client = SessionClient(tenant_id="acme", service_id="s", agent_id="a", settings=settings, on_error=bool)
    with client, client.session(user_id="u") as session:
        session.activity("llm")
    print(client.delivery_policy, client.counters.sent, client.counters.replayed)
"""


def run_bare(*argv: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *argv], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


def test_an_agent_works_with_its_spool(tmp_path: Path) -> None:
    done = run_bare("-c", _AGENT, tmp_path)
    assert (done.stdout.split(), done.stderr) == (["spool", "6", "0", "spool", "6", "6"], "")


def test_the_tests_of_the_client_pass() -> None:
    files = [f"tests/core/producers/{name}" for name in _TESTS]
    plugins = ["-p", "tests.support.bare_platform", "-p", "tests.core.producers.conftest", "-p", "no:cacheprovider"]
    done = run_bare("-m", "pytest", "-q", "--noconftest", *plugins, "-k", "not forked", *files)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
