"""(b) The full job of one processor: decode, fold, state, audit, exactly once.

One real processor process reads a log of events made from agent runs, which was written before.
Time is measured from commit to commit, by the broker's time stamps on the batch records. The first
tenth of the events, in which the process starts and warms up, is left out.
"""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from benchmarks.bench import Bench
from benchmarks.harness.pipeline import Batch, BatchReader, CpuTrace, Worker, preload_events
from benchmarks.harness.stack import Stack, running_stack
from benchmarks.results import Result, Target
from benchmarks.workload.events import Workload, agent_runs
from benchmarks.workload.live_sessions import preload_sessions
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.schemas.settings import KafkaSettings

EVENTS, EVENTS_QUICK = 300_000, 60_000
CONCURRENT, CONCURRENT_QUICK = 2_000, 200
RATE = "full job, events per second of one processor"
COST = "full job, CPU of the processor per event"
_LEFT_OUT = 0.1
_COUNTED_MIN_S = 0.2  # CPU time is sampled every 0.05 s
STALL_S = 120.0
_WARM_UP_EVENTS = 40_000


class JobRun(NamedTuple):
    """The figures of one run, without its beginning."""

    events_per_s: float
    cpu_us: float
    wall_us: float
    broker_cpu_us: float  # 0 if the broker is not ours
    events_a_batch: float
    audits_a_event: float
    archived: int


def run_job(
    stack: Stack,
    bench: Bench,
    workload: Workload,
    events: int,
    prepare: Callable[[KafkaSettings], None] | None = None,
    *,
    start: Callable[[Stack, KafkaSettings], Worker] = Worker,
) -> JobRun:
    """Write the events, let a processor judge them, check that it applied every one.

    `prepare` is called first, with the new pipeline; by default that is empty. `start` starts the
    processor. Raises `RuntimeError`.
    """
    kafka = stack.new_pipeline()
    if prepare is not None:
        prepare(kafka)
    else:
        preload_sessions(kafka, (), 0)
    preload_events(kafka, workload.event_stream(events), bench.print_progress)
    reader = BatchReader(kafka)
    worker = start(stack, kafka)
    try:
        broker_cpu = CpuTrace(stack.broker_pid if stack.own_broker else None)
        with CpuTrace(worker.pid) as cpu, broker_cpu:
            reader.wait_judged(events, lambda: stack.check_running(worker.child), bench.print_progress, STALL_S)
        return job_figures(reader.batches, cpu, broker_cpu, events)
    finally:
        worker.stop()
        reader.close()
        stack.drop_pipeline(kafka)


def job_figures(
    batches: list[Batch], cpu: CpuTrace, broker_cpu: CpuTrace, events: int, left_out: float = _LEFT_OUT
) -> JobRun:
    """Check that every event was applied, and compute the figures.

    `left_out`: the share of the events at the beginning that does not count. Raises `RuntimeError`.
    """
    counts: Counter[str] = Counter()
    for _, record in batches:
        counts.update({name: getattr(record, name) for name in ("applied", "duplicate", "rejected", "audited")})
    if counts["applied"] != events or counts["rejected"] or counts["duplicate"]:
        raise RuntimeError(f"of {events} legal events: {dict(counts)}")
    ordered = sorted((batch for batch in batches if batch.record.applied), key=lambda batch: batch.at_s)
    skipped, n = 0, 0
    while skipped < events * left_out:
        skipped += ordered[n].record.applied
        n += 1
    first_s, last_s = ordered[n - 1].at_s, ordered[-1].at_s
    counted, wall_s = events - skipped, last_s - first_s
    if not counted or wall_s < _COUNTED_MIN_S:
        raise RuntimeError(f"{events} events are too few: {counted} were counted, in {wall_s:.3f} s")
    return JobRun(
        events_per_s=counted / wall_s,
        cpu_us=cpu.cpu_between(first_s, last_s) / counted * 1e6,
        wall_us=wall_s / counted * 1e6,
        broker_cpu_us=broker_cpu.cpu_between(first_s, last_s) / counted * 1e6,
        events_a_batch=counted / (len(ordered) - n),
        audits_a_event=counts["audited"] / events,
        archived=sum(record.timers for _, record in batches),
    )


def warm_up(stack: Stack, bench: Bench, workload: Workload) -> None:
    """Let a new broker compile its code on a run that is not counted; do nothing with `--quick`."""
    if not bench.options.quick:
        bench.run_once("warm-up of the broker", lambda: run_job(stack, bench, workload, _WARM_UP_EVENTS))


def make_workload(bench: Bench) -> Workload:
    """Return the workload that all measurements share."""
    options = bench.options
    concurrent = CONCURRENT_QUICK if options.quick else CONCURRENT
    runs = agent_runs(options.runs_file)
    return Workload(runs, seed=options.seed, concurrent=concurrent)


def run(bench: Bench) -> list[Result]:
    """Run the measurement."""
    events = bench.event_count(EVENTS, EVENTS_QUICK)
    workload = make_workload(bench)
    with running_stack(bench) as stack:
        warm_up(stack, bench, workload)
        found = bench.repeat(f"full job, {events:,} events", lambda _: run_job(stack, bench, workload, events))
    notes = (
        f"{events:,} events of {workload.concurrent:,} sessions at a time, 4 partitions, written before the processor "
        f"starts; first tenth left out; every event was applied, none rejected, by rules {NEWEST_RULES.version}",
        f"{found[0].audits_a_event:.3f} audit records an event; heartbeats, the cheapest events, are left out",
    )
    details = {"runs": [one._asdict() for one in found], "events": events, "concurrent": workload.concurrent}
    rates = [one.events_per_s for one in found]
    return [
        Result(RATE, "events/s", rates, Target(">=", 20_000), notes, details),
        Result(COST, "µs", [one.cpu_us for one in found]),
        Result("full job, CPU of the broker per event", "µs", [one.broker_cpu_us for one in found]),
    ]
