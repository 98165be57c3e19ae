"""Commands whose output goes to a terminal, as if a reader ran them."""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Mapping
from pathlib import Path

_ROWS, _COLUMNS = 40, 100
_ERASED = re.compile(r"[^\n]*\r\x1b\[K")  # a line of progress that was written over
_CONTROL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|\r")
_STOP_S = 180.0


class TerminalCommand:
    """A shell command, started with its output on a terminal; a thread collects the output."""

    def __init__(self, command: str, cwd: Path, env: Mapping[str, str], columns: int = _COLUMNS) -> None:
        """Start `command` with bash. Its stdin is empty; Ctrl-C here does not reach it."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, columns, 0, 0))
        self._process = subprocess.Popen(
            ["bash", "-c", command],
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self._output = bytearray()
        self._reader = threading.Thread(target=self._collect, args=(ours,), daemon=True)
        self._reader.start()

    @property
    def text(self) -> str:
        """What it has written so far, without colours and lines that were erased."""
        return _CONTROL.sub("", _ERASED.sub("", bytes(self._output).decode(errors="replace")))

    @property
    def has_ended(self) -> bool:
        """Whether the command has ended."""
        return self._process.poll() is not None

    def wait_end(self, timeout_s: float) -> int:
        """Wait for the end and return the exit code. Raises subprocess.TimeoutExpired."""
        code = self._process.wait(timeout_s)
        self._reader.join(timeout_s)
        return code

    def interrupt(self) -> int:
        """Press Ctrl-C: SIGINT to the process group; return the exit code."""
        os.killpg(self._process.pid, signal.SIGINT)
        return self.wait_end(_STOP_S)

    def end(self) -> None:
        """End it if it still runs: SIGTERM, which lets a stack stop its parts, then SIGKILL."""
        if not self.has_ended:
            os.killpg(self._process.pid, signal.SIGTERM)
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()

    def _collect(self, ours: int) -> None:
        while True:
            try:
                piece = os.read(ours, 65_536)
            except OSError:  # Linux says EIO when the last writer has gone
                piece = b""
            if not piece:
                os.close(ours)
                return
            self._output += piece
