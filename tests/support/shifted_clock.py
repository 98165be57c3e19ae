"""A wall clock of a child process that a test may shift while the process runs; Linux only.

A small C library is compiled with `cc` and preloaded. The time of day of a JVM and of Python come
from `clock_gettime`, which it replaces. Monotonic clocks stay, so that no time-out is shortened.
"""

import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_SOURCE = Path(__file__).with_name("shifted_clock.c")

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="the library needs a C compiler, cc")


class ShiftedClock:
    """The wall clock of the processes that are started within `preload`."""

    def __init__(self, folder: Path) -> None:
        """Compile the library into `folder`, which is created."""
        folder.mkdir()
        self._shift, self._library = folder / "shift", folder / "shifted_clock.so"
        self._shift.write_bytes(struct.pack("=q", 0))
        argv = ["cc", "-shared", "-fPIC", "-O2", "-o", str(self._library), str(_SOURCE), "-ldl"]
        subprocess.run(argv, check=True, timeout=300)

    @contextmanager
    def preload(self) -> Iterator[None]:
        """Set this process's environment for the children that it starts."""
        before = dict(os.environ)
        os.environ.update(LD_PRELOAD=str(self._library), SHIFTED_CLOCK_FILE=str(self._shift))
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)

    def shift_by(self, seconds: int) -> None:
        """Set how far the clock is ahead of this machine's; negative: behind."""
        with self._shift.open("r+b") as file:  # the same file: the processes have mapped it
            file.write(struct.pack("=q", seconds))
