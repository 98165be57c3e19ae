"""Small disks that tests fill: a tmpfs in a user namespace."""

import errno
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from sessionary.infra.local.clickhouse.endpoint import clickhouse_answers
from sessionary.infra.local.ports import free_port
from tests.support.processes import Processes
from tests.support.waiting import wait_until

_PIECE = bytes(64 << 10)


def may_mount() -> bool:
    """Return whether a user namespace may mount a tmpfs here; tries it in one that ends at once."""
    if (tool := shutil.which("unshare")) is None:
        return False
    attempt = [tool, "-Urm", "mount", "-t", "tmpfs", "tmpfs", tempfile.gettempdir()]
    return subprocess.run(attempt, capture_output=True, check=False).returncode == 0


def fill_disk(ballast: Path) -> None:
    """Append to a file until its disk has no room left."""
    with ballast.open("ab", buffering=0) as file:
        try:
            while file.write(_PIECE):
                pass
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


def start_small_clickhouse(processes: Processes, data: Path) -> tuple[int, Path]:
    """Start a ClickHouse endpoint on a tmpfs of 48 MiB.

    Returns its port, and a file's place on that disk, for ballast.
    """
    port = free_port()
    data.mkdir()
    mount = 'mount -t tmpfs -o size=48m tmpfs "$0" && exec "$@"'
    serve = ["-m", "sessionary.infra.local.clickhouse.endpoint", "--data", str(data), "--port", str(port)]
    child = processes.run(["unshare", "-Urm", "sh", "-c", mount, str(data), sys.executable, *serve], name="clickhouse")
    wait_until(lambda: clickhouse_answers(port), 60, "the endpoint to answer")
    return port, Path(f"/proc/{child.pid}/root{data}/ballast")
