"""Child processes that cannot outlive their parent.

A parent that is killed with signal 9 runs no clean-up, so the kernel must do it. Each child
requests SIGKILL at its parent's death (prctl PR_SET_PDEATHSIG) in a small interpreter, which then
becomes the real program by exec; the request survives exec. The alternatives are worse:

- A pipe that closes with the parent needs a helper process for every child.
- `preexec_fn` runs Python between fork and exec of a process with threads, which can deadlock.

The kernel watches the *thread* that forked, not the process. One thread that lives as long as the
process therefore starts all children; otherwise a child would die with the thread that started it.

The parent may die before the child has made its request, so the child compares its parent's pid
afterwards and exits if it differs. Without prctl (not Linux) children survive the parent's SIGKILL.
Processes that a child starts share its process group: `stop` and `kill` end them, the kernel's
signal does not.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue

from sessionary.infra.local.errors import StartFailed

_BOUND_TO_PARENT = """\
import os, sys
parent, program = int(sys.argv[1]), sys.argv[2:]
if sys.platform == "linux":
    import ctypes
    if ctypes.CDLL(None, use_errno=True).prctl(1, 9, 0, 0, 0) != 0:
        sys.exit("prctl(PR_SET_PDEATHSIG) failed: " + os.strerror(ctypes.get_errno()))
if os.getppid() != parent:
    sys.exit("the parent process has gone")
os.execvp(program[0], program)
"""


class _Spawner:
    """The single thread that forks."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[tuple[list[str], Mapping[str, str] | None, Path, Future[subprocess.Popen[bytes]]]]
        self._jobs = SimpleQueue()
        self._lock = threading.Lock()
        self._running = False

    def start_process(self, argv: list[str], env: Mapping[str, str] | None, log: Path) -> subprocess.Popen[bytes]:
        with self._lock:
            if not self._running:
                threading.Thread(target=self._run, name="spawner", daemon=True).start()
                self._running = True
        answer: Future[subprocess.Popen[bytes]] = Future()
        self._jobs.put((argv, env, log, answer))
        return answer.result()

    def _run(self) -> None:
        while True:
            argv, env, log, answer = self._jobs.get()
            try:
                answer.set_result(_open_process(argv, env, log))
            except OSError as error:
                answer.set_exception(error)


def _open_process(argv: list[str], env: Mapping[str, str] | None, log: Path) -> subprocess.Popen[bytes]:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            argv, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )


_spawner = _Spawner()


class Child:
    """One program in a separate session: Ctrl-C at the terminal does not reach it.

    Its output is appended to `log`. `pid` is also the id of its process group. Thread-safe.
    """

    def __init__(self, argv: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        """Start the program. `env` is its whole environment; None: this process's environment.

        Raises `OSError` if the program cannot be started.
        """
        guard = [sys.executable, "-I", "-S", "-c", _BOUND_TO_PARENT, str(os.getpid())]
        self._process = _spawner.start_process([*guard, *argv], env, log)
        self.pid = self._process.pid
        self.log = log
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._listeners: list[Callable[[], None]] = []
        self._exit_code: int | None = None
        threading.Thread(target=self._reap_process, name=f"reap-{self.pid}", daemon=True).start()

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while it runs, negative if a signal ended it."""
        return self._exit_code

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until it has ended, up to `timeout_s` (None: no limit).

        Return True if it has ended.
        """
        return self._ended.wait(timeout_s)

    def when_ended(self, listener: Callable[[], None]) -> None:
        """Call `listener` once, when it has ended, on another thread; at once if it has ended."""
        with self._lock:
            if not self._ended.is_set():
                self._listeners.append(listener)
                return
        listener()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the whole process group; do nothing if the child has ended."""
        with self._lock:
            if not self._ended.is_set():
                _signal_group(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL to the process group. Blocks until the child is gone."""
        self.signal(signal.SIGKILL)
        self._ended.wait()

    def stop(self, grace_s: float) -> None:
        """Send SIGTERM, wait up to `grace_s`, then send SIGKILL. Blocks until the child is gone."""
        self.signal(signal.SIGTERM)
        if not self.wait(grace_s):
            self.kill()

    def _reap_process(self) -> None:
        # The kernel does not reuse the pid of a dead child before it is reaped, so signals to the
        # group are safe.
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        _signal_group(self.pid, signal.SIGKILL)
        with self._lock:
            self._exit_code = self._process.wait()
            self._ended.set()
        for listener in self._listeners:
            listener()


def _signal_group(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        # The group is gone. macOS reports "not permitted" if only a zombie is left in it.
        return


def tail(log: Path, lines: int = 15, bytes_max: int = 16_384) -> str:
    """Return the last lines of a log file, for an error's text; empty if there is no file.

    The first one may lack its beginning: at most `bytes_max` are read.
    """
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - bytes_max))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


# The common part of the local servers: a child process that is awaited, stopped and killed.


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
