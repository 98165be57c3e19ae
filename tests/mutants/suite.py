"""The suite that each mutant of the pure core runs, ordered so that most mutants die early.

It has the tests of the core (`tests/core/stream_processors/core/`, without the Hypothesis machine),
among them those of other machines than the session's, schedules of the simulation, and the state
diagram. The tests are imported only after the mutant is in place; this module must not import
a mutated module.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from types import FrameType

from tests.mutants.cases import case_name, cases

ROOT = Path(__file__).parents[2]
SCHEDULE_CPU_S_MAX = 3.0  # a schedule takes 0.02 s
CASE_CPU_S_MAX = 20.0  # the longest case takes 2.5 s
FIRST_SCHEDULES, SECOND_SCHEDULES, MORE_SCHEDULES = range(1, 5), range(5, 21), range(21, 91)
TRANSITIONS, PAIRS = "session.test_transitions", "session.test_decide"
SHORT_TESTS = (
    "session.test_report",
    "test_machine",
    "session.test_machine",
    "test_second_machine",
    "test_trail",
    "test_clock",
    "test_timers",
    "test_sequencing",
    "session.test_values",
    "step.test_judge",
    "step.test_limit",
    "call.test_judge",
    "call.test_unknown",
    "run.test_judge",
    "run.test_clocks",
    "run.test_sessions",
    "run.test_atomicity",
    "run.test_task_requests",
    "run.test_quotas",
    "session.admission.test_claims",
    "session.admission.test_tokens",
    "quota.test_claims",
    "quota.test_machine",
    "quota.test_tokens",
    "artifact.test_judge",
    "message.test_judge",
    "test_children",
    "session.test_content",
    "tombstones.test_chunk_index",
    "tombstones.test_packing",
    "test_uncommitted_batch",
    "test_packed_tombstones",
    "run.test_tombstones",
    "test_children_by_oracle",
    "test_clock_repair",
    "test_producer_conflicts",
    "test_recent_verdicts",
    "session.test_limits",
    "session.test_row_size",
    "session.test_stories",
)
EDGE_CASES = "session.test_edge_cases"
LONG_TESTS = (PAIRS, "test_partition")


class TooSlow(BaseException):
    """A case or schedule took too long."""


def run_suite(hint: str) -> str | None:
    """Return what failed, None if everything passes. `hint` is an event type to start with."""
    stages: tuple[Callable[[], str | None], ...] = (
        partial(_run_cases, TRANSITIONS),
        _check_drawings,
        *([partial(_run_cases, PAIRS, hint)] if hint else []),
        partial(_run_schedules, FIRST_SCHEDULES),
        *(partial(_run_cases, name) for name in SHORT_TESTS),
        partial(_run_schedules, SECOND_SCHEDULES),
        partial(_run_cases, EDGE_CASES),
        partial(_run_schedules, MORE_SCHEDULES),
        *(partial(_run_cases, name) for name in LONG_TESTS),
    )
    return next((failed for stage in stages if (failed := stage()) is not None), None)


def _run_cases(name: str, event_type: str = "") -> str | None:
    """Run a file of tests, or only those of one event type."""
    for case in cases(import_module(f"tests.core.stream_processors.core.{name}")):
        if event_type and case.keywords.get("event_type") != event_type:
            continue
        with _cpu_limit(CASE_CPU_S_MAX):
            try:
                case()
            except Exception as error:  # noqa: BLE001 - a mutant may raise any kind of error
                return f"{name}, {case_name(case)}: {type(error).__name__}"
    return None


def _check_drawings() -> str | None:
    """Check the state diagram and the page of transitions, as `tests/style/test_docs.py` does."""
    from docs.build.transition_docs import transitions_page, with_diagram

    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    if with_diagram(text) != text:
        return "the state diagram in ARCHITECTURE.md"
    same = transitions_page() == (ROOT / "docs" / "transitions.md").read_text("utf-8")
    return None if same else "docs/transitions.md"


def _run_schedules(seeds: range) -> str | None:
    from tests.simulation.runner import run_schedule

    for seed in seeds:
        with _cpu_limit(SCHEDULE_CPU_S_MAX):
            result = run_schedule(seed)
        if result.found:
            return f"schedule {seed}: {result.found[0][:200]}"
    return None


@contextmanager
def _cpu_limit(cpu_s: float) -> Iterator[None]:
    """Raise `TooSlow` after this CPU time."""

    def on_timer(number: int, frame: FrameType | None) -> None:
        raise TooSlow(f"more than {cpu_s:g} s")

    signal.signal(signal.SIGVTALRM, on_timer)
    signal.setitimer(signal.ITIMER_VIRTUAL, cpu_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
