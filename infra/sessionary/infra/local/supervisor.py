"""Runs named parts as child processes, restarts those that end, and stops all of them together.

One loop on one thread decides everything by a `Schedule`. It sleeps until a child ends, a wait is
over, or `stop` is called. Children cannot outlive this process, not even if it is killed: see
`process`.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType

from sessionary.infra.local.errors import InvalidPartOrder, StartFailed
from sessionary.infra.local.process import Child, tail
from sessionary.infra.local.schedule import BackOff, PartState, Schedule

_PROBE_PAUSE_S = 0.1


def _ignore_change(_change: PartChange) -> None:
    return None


@dataclass(frozen=True)
class Part:
    """One program under supervision.

    - `env`: its whole environment; None: this process's environment.
    - `log_path`: the file to which its output is appended.
    - `ready`: called ten times a second on the supervisor's thread until it returns True; it should
      return within two seconds. None: the part is ready as soon as it has started.
    - `after`: names of the parts that must be ready before this one starts.
    """

    name: str
    argv: Sequence[str]
    log_path: Path
    env: Mapping[str, str] | None = None
    ready: Callable[[], bool] | None = None
    after: Sequence[str] = field(default=())


@dataclass(frozen=True, slots=True)
class PartChange:
    """A part's new state.

    If the process ended (WAITING), `exit_code` says how (negative: by that signal), and `wait_s`
    how long the part waits before its restart. `missing` is the last line of its log, if the
    process ended because of a missing set-up.
    """

    name: str
    state: PartState
    pid: int | None = None
    exit_code: int | None = None
    wait_s: float | None = None
    missing: str | None = None


class Supervisor:
    """Supervises parts from `start` to `stop`, once. A context manager does both. Thread-safe."""

    def __init__(
        self,
        parts: Sequence[Part],
        on_change: Callable[[PartChange], None] = _ignore_change,
        *,
        back_off: BackOff | None = None,
        grace_s: float = 15.0,
        set_up_codes: Collection[int] = (),
    ) -> None:
        """Check the parts; start nothing yet. Raises `InvalidPartOrder`.

        `on_change` is called on the supervisor's thread: it must neither block nor stop it.
        `grace_s` is the time between SIGTERM and SIGKILL. `set_up_codes`: the exit codes by which
        a part says that something must be set up first.
        """
        self._parts = {part.name: part for part in parts}
        if len(self._parts) != len(parts):
            raise InvalidPartOrder("two parts have the same name")
        self._schedule = Schedule({part.name: part.after for part in parts}, back_off or BackOff())
        self._on_change = on_change
        self._grace_s = grace_s
        self._set_up_codes = frozenset(set_up_codes)
        self._children: dict[str, Child] = {}
        # The name of a part whose child has ended; None: stop.
        self._events: SimpleQueue[str | None] = SimpleQueue()
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
        """Start supervising. Returns at once."""
        self._thread.start()

    def wait_ready(self, timeout_s: float) -> None:
        """Block until all parts are ready at the same time, up to `timeout_s`.

        Raises `StartFailed` with the names and log ends of those that are not.
        """
        with self._changed:
            if self._changed.wait_for(self._schedule.all_ready, timeout_s):
                return
            late = [name for name in self._schedule.start_order if self._schedule.state_of(name) is not PartState.READY]
        logs = "\n".join(
            f"--- {name}: {self._parts[name].log_path}\n{tail(self._parts[name].log_path)}" for name in late
        )
        raise StartFailed(f"not ready after {timeout_s:g} s: {', '.join(late)}\n{logs}")

    def states(self) -> dict[str, PartState]:
        """Return the state of each part, in start order."""
        with self._changed:
            return {name: self._schedule.state_of(name) for name in self._schedule.start_order}

    def pid(self, name: str) -> int | None:
        """Return the id of the part's process and process group; None if it does not run."""
        with self._changed:
            child = self._children.get(name)
        return child.pid if child is not None and child.exit_code is None else None

    def stop(self) -> None:
        """Stop all parts, each after those that wait for it. Blocks until all are gone.

        A part gets SIGTERM, and after `grace_s` SIGKILL.
        """
        if not self._thread.is_alive():
            return
        self._events.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._run_once():
                pass
        finally:
            self._stop_all()

    def _run_once(self) -> bool:
        """Start the parts that can start, probe those that are starting, wait for an event.

        Return False if the supervisor must stop.
        """
        for name in self._schedule.startable_parts(time.monotonic()):
            self._start_part(name)
        for name in self._schedule.in_state(PartState.STARTING):
            self._probe_part(name)
        try:
            event = self._events.get(timeout=self._pause_s())
        except Empty:
            return True
        if event is None:
            return False
        self._restart_later(event)
        return True

    def _pause_s(self) -> float | None:
        """Return how long to wait for an event; None: without limit."""
        now = time.monotonic()
        due = self._schedule.next_due(now)
        if self._schedule.in_state(PartState.STARTING):
            return _PROBE_PAUSE_S if due is None else min(_PROBE_PAUSE_S, due)
        return due

    def _start_part(self, name: str) -> None:
        part = self._parts[name]
        try:
            child = Child(part.argv, part.log_path, part.env)
        except OSError:
            with self._changed:
                wait_s = self._schedule.record_death(name, time.monotonic())
            self._report_change(PartChange(name, PartState.WAITING, wait_s=wait_s))
            return
        with self._changed:
            self._children[name] = child
            self._schedule.mark_started(name, time.monotonic())
        child.when_ended(lambda: self._events.put(name))
        self._report_change(PartChange(name, PartState.STARTING, pid=child.pid))

    def _probe_part(self, name: str) -> None:
        child, probe = self._children[name], self._parts[name].ready
        try:
            answers = probe is None or probe()
        except Exception:  # noqa: BLE001  a probe is foreign code; an error means "not ready yet"
            answers = False
        if answers and child.exit_code is None:
            with self._changed:
                self._schedule.mark_ready(name)
            self._report_change(PartChange(name, PartState.READY, pid=child.pid))

    def _restart_later(self, name: str) -> None:
        with self._changed:
            child = self._children.pop(name)
            needs_set_up = child.exit_code in self._set_up_codes
            wait_s = self._schedule.record_death(name, time.monotonic(), needs_set_up=needs_set_up)
        missing = tail(self._parts[name].log_path, 1) if needs_set_up else None
        self._report_change(PartChange(name, PartState.WAITING, child.pid, child.exit_code, wait_s, missing))

    def _stop_all(self) -> None:
        # Parts that no other part waits for end side by side; the others follow, one after another.
        for name in self._schedule.leaf_parts:
            if (leaf := self._children.get(name)) is not None:
                leaf.signal(signal.SIGTERM)
        for name in self._schedule.stop_order:
            child = self._children.get(name)
            if child is not None:
                child.stop(self._grace_s)
            with self._changed:
                self._schedule.mark_stopped(name)
            pid, code = (child.pid, child.exit_code) if child is not None else (None, None)
            self._report_change(PartChange(name, PartState.STOPPED, pid, code))

    def _report_change(self, change: PartChange) -> None:
        with self._changed:
            self._changed.notify_all()
        self._on_change(change)
