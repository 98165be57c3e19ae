"""The client as a user that no file knows, without a home or on a disk that can only be read.

User and disk are real ones, of a user namespace.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.style.project import ROOT
from tests.support.full_disk import may_mount

# Makes a folder read-only, then goes on as a user without a name.
_PREPARE = """
mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" || exit 77
shift
exec unshare --user --map-user=54321 --map-group=54321 "$@"
"""
_AGENT = """
import os, pwd
from sessionary.producers import SessionClient

try:
    print("known", pwd.getpwuid(os.getuid()).pw_name)
except KeyError:
    print("unknown")
client = SessionClient(tenant_id="acme", service_id="s", agent_id="a")
with client, client.session(user_id="u", state={"n": 1}) as session:
    session.activity("llm")
    session.update_state({"n": 2}, wait=False)
print(session.local_state, client.delivery_policy, client.counters.sent > 5, client.counters.dropped)
"""


@pytest.mark.parametrize(("has_home", "why"), [(False, "no home folder"), (True, "Read-only file system")])
def test_an_unknown_user_works_without_a_spool_and_is_reported_once(
    *, has_home: bool, why: str, closed_address: str, tmp_path: Path
) -> None:
    tool = shutil.which("unshare")
    if tool is None or not may_mount():
        pytest.skip("no user namespaces, in which a user could be unknown")
    foreign = ("HOME", "XDG_STATE_HOME", "SESSIONARY_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    env |= {"SESSIONARY_BOOTSTRAP_SERVERS": closed_address, "SESSIONARY_CLOSE_TIMEOUT_S": "0.1"}
    env |= {"HOME": str(tmp_path)} if has_home else {}
    done = subprocess.run(
        [tool, "-Urm", "sh", "-c", _PREPARE, "sh", str(tmp_path), sys.executable, "-c", _AGENT],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout.splitlines()) == (0, ["unknown", "Terminated drop True 0"]), done.stderr
    (reported,) = [line for line in done.stderr.splitlines() if "SESSIONARY_SPOOL_DIR" in line]
    assert why in reported
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
