"""A part that makes no turn ends the process, and a process that stood still itself does not."""

import subprocess
import sys
from collections.abc import Sequence

import pytest

from sessionary.schemas.telemetry.role_logs import EXIT_HUNG
from sessionary.stream_processors.process import HangDetector

# Each look: the detector's own time, and when the part last turned.
Look = tuple[float, float]


def hung_at(looks: Sequence[Look], hung_s: float = 10.0) -> float | None:
    detector = HangDetector(hung_s)
    for now_s, turned_s in looks:
        found = detector.observe({"fetching": turned_s}, now_s)
        if found is not None:
            assert found.parts == ["fetching"]
            assert found.still_s >= hung_s
            return now_s
    return None


@pytest.mark.parametrize(
    ("looks", "found_s"),
    [
        pytest.param([(s, s) for s in range(60)], None, id="each look sees another turn"),
        pytest.param([(0, 0), (1, 1), *((s, 1) for s in range(2, 60))], 11, id="no turn after the first ones"),
        pytest.param([(s, 0) for s in range(60)], None, id="it has not begun"),
        pytest.param([(0, 0), (1, 1), (9, 1), (10, 10), *((s, 10) for s in range(11, 15))], None, id="it went on"),
        pytest.param([(0, 0), (1, 1), (500, 1), (501, 501)], None, id="the process stood still"),
        pytest.param([(0, 0), (1, 1), (500, 1), *((500 + s, 1) for s in range(1, 60))], 508, id="and hangs after that"),
    ],
)
def test_only_time_in_which_a_part_could_turn_counts(looks: Sequence[Look], found_s: float | None) -> None:
    assert hung_at(looks) == found_s


def test_parts_that_stopped_with_it_are_reported_too() -> None:
    detector = HangDetector(10.0)
    found = None
    for now_s in range(14):
        turns = {"the event loop": min(now_s, 4), "fetching": now_s, "the watch": min(now_s, 3)}
        found = found or detector.observe(turns, now_s)
    assert found == (["the event loop", "the watch"], 10.0)


def test_a_part_that_is_no_longer_reported_is_forgotten() -> None:
    detector = HangDetector(10.0)
    for now_s, turned_s in ((0, 0), (1, 1), *((s, 1) for s in range(2, 10))):
        assert detector.observe({"fetching": turned_s}, now_s) is None
    assert detector.observe({}, 10) is None
    for now_s in range(11, 60):
        assert detector.observe({"fetching": 1}, now_s) is None


PROGRAM = """
import ctypes, sys, time
from sessionary.schemas.telemetry.role_logs import configure_role_logs
from sessionary.stream_processors.process import HangWatch

configure_role_logs("processor", "w1")
turned_s = time.monotonic()
watch = HangWatch(lambda: {"the event loop": turned_s}, 2.0)
is_locked = "lock" in sys.argv  # else a machine that stands still may not end the process
watch.start(3.0 if is_locked else 300.0)
ends_s = time.monotonic() + 2.5
while watch._detector._looked_s is None if is_locked else time.monotonic() < ends_s:
    turned_s = time.monotonic()
    time.sleep(0.01)

def wait_here():
    if is_locked:
        ctypes.PyDLL(None).sleep(600)  # does not give the interpreter's lock back
    time.sleep(600)

if "stop" in sys.argv:
    watch.stop()
    time.sleep(4.5)
else:
    wait_here()
"""


def run_program(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, check=False, timeout=300
    )


def test_a_part_that_hangs_ends_the_process_and_the_stacks_are_reported() -> None:
    done = run_program()
    assert done.returncode == EXIT_HUNG
    assert "the worker ends at once, for the event loop has stood still for " in done.stderr
    assert "in wait_here" in done.stderr


def test_a_lock_of_the_interpreter_that_is_held_ends_the_process_too() -> None:
    done = run_program("lock")
    assert done.returncode == 1
    assert "in wait_here" in done.stderr


def test_a_watch_that_is_stopped_ends_nothing() -> None:
    done = run_program("stop")
    assert (done.returncode, done.stderr) == (0, "")
