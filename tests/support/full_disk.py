"""Small disks that tests fill: a tmpfs in a user namespace."""

import errno
import shutil
import subprocess
import tempfile
from pathlib import Path

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
