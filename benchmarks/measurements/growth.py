"""(h) The full job of (b) with 1,000 to 1,000,000 other live sessions in the same processor.

A live session is in the changelog, and so in the processor's state: Active, with timers, but
without events and without a near deadline. Ticks continue. The load is that of (b), byte for byte.
"""

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.bench import Bench
from benchmarks.harness.stack import Stack, running_stack
from benchmarks.measurements.full_job import (
    CONCURRENT,
    EVENTS,
    EVENTS_QUICK,
    JobRun,
    make_workload,
    run_job,
    warm_up,
)
from benchmarks.results import Result, Target
from benchmarks.workload.events import Workload
from benchmarks.workload.live_sessions import preload_sessions
from sessionary.schemas.settings import KafkaSettings

LIVE = (1_000, 100_000, 1_000_000)
LIVE_QUICK = (100, 1_000)
GROWTH = 1.1


def _run_job(stack: Stack, bench: Bench, workload: Workload, live: int, events: int) -> JobRun:
    def prepare(kafka: KafkaSettings) -> None:
        size = preload_sessions(kafka, workload.templates, live)
        bench.print_progress(f"  changelog of {size / 1e6:,.0f} MB")

    return run_job(stack, bench, workload, events, prepare)


def run(bench: Bench) -> list[Result]:
    """Measure every size. The sizes take turns, and each round begins with another one."""
    events = bench.event_count(EVENTS, EVENTS_QUICK)
    sizes = LIVE_QUICK if bench.options.quick else LIVE
    workload = make_workload(bench)
    found: dict[int, list[JobRun]] = {size: [] for size in sizes}
    with running_stack(bench) as stack:
        warm_up(stack, bench, workload)
        for n in range(bench.runs):
            first = n % len(sizes)
            for size in (*sizes[first:], *sizes[:first]):
                title = f"{size:,} live sessions, {events:,} events, run {n + 1} of {bench.runs}"
                one = bench.run_once(title, lambda size=size: _run_job(stack, bench, workload, size, events))  # type: ignore[misc]
                found[size].append(one)
    return growth_results(found, events)


def growth_results(found: Mapping[int, Sequence[JobRun]], events: int) -> list[Result]:
    """Return the cost by number of live sessions, and ratios to the least of them."""
    least = min(found)
    notes = (
        f'"live": Active in the processor\'s state, silent, deadlines 30 days away; {CONCURRENT:,} further sessions '
        f"send the {events:,} events of (b); ratios are run by run, to {least:,} live sessions in the same round",
    )
    results = [
        Result(
            f"cost per event with {size:,} live sessions",
            "µs wall",
            [one.wall_us for one in runs],
            notes=notes,
            details={
                "runs": [one._asdict() for one in runs],
                "cpu_us_median": statistics.median(r.cpu_us for r in runs),
            },
        )
        for size, runs in found.items()
    ]
    for size, runs in found.items():
        if size == least:
            continue
        for what, ratios in (
            ("wall", [one.wall_us / base.wall_us for one, base in zip(runs, found[least], strict=True)]),
            ("CPU", [one.cpu_us / base.cpu_us for one, base in zip(runs, found[least], strict=True)]),
        ):
            results.append(
                Result(f"growth of {what} per event, {size:,} to {least:,}", "ratio", ratios, Target("<=", GROWTH))
            )
    return results
