"""Child processes that cannot outlive their parent.

A parent that is killed with signal 9 runs no clean-up, so the kernel must do it: each child asks for SIGKILL at its
parent's death (prctl PR_SET_PDEATHSIG), in a small interpreter that then becomes the real program by exec; the
request survives exec. Why this and nothing else:

- a pipe that closes with the parent needs a helper process beside every child for as long as that lives;
- `preexec_fn` runs Python between fork and exec of a process with threads, which may deadlock;
- the kernel watches the *thread* that forked, not the process. All children are therefore started by one thread that
  lives as long as the process; a child started from a worker thread would die with that thread.

The parent may die before the child has asked; so the child then compares its parent's pid, and leaves if it differs.
Where there is no prctl (not Linux) children survive the parent's SIGKILL; all else is the same. Processes that a
child starts by itself share its process group: they end with `stop` and `kill`, but not by the kernel's signal.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue

__all__ = ["Child", "tail"]

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
    """The one thread that forks."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[tuple[list[str], Mapping[str, str] | None, Path, Future[subprocess.Popen[bytes]]]]
        self._jobs = SimpleQueue()
        self._lock = threading.Lock()
        self._running = False

    def spawn(self, argv: list[str], env: Mapping[str, str] | None, log: Path) -> subprocess.Popen[bytes]:
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
                answer.set_result(_popen(argv, env, log))
            except OSError as error:
                answer.set_exception(error)


def _popen(argv: list[str], env: Mapping[str, str] | None, log: Path) -> subprocess.Popen[bytes]:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            argv, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )


_spawner = _Spawner()


class Child:
    """One program in a session of its own (Ctrl-C at the terminal does not reach it), output appended to `log`.

    Thread-safe. `pid` is also the id of its process group.
    """

    def __init__(self, argv: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        """Start it. `env` is the whole environment; None inherits. Raises OSError if nothing can be started."""
        guard = [sys.executable, "-I", "-S", "-c", _BOUND_TO_PARENT, str(os.getpid())]
        self._process = _spawner.spawn([*guard, *argv], env, log)
        self.pid = self._process.pid
        self.log = log
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._listeners: list[Callable[[], None]] = []
        self._exit_code: int | None = None
        threading.Thread(target=self._reap, name=f"reap-{self.pid}", daemon=True).start()

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._exit_code

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether it has ended, waiting up to `timeout_s`."""
        return self._ended.wait(timeout_s)

    def when_ended(self, tell: Callable[[], None]) -> None:
        """Call `tell` once, from another thread, when it has ended; at once if it has ended already."""
        with self._lock:
            if not self._ended.is_set():
                self._listeners.append(tell)
                return
        tell()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the whole process group; nothing happens if it has ended."""
        with self._lock:
            if not self._ended.is_set():
                _signal_group(self.pid, number)

    def kill(self) -> None:
        """SIGKILL to the process group; returns when the child is gone."""
        self.signal(signal.SIGKILL)
        self._ended.wait()

    def stop(self, grace_s: float) -> None:
        """SIGTERM, up to `grace_s` of waiting, then SIGKILL; returns when the child is gone."""
        self.signal(signal.SIGTERM)
        if not self.wait(grace_s):
            self.kill()

    def _reap(self) -> None:
        # Seen dead, but not yet reaped, the pid cannot be given to anybody else: signals to the group are safe.
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        _signal_group(self.pid, signal.SIGKILL)
        with self._lock:
            self._exit_code = self._process.wait()
            self._ended.set()
        for tell in self._listeners:
            tell()


def _signal_group(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        # Gone; macOS says "not permitted" of a group in which only a zombie is left.
        return


def tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log file, for an error's text; empty if there is none."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 16_384))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
