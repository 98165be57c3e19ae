"""What a mutant of the pure core has to get past, in the order in which most of them die soonest.

All tests of the core's rules (`tests/core/stream_processors/test_lifecycle_*.py` but for Hypothesis' machine),
schedules of the simulation, and the picture that is drawn of the table. Nothing here is imported before the mutant is
in place: this module's own imports are untouched by any of them.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from types import FrameType

from tests.mutants.cases import cases, told

ROOT = Path(__file__).parents[2]
SCHEDULE_CPU_S_MAX = 3.0  # a schedule takes 0.02 s
CASE_CPU_S_MAX = 20.0  # the longest, long plays, takes 2.5 s
FIRST_SCHEDULES, MORE_SCHEDULES = range(1, 21), range(21, 91)
TESTS = ("batches", "stories", "limits", "compliance", "edges")
LONG_TESTS = ("pairs", "random")


class Slow(BaseException):
    """Something takes far longer than it should."""


def suite(hint: str) -> str | None:
    """Return what failed, None where everything holds. `hint`: an event type to begin with."""
    stages: tuple[Callable[[], str | None], ...] = (
        partial(_cases, "tables"),
        _picture,
        *([partial(_cases, "pairs", hint)] if hint else []),
        partial(_schedules, FIRST_SCHEDULES),
        *(partial(_cases, name) for name in TESTS),
        partial(_schedules, MORE_SCHEDULES),
        *(partial(_cases, name) for name in LONG_TESTS),
    )
    return next((failed for stage in stages if (failed := stage()) is not None), None)


def _cases(name: str, event_type: str = "") -> str | None:
    """A file of tests, or those of one event type."""
    for case in cases(import_module(f"tests.core.stream_processors.test_lifecycle_{name}")):
        if event_type and case.keywords.get("event_type") != event_type:
            continue
        with _limited(CASE_CPU_S_MAX):
            try:
                case()
            except Exception as error:  # noqa: BLE001 - a failed assertion or whatever else a mutant breaks
                return f"{name}, {told(case)}: {type(error).__name__}"
    return None


def _picture() -> str | None:
    """As `tests/style/test_docs.py`, which asks for more than the table, has it."""
    from tests.support.transition_docs import with_diagram

    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    return None if with_diagram(text) == text else "the state diagram in ARCHITECTURE.md"


def _schedules(seeds: range) -> str | None:
    from tests.simulation.running import ran

    for seed in seeds:
        with _limited(SCHEDULE_CPU_S_MAX):
            result = ran(seed)
        if result.found:
            return f"schedule {seed}: {result.found[0][:200]}"
    return None


@contextmanager
def _limited(cpu_s: float) -> Iterator[None]:
    """Raise `Slow` after so many seconds of the processor."""

    def rings(number: int, frame: FrameType | None) -> None:
        raise Slow(f"more than {cpu_s:g} s")

    signal.signal(signal.SIGVTALRM, rings)
    signal.setitimer(signal.ITIMER_VIRTUAL, cpu_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)


__all__ = ["ROOT", "suite"]
