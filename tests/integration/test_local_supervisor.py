"""The supervisor over real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

import pytest

from sessionary.infra.local.errors import InvalidPartOrder, StartFailed
from sessionary.infra.local.process import Child
from sessionary.infra.local.schedule import BackOff, PartState
from sessionary.infra.local.supervisor import Part, PartChange, Supervisor

_PATIENCE_S = 120.0
_RESET_S = 3_600.0  # a busy machine may take half a minute to run a program that ends at once
_FOR_EVER = "import threading; threading.Event().wait()"
_STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); {_FOR_EVER}"
# Starts a child of its own in the same process group, and tells its pid.
_WITH_CHILD = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {_FOR_EVER!r}])
print(child.pid, flush=True)
child.wait()
"""


def _python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def _alive(pid: int) -> bool:
    """Whether it runs; a zombie that its new parent has not reaped yet does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def _until(condition: Callable[[], object], timeout_s: float = _PATIENCE_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.01)


def _next(changes: SimpleQueue[PartChange], name: str, state: PartState) -> PartChange:
    while True:
        change = changes.get(timeout=_PATIENCE_S)
        if (change.name, change.state) == (name, state):
            return change


def test_a_part_that_dies_comes_back(tmp_path: Path) -> None:
    changes: SimpleQueue[PartChange] = SimpleQueue()
    part = Part("a", _python(_FOR_EVER), tmp_path / "a.log")
    with Supervisor([part], changes.put) as supervisor:
        supervisor.wait_ready(_PATIENCE_S)
        first = _next(changes, "a", PartState.READY).pid
        assert first is not None
        assert supervisor.pid("a") == first
        os.kill(first, signal.SIGKILL)
        death = _next(changes, "a", PartState.WAITING)
        assert (death.pid, death.exit_code, death.wait_s) == (first, -signal.SIGKILL, 0.2)
        second = _next(changes, "a", PartState.READY).pid
        assert second is not None
        assert second != first
    assert not _alive(first)
    assert not _alive(second)


def test_a_part_that_cannot_run_is_tried_again_with_growing_waits(tmp_path: Path) -> None:
    changes: SimpleQueue[PartChange] = SimpleQueue()
    part = Part("a", _python("print('no'); raise SystemExit(3)"), tmp_path / "a.log", ready=lambda: False)
    with Supervisor(
        [part], changes.put, back_off=BackOff(first_s=0.01, most_s=0.04, reset_after_s=_RESET_S)
    ) as supervisor:
        deaths = [_next(changes, "a", PartState.WAITING) for _ in range(4)]
        assert [death.wait_s for death in deaths] == [0.01, 0.02, 0.04, 0.04]
        assert {death.exit_code for death in deaths} == {3}
        with pytest.raises(StartFailed, match=r"(?s)a\n.*no"):
            supervisor.wait_ready(0.01)
    assert (tmp_path / "a.log").read_text().startswith("no\nno\nno\nno\n")


def test_a_part_that_needs_set_up_is_reported_with_its_reason_and_tried_again_slowly(tmp_path: Path) -> None:
    changes: SimpleQueue[PartChange] = SimpleQueue()
    part = Part("a", _python("print('first'); print('no table'); raise SystemExit(6)"), tmp_path / "a.log")
    back_off = BackOff(first_s=0.01, most_s=0.04, reset_after_s=_RESET_S, set_up_s=0.05)
    with Supervisor([part], changes.put, back_off=back_off, set_up_codes=(6,)):
        deaths = [_next(changes, "a", PartState.WAITING) for _ in range(5)]
    assert [death.wait_s for death in deaths] == [0.01, 0.02, 0.04, 0.05, 0.05]
    assert {(death.exit_code, death.missing) for death in deaths} == {(6, "no table")}


def test_parts_start_in_order_and_stop_in_reverse(tmp_path: Path) -> None:
    changes: SimpleQueue[PartChange] = SimpleQueue()
    gate = tmp_path / "open"
    parts = [
        Part("c", _python(_FOR_EVER), tmp_path / "c.log", after=("b",)),
        Part("b", _python(_FOR_EVER), tmp_path / "b.log", after=("a",)),
        Part("a", _python(_FOR_EVER), tmp_path / "a.log", ready=gate.exists),
    ]
    with Supervisor(parts, changes.put) as supervisor:
        _next(changes, "a", PartState.STARTING)
        assert supervisor.states() == {"a": PartState.STARTING, "b": PartState.WAITING, "c": PartState.WAITING}
        gate.touch()
        supervisor.wait_ready(_PATIENCE_S)
    seen: list[tuple[str, PartState]] = []
    while not changes.empty():
        change = changes.get()
        seen.append((change.name, change.state))
    started = [name for name, state in seen if state is PartState.READY]
    stopped = [name for name, state in seen if state is PartState.STOPPED]
    assert (started, stopped) == (["a", "b", "c"], ["c", "b", "a"])


def test_stop_leaves_no_process_not_even_a_deaf_one_or_a_grandchild(tmp_path: Path) -> None:
    parts = [
        Part("deaf", _python(_STUBBORN), tmp_path / "deaf.log"),
        Part("family", _python(_WITH_CHILD), tmp_path / "family.log"),
    ]
    supervisor = Supervisor(parts, grace_s=0.2)
    supervisor.start()
    supervisor.wait_ready(_PATIENCE_S)
    _until(lambda: (tmp_path / "deaf.log").read_text() and (tmp_path / "family.log").read_text())
    pids = [supervisor.pid("deaf"), supervisor.pid("family"), int((tmp_path / "family.log").read_text())]
    assert all(pid is not None and _alive(pid) for pid in pids)
    supervisor.stop()
    _until(lambda: not any(pid is not None and _alive(pid) for pid in pids))
    assert set(supervisor.states().values()) == {PartState.STOPPED}
    supervisor.stop()


_SUPERVISED = """
import sys, threading
from pathlib import Path
from sessionary.infra.local.supervisor import Part, Supervisor
log, code = Path(sys.argv[1]), sys.argv[2]
parts = [Part(name, [sys.executable, "-c", code], log / f"{name}.log") for name in ("a", "b")]
supervisor = Supervisor(parts)
# From a thread that ends: the children must live on all the same.
starter = threading.Thread(target=supervisor.start)
starter.start()
starter.join()
supervisor.wait_ready(120)
print(supervisor.pid("a"), supervisor.pid("b"), flush=True)
threading.Event().wait()
"""


def test_a_supervisor_killed_by_signal_9_leaves_no_process(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*_python(_SUPERVISED), str(tmp_path), _STUBBORN], stdout=subprocess.PIPE, text=True
    ) as supervisor:
        try:
            assert supervisor.stdout is not None
            pids = [int(pid) for pid in supervisor.stdout.readline().split()]
            assert len(pids) == 2
            _until(lambda: all((tmp_path / f"{name}.log").read_text() for name in "ab"))
            assert all(_alive(pid) for pid in pids)
        finally:
            supervisor.kill()
    _until(lambda: not any(_alive(pid) for pid in pids))


def test_a_child_survives_the_thread_that_asked_for_it(tmp_path: Path) -> None:
    children: list[Child] = []
    starter = threading.Thread(target=lambda: children.append(Child(_python(_FOR_EVER), tmp_path / "log")))
    starter.start()
    starter.join()
    try:
        assert not children[0].wait(0.5)
    finally:
        children[0].kill()
    assert children[0].exit_code == -signal.SIGKILL


def test_two_parts_of_one_name_are_refused(tmp_path: Path) -> None:
    part = Part("a", _python(_FOR_EVER), tmp_path / "a.log")
    with pytest.raises(InvalidPartOrder):
        Supervisor([part, part])
