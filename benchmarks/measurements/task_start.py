"""(t) The time to start a task: from the call of `start_task` to the id that it returns.

As `call_latency`. No worker runs: an id means that the request is in the log, and depends on no
task's length.
"""

from benchmarks.bench import Bench
from benchmarks.harness.stack import running_stack
from benchmarks.measurements.call_latency import late_notes, latency_results, measure_calls
from benchmarks.measurements.latency import warm_broker
from benchmarks.results import Result

RATE, RATE_QUICK = 50, 20
P99_MS_MAX = 1_000.0


def run(bench: Bench) -> list[Result]:
    """Run the measurement."""
    quick = bench.options.quick
    rate = RATE_QUICK if quick else RATE
    with running_stack(bench) as stack:
        if not quick:
            bench.run_once("warm-up of the broker", lambda: warm_broker(stack, bench))
        found = bench.repeat(f"{rate} tasks/s", lambda _: measure_calls(stack, bench, rate, "tasks"))
    notes = (
        "from the call of start_task to the id that it returns, one client process; the broker has acknowledged the "
        "request then, and no worker has begun the task; the first seconds are left out",
        *late_notes(found),
    )
    name = f"start of a task at {rate}/s"
    return [
        *latency_results(name, found, notes, P99_MS_MAX),
        Result("tasks per second that were started", "tasks/s", [one["per_s"] for one in found]),
    ]
