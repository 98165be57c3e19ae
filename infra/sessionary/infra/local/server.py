"""What the local servers share: a child process that is awaited, stopped and killed."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from pathlib import Path

from sessionary.infra.local.errors import StartFailed
from sessionary.infra.local.process import Child, tail

_STOP_GRACE_S = 15.0
_PROBE_PAUSE_S = 0.1


class LocalServer(ABC):
    """A server as a child process. Not thread-safe."""

    def __init__(self, title: str, log: Path) -> None:
        """`title`: the server's name in error texts, such as `the broker`. `log`: its output."""
        self._title = title
        self._log = log
        self._child: Child | None = None

    @abstractmethod
    def is_answering(self) -> bool:
        """Return True if the server answers requests. Blocks for 2 s at most."""

    @property
    def pid(self) -> int | None:
        """The server's process id; None if it does not run."""
        return self._child.pid if self._child is not None and self._child.exit_code is None else None

    def check_stopped(self) -> None:
        """Raise `RuntimeError` if the server runs already."""
        if self.pid is not None:
            raise RuntimeError(f"{self._title} runs already: stop it first")

    def wait_ready(self, timeout_s: float = 180.0) -> None:
        """Block until the server answers. Raises `StartFailed` with the end of its log."""
        child = self._child
        if child is None:
            raise RuntimeError(f"{self._title} was not started: call start first")
        deadline = time.monotonic() + timeout_s
        while not self.is_answering():
            if child.wait(_PROBE_PAUSE_S):
                raise StartFailed(f"{self._title} ended with code {child.exit_code}:\n{tail(self._log)}")
            if time.monotonic() > deadline:
                raise StartFailed(f"{self._title} did not answer within {timeout_s:g} s:\n{tail(self._log)}")

    def stop(self) -> None:
        """Stop the server: SIGTERM, after 15 s SIGKILL. Blocks; does nothing if it does not run."""
        if self._child is not None:
            self._child.stop(_STOP_GRACE_S)

    def kill(self) -> None:
        """Send SIGKILL. Blocks until the server is gone."""
        if self._child is not None:
            self._child.kill()
