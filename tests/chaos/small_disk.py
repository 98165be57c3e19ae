"""Disks that can be full: a small tmpfs in a user namespace; without namespaces, injected ENOSPC.

Call `enter_namespace` first: it replaces the process by one that may mount.
"""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.full_disk import fill_disk, may_mount

_MARK = "SESSIONARY_CHAOS_NAMESPACE"
FULL_FLAG = "SESSIONARY_CHAOS_FULL_FLAG"
_BALLAST = "ballast"


def enter_namespace(argv: Sequence[str]) -> bool:
    """Restart this program in a user namespace that may mount; return True if we are in one."""
    if _MARK in os.environ:
        return os.environ[_MARK] == "yes"
    tool = shutil.which("unshare")
    if tool is not None and may_mount():
        os.environ[_MARK] = "yes"
        os.execv(tool, [tool, "-Urm", sys.executable, "-m", "tests.chaos", *argv])
    os.environ[_MARK] = "no"
    return False


class SmallDisk:
    """A folder that can be filled. If nothing can be mounted, a flag file simulates a full disk."""

    def __init__(self, folder: Path, size_mib: int, *, mounted: bool) -> None:
        """Create the folder; mount a tmpfs on it if `mounted`."""
        self.folder = folder
        self.mounted = mounted
        self.flag = folder.with_name(folder.name + ".full")
        folder.mkdir(parents=True)
        if mounted:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs", str(folder)], check=True)

    def fill(self) -> None:
        """Fill the disk."""
        if self.mounted:
            fill_disk(self.folder / _BALLAST)
        else:
            self.flag.touch()

    def empty(self) -> None:
        """Free the space again."""
        self.flag.unlink(missing_ok=True)
        (self.folder / _BALLAST).unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount the disk."""
        if self.mounted:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=False, capture_output=True)


def simulate_full_disk() -> None:
    """Make block allocation fail in this process while the flag file of the environment exists."""
    named = os.environ.get(FULL_FLAG)
    if named is None:
        return
    flag, allocate = Path(named), os.posix_fallocate

    def allocate_unless_full(fd: int, offset: int, length: int, /) -> None:
        if flag.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        allocate(fd, offset, length)

    os.posix_fallocate = allocate_unless_full
