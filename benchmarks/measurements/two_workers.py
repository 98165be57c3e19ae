"""(b) The full job by one processor process, and by two on the same machine, in turn.

Both read a log that was written before. What two processes do counts from one second after the
later one's first transaction until the first of them has no events left.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from benchmarks.bench import Bench
from benchmarks.harness.pipeline import Batch, BatchReader, CpuTrace, Worker, preload_events
from benchmarks.harness.stack import Stack, running_stack
from benchmarks.measurements.full_job import STALL_S, make_workload, run_job, warm_up
from benchmarks.results import Result
from benchmarks.workload.events import Workload
from benchmarks.workload.live_sessions import preload_sessions

EVENTS, EVENTS_QUICK = 400_000, 150_000
NAMES = ("w1", "w2")
_SETTLE_S = 1.0


class Span(NamedTuple):
    """A time in which every worker judges, in s since the epoch, and the events judged in it."""

    first_s: float
    last_s: float
    events: int


class SharedRun(NamedTuple):
    """The figures of one run; the CPU time of an event is that of both processors together."""

    events_per_s: float
    cpu_us: float


def find_shared_span(batches: Iterable[Batch], workers: int = len(NAMES)) -> Span:
    """Return the time in which so many workers judge. Raises `RuntimeError` if there is none."""
    times: dict[str, list[float]] = defaultdict(list)
    judged = [batch for batch in batches if batch.record.applied]
    for at_s, record in judged:
        times[record.instance].append(at_s)
    if len(times) < workers:
        raise RuntimeError(f"only {', '.join(times) or 'no worker'} judged events: write more of them")
    first_s = max(map(min, times.values())) + _SETTLE_S
    last_s = min(map(max, times.values()))
    if last_s <= first_s:
        raise RuntimeError("the workers did not judge at the same time: write more events")
    return Span(first_s, last_s, sum(record.applied for at_s, record in judged if first_s < at_s <= last_s))


def run_shared(stack: Stack, bench: Bench, workload: Workload, events: int) -> SharedRun:
    """Write the events, and let two processors share the partitions. Raises `RuntimeError`."""
    kafka = stack.new_pipeline()
    preload_sessions(kafka, (), 0)
    preload_events(kafka, workload.event_stream(events), bench.print_progress)
    reader, workers = BatchReader(kafka), [Worker(stack, kafka, name) for name in NAMES]
    children = [worker.child for worker in workers]
    try:
        with CpuTrace(workers[0].pid) as one, CpuTrace(workers[1].pid) as other:
            reader.wait_judged(events, lambda: stack.check_running(*children), bench.print_progress, STALL_S)
        first_s, last_s, counted = find_shared_span(reader.batches)
    finally:
        for worker in workers:
            worker.stop()
        reader.close()
        stack.drop_pipeline(kafka)
    return SharedRun(
        counted / (last_s - first_s),
        (one.cpu_between(first_s, last_s) + other.cpu_between(first_s, last_s)) / counted * 1e6,
    )


def run(bench: Bench) -> list[Result]:
    """Run the measurement."""
    events, workload = bench.event_count(EVENTS, EVENTS_QUICK), make_workload(bench)
    with running_stack(bench) as stack:
        warm_up(stack, bench, workload)
        pairs = bench.repeat(
            "one processor, then two",
            lambda _: (run_job(stack, bench, workload, events), run_shared(stack, bench, workload, events)),
        )
    notes = (
        f"{events:,} events, 4 partitions; two processes share them, and the cores with the broker and its reader",
        "two: from one second after the later one's first transaction until the first has no events left",
    )
    ratios = [two.events_per_s / one.events_per_s for one, two in pairs]
    return [
        Result("one processor", "events/s", [one.events_per_s for one, _ in pairs]),
        Result("one processor, CPU per event", "µs", [one.cpu_us for one, _ in pairs]),
        Result("two processors", "events/s", [two.events_per_s for _, two in pairs]),
        Result("two processors, CPU per event", "µs", [two.cpu_us for _, two in pairs]),
        Result("two processors / one, events per second", "ratio", ratios, None, notes),
    ]
