"""(d) Recovery: the rate at which an empty processor reads 200,000 sessions from the changelog."""

from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.bench import Bench
from benchmarks.harness.pipeline import Worker
from benchmarks.harness.proc_stats import cpu_seconds
from benchmarks.harness.stack import Stack, running_stack
from benchmarks.measurements.full_job import make_workload
from benchmarks.results import Result, Target
from benchmarks.workload.live_sessions import preload_sessions
from sessionary.schemas.settings import KafkaSettings

SESSIONS, SESSIONS_QUICK = 200_000, 2_000
RATE_MIN = 300_000


class Recovery(NamedTuple):
    """The times of one process until all its partitions are open."""

    recovery_s: float  # from the assignment to the last partition's opening
    from_start_s: float  # from the process's start
    cpu_s: float  # of the process, all of its life until then


def _measure_recovery(stack: Stack, kafka: KafkaSettings) -> Recovery:
    worker = Worker(stack, kafka)
    try:
        ready_s = worker.wait_ready()
        began_s, opened_s = worker.opened_s()
        return Recovery(opened_s - began_s, ready_s - worker.started_s, cpu_seconds(worker.pid))
    finally:
        worker.stop()


def run(bench: Bench) -> list[Result]:
    """Run the measurement; every run is a new process without state."""
    sessions = bench.event_count(SESSIONS, SESSIONS_QUICK)
    workload = make_workload(bench)
    with running_stack(bench) as stack:
        # All runs share one changelog: a memory store keeps nothing, and no process writes to it.
        full, empty = stack.new_pipeline(), stack.new_pipeline()
        size = bench.run_once(
            f"changelog of {sessions:,} sessions", lambda: preload_sessions(full, workload.templates, sessions)
        )
        preload_sessions(empty, workload.templates, 0)
        nothing = bench.repeat("recovery of nothing", lambda _: _measure_recovery(stack, empty))
        found = bench.repeat(f"recovery of {sessions:,} sessions", lambda _: _measure_recovery(stack, full))
    return recovery_results(sessions, size, nothing, found)


def recovery_results(sessions: int, size: int, nothing: Sequence[Recovery], found: Sequence[Recovery]) -> list[Result]:
    """Return the figures.

    `size`: of the changelog, in bytes. `nothing`: the same processes with an empty changelog.
    """
    notes = (
        f"{sessions:,} sessions in 4 partitions, {size / sessions:.0f} B each in the changelog; one process; time from "
        "the assignment (fencing and opening included) until the last partition is open",
        "CPU: of the process until it is ready, less that of a process that recovers nothing",
    )
    idle_cpu_s = sorted(run.cpu_s for run in nothing)[len(nothing) // 2]
    details = {"runs": [run._asdict() for run in found], "runs_with_nothing": [run._asdict() for run in nothing]}
    rates = [sessions / run.recovery_s for run in found]
    return [
        Result("recovery, sessions per second", "sessions/s", rates, Target(">=", RATE_MIN), notes, details),
        Result("recovery, from the assignment", "s", [run.recovery_s for run in found]),
        Result("recovery, from the process's start", "s", [run.from_start_s for run in found]),
        Result("the same with no sessions", "s", [run.from_start_s for run in nothing]),
        Result("recovery, CPU per session", "µs", [(run.cpu_s - idle_cpu_s) / sessions * 1e6 for run in found]),
    ]
