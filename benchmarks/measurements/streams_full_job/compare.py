"""Rounds of all engines over one log each: rates, CPU time, ratios, and equal outputs."""

import statistics
from collections.abc import Callable, Mapping, Sequence

from benchmarks.bench import Bench
from benchmarks.harness.java_build import PeerUnavailable
from benchmarks.harness.stack import Stack, running_stack
from benchmarks.measurements.full_job import CONCURRENT, CONCURRENT_QUICK, warm_up
from benchmarks.measurements.streams_full_job.engines import (
    COMMIT_INTERVAL_MS,
    ENGINES,
    LEFT_OUT,
    OURS,
    STORES,
    STREAMS,
    EngineRun,
    drop_log,
    make_log,
    run_engine,
)
from benchmarks.measurements.streams_full_job.java_program import (
    AVRO_VERSION,
    JVM_OPTIONS,
    StreamsProgram,
    build_program,
)
from benchmarks.measurements.streams_full_job.outputs import EngineOutputs, find_differences, read_outputs
from benchmarks.results import Result, Target
from benchmarks.workload.events import Workload, agent_runs

LIVE = (1_000, 1_000_000)
LIVE_QUICK = (100, 1_000)
EVENTS, EVENTS_QUICK = 500_000, 30_000
Round = Mapping[str, EngineRun]  # by engine


def measure_round(
    stack: Stack, bench: Bench, program: StreamsProgram, workload: Workload, live: int, events: int, first: int = 0
) -> tuple[Round, EngineOutputs]:
    """Run all engines over a new log; return their runs, and the outputs, which are equal.

    `first`: the number of the engine that begins. Raises `RuntimeError` if outputs differ.
    """
    log = make_log(stack, bench, workload, live, events)
    runs: dict[str, EngineRun] = {}
    for engine in (*ENGINES[first:], *ENGINES[:first]):
        found = runs[engine] = run_engine(stack, bench, program, log, engine)
        bench.print_progress(f"  {engine}: {found.events_per_s:,.0f} events/s, {found.cpu_us:.1f} µs of CPU an event")
    ours = read_outputs(log.kafka, log.ends)
    for engine in STORES:
        if differences := find_differences(ours, read_outputs(log.outputs[engine], log.ends)):
            raise RuntimeError(f"{engine} wrote other records than our processor:\n" + "\n".join(differences))
    if ours.rejected or not ours.audit:
        raise RuntimeError(f"of {events:,} legal events {ours.rejected:,} were rejected; {len(ours.audit):,} audits")
    drop_log(stack, log)
    return runs, ours


def run(bench: Bench) -> list[Result]:
    """Measure every size; print so and measure nothing if the program cannot be built."""
    try:
        program = build_program()
    except PeerUnavailable as why:
        bench.print_progress(f"skipped: {why}")
        return []
    quick = bench.options.quick
    events, sizes = bench.event_count(EVENTS, EVENTS_QUICK), LIVE_QUICK if quick else LIVE
    concurrent = CONCURRENT_QUICK if quick else CONCURRENT
    runs = agent_runs(bench.options.runs_file)
    workload = Workload(runs, seed=bench.options.seed, concurrent=concurrent)
    results: list[Result] = []
    with running_stack(bench) as stack:
        warm_up(stack, bench, workload)
        for size in sizes:
            # A round with a million sessions takes minutes, so it has half of the runs.
            rounds = bench.runs if size == min(sizes) else (bench.runs + 1) // 2
            found: list[tuple[Round, EngineOutputs]] = []
            for n in range(rounds):
                title = f"{size:,} live sessions, {events:,} events, run {n + 1} of {rounds}"
                found.append(bench.run_once(title, _round_call(stack, bench, program, workload, size, events, n)))
            results += size_results(size, events, concurrent, found)
    return results


def _round_call(
    stack: Stack, bench: Bench, program: StreamsProgram, workload: Workload, live: int, events: int, n: int
) -> Callable[[], tuple[Round, EngineOutputs]]:
    return lambda: measure_round(stack, bench, program, workload, live, events, n % len(ENGINES))


def size_results(live: int, events: int, concurrent: int, found: Sequence[tuple[Round, EngineOutputs]]) -> list[Result]:
    """Return the figures of all engines with `live` sessions, and ratios round by round."""
    outputs = found[0][1]
    notes = [
        f"{events:,} events of {concurrent:,} sessions at a time, 4 partitions, one log for all engines in "
        f"turn; the first {LEFT_OUT:.0%} left out; commits every {COMMIT_INTERVAL_MS} ms; "
        f"{live:,} live sessions, runs: {len(found)}",
        f"{STREAMS}, Avro {AVRO_VERSION} with generated classes, one stream thread, Java with {' '.join(JVM_OPTIONS)}",
        f"equal in every run: {outputs.audits_written:,} audit records, of them {outputs.transitions:,} transitions, "
        f"and {len(outputs.cleanups):,} clean-up requests, in all fields but the number of the transaction",
        *(_compiler_note(engine, [round_[engine] for round_, _ in found]) for engine in STORES),
    ]
    results: list[Result] = []
    for engine in ENGINES:
        runs = [round_[engine] for round_, _ in found]
        name = _name_of(engine, live)
        results += [
            Result(name, "events/s", [one.events_per_s for one in runs], None, notes, _details(runs)),
            Result(f"{name}, CPU per event", "µs", [one.cpu_us for one in runs]),
        ]
    for engine in STORES:
        pairs = [(round_[OURS], round_[engine]) for round_, _ in found]
        per_cpu = [theirs.cpu_us / ours.cpu_us for ours, theirs in pairs]
        speeds = [ours.events_per_s / theirs.events_per_s for ours, theirs in pairs]
        target = Target(">=", 1.0)
        results += [
            Result(f"ours / {_name_of(engine, live)}, events per CPU second", "times", per_cpu, target),
            Result(f"ours / {_name_of(engine, live)}, events per second", "times", speeds),
        ]
    return results


def _compiler_note(engine: str, runs: Sequence[EngineRun]) -> str:
    amount = statistics.median(one.compiler_cpu_us for one in runs)
    return f"{engine}: {amount:.1f} µs of the CPU time per event belong to Java's compiler, which still runs"


def _name_of(engine: str, live: int) -> str:
    return f"{engine}, {live:,} live sessions"


def _details(runs: Sequence[EngineRun]) -> dict[str, object]:
    return {
        "broker_cpu_us_per_event": [round(one.broker_cpu_us, 2) for one in runs],
        "compiler_cpu_us_per_event": [round(one.compiler_cpu_us, 2) for one in runs],
        "start_s": [round(one.start_s, 2) for one in runs],
        "memory_mib": [one.memory_bytes >> 20 for one in runs],
    }
