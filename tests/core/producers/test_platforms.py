"""The client on a Python without POSIX's extras: its import, and its own tests."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.style.project import ROOT

_PART = [
    *("test_client.py", "delivery/test_direct_transport.py", "delivery/test_emitter.py"),
    *("delivery/spool/test_transport.py", "process/test_guards.py"),
]
_PARTS = 3  # of all folders: on a busy machine one alone takes minutes
# Forks and signals, and what runs a checker or this file again.
_NEEDS_POSIX = "not forked and not test_platforms and not test_typing"
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
    return subprocess.run([sys.executable, *argv], cwd=ROOT, capture_output=True, text=True, timeout=800, check=False)


def test_an_agent_works_with_its_spool(tmp_path: Path) -> None:
    done = run_bare("-c", _AGENT, tmp_path)
    assert (done.stdout.split(), done.stderr) == (["spool", "6", "0", "spool", "6", "6"], "")


def run_tests(*names: str) -> subprocess.CompletedProcess[str]:
    """Run tests of the client without POSIX's extras, but for those of what only POSIX has."""
    plugins = ["-p", "tests.support.bare_platform", "-p", "tests.core.conftest", "-p", "no:cacheprovider"]
    folder = "tests/core/producers"
    files = [f"{folder}/{name}" for name in names]
    arguments = ["-q", f"--confcutdir={folder}", *plugins, "-k", _NEEDS_POSIX, *files]
    return run_bare("-m", "pytest", *arguments)


def test_a_part_of_the_client_s_tests_passes() -> None:
    done = run_tests(*_PART)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


@pytest.mark.parametrize("part", range(_PARTS))
def test_the_tests_of_nearly_all_folders_pass(part: int) -> None:
    """Each test of the spool runs with and without anyway; those of `client_core` fork."""
    here = Path(__file__).parent
    folders = {path.parent.name for path in here.glob("*/__init__.py")} - {"delivery", "client_core"}
    done = run_tests(*sorted(folders)[part::_PARTS])
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) > 150
