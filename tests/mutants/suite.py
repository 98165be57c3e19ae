"""What a mutant of the pure core has to get past, in the order in which most of them die soonest.

Nothing here is imported before the mutant is in place: this module's own imports are untouched by any of them.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import pytest

from sessionary.schemas.events import PAYLOADS

ROOT = Path(__file__).parents[2]
CPU_S_MAX = 3.0  # a schedule takes 0.02 s
PLAY_CPU_S_MAX = 10.0
PYTEST_CPU_S_MAX = 40.0
FIRST_SCHEDULES, MORE_SCHEDULES = range(1, 21), range(21, 91)
PLAYS, STEPS = 4, 300
TESTS = ("edges", "batches", "stories", "limits", "compliance")
_FLAGS = ("-x", "-q", "--noconftest", "-p", "no:cacheprovider", "--tb=no", "--assert=plain", f"--rootdir={ROOT}")


class Slow(BaseException):
    """Something takes far longer than it should."""


def suite(hint: str) -> str | None:
    """Return what failed, None where everything holds. `hint`: an event type to begin with."""
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # none is needed, and each costs time in every trial
    stages: tuple[Callable[[], str | None], ...] = (
        _tables,
        lambda: _pairs(hint) if hint else None,
        lambda: _schedules(FIRST_SCHEDULES),
        lambda: _pytest(TESTS),
        lambda: _schedules(MORE_SCHEDULES),
        _plays,
    )
    return next((failed for stage in stages if (failed := stage()) is not None), None)


def _tables() -> str | None:
    """What takes a few ms: the lists of the core against the auditor's."""
    try:
        from tests.core import test_lifecycle_tables as tables

        tables.test_the_steps_between_phases_are_the_auditors()
        tables.test_who_may_say_what_is_as_the_auditor_has_it()
        tables.test_limits_are_the_auditors()
        for state in tables.STATES:
            tables.test_what_may_come_in_a_state_is_what_the_auditor_lets_in(state)
        for name in PAYLOADS:
            tables.test_an_epoch_is_looked_at_but_for_births_and_releases(name)
    except Exception as error:  # noqa: BLE001 - a failed assertion or whatever else a mutant breaks
        return f"tables: {type(error).__name__}"
    return None


def _pairs(event_type: str) -> str | None:
    """Every state with this event type."""
    from tests.core import test_lifecycle_pairs as pairs

    with _limited(CPU_S_MAX):
        for state in pairs.STATES:
            try:
                pairs.test_what_is_not_listed_is_refused_and_what_is_listed_applies(state, event_type)
            except Exception as error:  # noqa: BLE001 - a failed assertion or whatever else a mutant breaks
                return f"pair {state}, {event_type}: {type(error).__name__}"
    return None


def _schedules(seeds: range) -> str | None:
    from tests.simulation.running import ran

    for seed in seeds:
        with _limited(CPU_S_MAX):
            result = ran(seed)
        if result.found:
            return f"schedule {seed}: {result.found[0][:200]}"
    return None


def _plays() -> str | None:
    """Random agents before a court: fewer than the tests have, as each survivor costs all of them."""
    from tests.core import test_lifecycle_random as random_tests
    from tests.core.play import Play

    for seed in range(PLAYS):
        with _limited(PLAY_CPU_S_MAX):
            try:
                play = Play(Random(seed))
                for _ in range(STEPS):
                    play.step()
                random_tests.consistent(play.court)
                assert random_tests.refolded(play.court.log, Random(seed)) == random_tests.everything(play.court)
            except Exception as error:  # noqa: BLE001 - a failed assertion or whatever else a mutant breaks
                return f"play {seed}: {type(error).__name__}"
    return None


class _First:
    """Keeps the first failure."""

    failed = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed and not self.failed:
            self.failed = f"collecting {report.nodeid}"


def _pytest(names: tuple[str, ...]) -> str | None:
    first = _First()
    files = [str(ROOT / "tests" / "core" / f"test_lifecycle_{name}.py") for name in names]
    with _limited(PYTEST_CPU_S_MAX):
        code = pytest.main([*_FLAGS, *files], plugins=[first])
    return None if code == pytest.ExitCode.OK else first.failed or f"pytest: {code!r}"


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


__all__ = ["suite"]
