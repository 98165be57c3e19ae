"""(t) How fast an update reaches a follower of the session in another process.

A real client updates its sessions, at a fixed rate; another process follows all of them over the
control API. Broker and processor are processes of their own, with their default settings.
"""

from typing import Any

from benchmarks.bench import Bench
from benchmarks.harness.stack import Stack, running_stack
from benchmarks.measurements.call_latency import judged_pipeline, late_notes, latency_results, load_words
from benchmarks.measurements.latency import warm_broker
from benchmarks.results import Result

RATE, RATE_QUICK = 100, 20
SESSIONS, SESSIONS_QUICK = 50, 5
P99_MS_MAX = 150.0


def measure_following(stack: Stack, bench: Bench, rate: int, sessions: int) -> dict[str, Any]:
    """Measure once; return what `programs.following` prints."""
    with judged_pipeline(stack) as (kafka, fields):
        words = [*load_words(bench, rate), "--sessions", f"{sessions}"]
        return stack.run_program("benchmarks.programs.following", *words, kafka=kafka, name="following", **fields)


def run(bench: Bench) -> list[Result]:
    """Run the measurement."""
    rate, sessions = (RATE_QUICK, SESSIONS_QUICK) if bench.options.quick else (RATE, SESSIONS)
    with running_stack(bench) as stack:
        if not bench.options.quick:
            bench.run_once("warm-up of the broker", lambda: warm_broker(stack, bench))
        found = bench.repeat(f"{rate} updates/s", lambda _: measure_following(stack, bench, rate, sessions))
    notes = (
        f"from the call of `update_state` to the view at a follower in another process, {sessions} sessions, default "
        "settings of the processor; the first seconds are left out",
        *late_notes(found),
    )
    name = f"update → follower at {rate}/s"
    return [
        *latency_results(name, found, notes, P99_MS_MAX),
        Result("updates that were told as part of a later one", "updates", [one["skipped"] for one in found]),
    ]


__all__ = ["measure_following", "run"]
