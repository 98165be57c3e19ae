"""(g) The client's cost for its agent: time of one `emit`, CPU per event, delivered events.

Measured with the spool (the default: every event is first written to a file) and without it (policy
`block`), as fast as possible and at two rates. No processor runs.
"""

from typing import NamedTuple

from benchmarks.bench import Bench
from benchmarks.harness.stack import Stack, running_stack
from benchmarks.results import Result

EVENTS, EVENTS_QUICK = 100_000, 2_000
SECONDS, SECONDS_QUICK = 15, 1


class _Case(NamedTuple):
    policy: str
    rate: int | None

    @property
    def name(self) -> str:
        how = "flood" if self.rate is None else f"{self.rate:,}/s"
        return f"{'spool' if self.policy == 'spool' else 'no spool'}, {how}"


CASES = tuple(_Case(policy, rate) for rate in (None, 1_000, 200) for policy in ("spool", "block"))


def _measure_case(stack: Stack, case: _Case, events: int) -> dict[str, float]:
    words = ["--policy", case.policy, "--events", str(events)]
    if case.rate is not None:
        words += ["--rate", str(case.rate)]
    name = f"emit-{case.policy}"
    return stack.run_program("benchmarks.programs.emitting", *words, kafka=stack.new_pipeline(), name=name)


def run(bench: Bench) -> list[Result]:
    """Measure every case; the cases take turns."""
    flood = bench.event_count(EVENTS, EVENTS_QUICK)
    seconds = SECONDS_QUICK if bench.options.quick else SECONDS
    found: dict[_Case, list[dict[str, float]]] = {case: [] for case in CASES}
    with running_stack(bench) as stack:
        for n in range(bench.runs):
            for case in CASES:
                events = flood if case.rate is None else case.rate * seconds

                def measure_case(case: _Case = case, events: int = events) -> dict[str, float]:
                    return _measure_case(stack, case, events)

                found[case].append(bench.run_once(f"client, {case.name}, run {n + 1} of {bench.runs}", measure_case))
    return [result for case, runs in found.items() for result in _case_results(case, runs, flood)]


def _case_results(case: _Case, runs: list[dict[str, float]], flood: int) -> list[Result]:
    notes = (
        "events of recorded runs, one session; `emit` is timed by the wall clock, so it includes waiting for the "
        "interpreter while delivery threads work",
        f"flood: {flood:,} events as fast as they go, delivered = all acknowledged; at a rate the agent sleeps between",
    )
    results = [
        Result(f"emit, {case.name}, mean", "µs", [one["mean_us"] for one in runs], notes=notes, details={"runs": runs}),
        Result(f"emit, {case.name}, p50", "µs", [one["p50_us"] for one in runs]),
        Result(f"emit, {case.name}, p99", "µs", [one["p99_us"] for one in runs]),
        Result(f"CPU per event, {case.name}, agent's thread", "µs", [one["agent_cpu_us"] for one in runs]),
        Result(f"CPU per event, {case.name}, whole process", "µs", [one["cpu_us"] for one in runs]),
    ]
    if case.rate is None:
        delivered = [one["delivered_per_s"] for one in runs]
        results.append(Result(f"delivered by one client, {case.name}", "events/s", delivered))
    return results
