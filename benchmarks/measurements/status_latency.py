"""(t) The latency of the control API for the status of runs and tasks, during a load of events.

A client sends events through the processor, at a fixed rate, while another program asks. All
programs share the machine's cores with the broker.
"""

from typing import Any

from benchmarks.bench import Bench
from benchmarks.harness.stack import Stack, environment, running_stack
from benchmarks.measurements.call_latency import judged_pipeline, late_notes, load_words
from benchmarks.measurements.latency import warm_broker
from benchmarks.results import Result, Target

RATE, RATE_QUICK = 500, 100
EVENTS_PER_S, EVENTS_PER_S_QUICK = 2_000, 200
P99_MS_MAX = 20.0
_LOAD_S = 300.0  # Longer than the program asks; the load is stopped then
_STOP_S = 20.0


def measure_status(stack: Stack, bench: Bench, rate: int, events_per_s: int) -> dict[str, Any]:
    """Measure once; return what `programs.asking` prints. Raises `RuntimeError`."""
    with judged_pipeline(stack) as (kafka, fields):
        words = ("client", "--rate", f"{events_per_s}", "--seconds", f"{_LOAD_S:g}")
        out = ("--out", str(stack.folder / "load"))
        load = stack.start("benchmarks.programs.sender", *words, *out, env=environment(kafka), name="load")
        try:
            asked = stack.run_program(
                "benchmarks.programs.asking", *load_words(bench, rate), kafka=kafka, name="asking", **fields
            )
            stack.check_running(load)
        finally:
            load.stop(_STOP_S)
    return asked


def run(bench: Bench) -> list[Result]:
    """Run the measurement."""
    quick = bench.options.quick
    rate, events_per_s = (RATE_QUICK, EVENTS_PER_S_QUICK) if quick else (RATE, EVENTS_PER_S)
    with running_stack(bench) as stack:
        if not quick:
            bench.run_once("warm-up of the broker", lambda: warm_broker(stack, bench))
        title = f"{rate} requests/s beside {events_per_s:,} events/s"
        found = bench.repeat(title, lambda _: measure_status(stack, bench, rate, events_per_s))
    notes = (
        f"{rate} requests/s over 8 kept connections, a run and a task in turn, beside {events_per_s:,} events/s; "
        "from the request to the last byte of its answer; the first seconds are left out",
        *late_notes(found),
    )
    results = [Result("status, requests that count", "requests", [one["requests"] for one in found], None, notes)]
    for kind, what in (("runs", "a run"), ("tasks", "a task")):
        figures = {share: [one[f"{kind}_{share}"] for one in found] for share in ("p50", "p95", "p99", "max")}
        results += [
            Result(f"status of {what}, p50", "ms", figures["p50"]),
            Result(f"status of {what}, p95", "ms", figures["p95"]),
            Result(f"status of {what}, p99", "ms", figures["p99"], Target("<=", P99_MS_MAX)),
            Result(f"status of {what}, largest", "ms", figures["max"]),
        ]
    return [results[0]._replace(details={"runs": found}), *results[1:]]
