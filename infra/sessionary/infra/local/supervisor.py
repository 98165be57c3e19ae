"""Runs named parts as child processes, starts the dead ones again, and ends all of them together.

One loop on one thread decides everything, by `parts.Schedule`; it sleeps until a child ends, a wait is over, or `stop`
asks. Children cannot outlive this process, not even its SIGKILL: see process.py.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType

from sessionary.infra.local.errors import BadParts, StartFailed
from sessionary.infra.local.parts import BackOff, PartState, Schedule
from sessionary.infra.local.process import Child, tail

__all__ = ["Part", "PartChange", "Supervisor"]

_PROBE_PAUSE_S = 0.1


def _nothing(_change: PartChange) -> None:
    return None


@dataclass(frozen=True)
class Part:
    """One program under supervision.

    `env`: the whole environment, None inherits. `log_path`: its output is appended there. `ready`: asked ten times a
    second from the supervisor's thread until it says True; it should answer within a second or two. None: ready when
    started. `after`: names of parts that must be ready whenever this one starts.
    """

    name: str
    argv: Sequence[str]
    log_path: Path
    env: Mapping[str, str] | None = None
    ready: Callable[[], bool] | None = None
    after: Sequence[str] = field(default=())


@dataclass(frozen=True, slots=True)
class PartChange:
    """A part's new state. After a death (WAITING): how it ended (negative: by that signal) and how long it waits."""

    name: str
    state: PartState
    pid: int | None = None
    exit_code: int | None = None
    wait_s: float | None = None


class Supervisor:
    """Supervises parts from `start` to `stop`, once; as a context manager it does both. Thread-safe."""

    def __init__(
        self,
        parts: Sequence[Part],
        on_change: Callable[[PartChange], None] = _nothing,
        *,
        back_off: BackOff | None = None,
        grace_s: float = 15.0,
    ) -> None:
        """`on_change` is called from the supervisor's thread: it must not block, nor stop the supervisor.
        `grace_s`: between SIGTERM and SIGKILL. Raises BadParts.
        """
        self._parts = {part.name: part for part in parts}
        if len(self._parts) != len(parts):
            raise BadParts("two parts have the same name")
        self._schedule = Schedule({part.name: part.after for part in parts}, back_off or BackOff())
        self._on_change = on_change
        self._grace_s = grace_s
        self._children: dict[str, Child] = {}
        # A name: that part's child has ended. None: stop.
        self._news: SimpleQueue[str | None] = SimpleQueue()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)

    def __enter__(self) -> Supervisor:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def wait_ready(self, timeout_s: float) -> None:
        """Block until all parts are ready at once. Raises StartFailed with the names and logs of those that are not."""
        with self._changed:
            if self._changed.wait_for(self._schedule.all_ready, timeout_s):
                return
            late = [name for name in self._schedule.start_order if self._schedule.state(name) is not PartState.READY]
        logs = "\n".join(
            f"--- {name}: {self._parts[name].log_path}\n{tail(self._parts[name].log_path)}" for name in late
        )
        raise StartFailed(f"not ready after {timeout_s:g} s: {', '.join(late)}\n{logs}")

    def states(self) -> dict[str, PartState]:
        """All parts, in start order."""
        with self._changed:
            return {name: self._schedule.state(name) for name in self._schedule.start_order}

    def pid(self, name: str) -> int | None:
        """The part's process (and process group), None if it does not run."""
        with self._changed:
            child = self._children.get(name)
        return child.pid if child is not None and child.exit_code is None else None

    def stop(self) -> None:
        """End all parts, each after those that wait for it, by SIGTERM, grace, SIGKILL; returns when all are gone."""
        if not self._thread.is_alive():
            return
        self._news.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        finally:
            self._stop_all()

    def _turn(self) -> bool:
        """Start what may start, ask what is starting, wait for news; False: stop."""
        for name in self._schedule.startable(time.monotonic()):
            self._start(name)
        for name in self._schedule.in_state(PartState.STARTING):
            self._probe(name)
        try:
            news = self._news.get(timeout=self._pause_s())
        except Empty:
            return True
        if news is None:
            return False
        self._bury(news)
        return True

    def _pause_s(self) -> float | None:
        """How long there is nothing to do without news; None: for ever."""
        now = time.monotonic()
        due = self._schedule.next_due(now)
        if self._schedule.in_state(PartState.STARTING):
            return _PROBE_PAUSE_S if due is None else min(_PROBE_PAUSE_S, due)
        return due

    def _start(self, name: str) -> None:
        part = self._parts[name]
        try:
            child = Child(part.argv, part.log_path, part.env)
        except OSError:
            with self._changed:
                wait_s = self._schedule.died(name, time.monotonic())
            self._tell(PartChange(name, PartState.WAITING, wait_s=wait_s))
            return
        with self._changed:
            self._children[name] = child
            self._schedule.started(name, time.monotonic())
        child.when_ended(lambda: self._news.put(name))
        self._tell(PartChange(name, PartState.STARTING, pid=child.pid))

    def _probe(self, name: str) -> None:
        child, probe = self._children[name], self._parts[name].ready
        try:
            answers = probe is None or probe()
        except Exception:  # noqa: BLE001  a probe is foreign code: raising means "not yet", not the supervisor's end
            answers = False
        if answers and child.exit_code is None:
            with self._changed:
                self._schedule.ready(name)
            self._tell(PartChange(name, PartState.READY, pid=child.pid))

    def _bury(self, name: str) -> None:
        with self._changed:
            child = self._children.pop(name)
            wait_s = self._schedule.died(name, time.monotonic())
        self._tell(PartChange(name, PartState.WAITING, child.pid, child.exit_code, wait_s))

    def _stop_all(self) -> None:
        # Those that nobody waits for hear it at once, and end side by side; the others when their users are gone.
        for name in self._schedule.leaves:
            if (leaf := self._children.get(name)) is not None:
                leaf.signal(signal.SIGTERM)
        for name in self._schedule.stop_order:
            child = self._children.get(name)
            if child is not None:
                child.stop(self._grace_s)
            with self._changed:
                self._schedule.stopped(name)
            pid, code = (child.pid, child.exit_code) if child is not None else (None, None)
            self._tell(PartChange(name, PartState.STOPPED, pid, code))

    def _tell(self, change: PartChange) -> None:
        with self._changed:
            self._changed.notify_all()
        self._on_change(change)
