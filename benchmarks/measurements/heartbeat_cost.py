"""(g) The cost of heartbeats: CPU time of a process with 10,000 silent sessions; no processor."""

from benchmarks.bench import Bench
from benchmarks.harness.stack import Stack, running_stack
from benchmarks.results import Result, Target

SESSIONS, SESSIONS_QUICK = 10_000, 200
SECONDS, SECONDS_QUICK = 30, 2
_CORE_PERCENT_MAX = 5.0


def _measure_beating(stack: Stack, sessions: int, seconds: int) -> dict[str, float]:
    words = ["--sessions", str(sessions), "--seconds", str(seconds)]
    return stack.run_program("benchmarks.programs.beating", *words, kafka=stack.new_pipeline(), name="beating")


def run(bench: Bench) -> list[Result]:
    """Measure one process, after the first round of heartbeats."""
    sessions = bench.event_count(SESSIONS, SESSIONS_QUICK)
    seconds = SECONDS_QUICK if bench.options.quick else SECONDS
    with running_stack(bench) as stack:
        found = bench.repeat(f"{sessions:,} silent sessions", lambda n: _measure_beating(stack, sessions, seconds))
    notes = (
        f"{sessions:,} Active sessions in one process, the default interval; CPU time of the whole process, the "
        "threads of librdkafka included, over the wall's",
    )
    return [
        Result(
            f"CPU for the heartbeats of {sessions:,} sessions",
            "% of a core",
            [one["core_percent"] for one in found],
            Target("<=", _CORE_PERCENT_MAX),
            notes,
            {"runs": found},
        ),
        Result("CPU per heartbeat, whole process", "µs", [one["cpu_us"] for one in found]),
    ]
