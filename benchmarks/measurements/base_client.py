"""(v) The cost of `emit` with the client of this tree, compared with another commit's, in pairs.

Both clients send to one broker, in turn, with the spool, in a flood and at 200 events/s. Within a
pair the order changes. Only ratios within a pair are judged, and the flood's time by itself.
"""

import statistics
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench
from benchmarks.harness.stack import Stack, running_stack
from benchmarks.measurements.base_commit import Pair, check_tree, measure_pair, tree_path, unpack_commit
from benchmarks.results import Result, Target
from tests.support.pipelines import environment

RATES: dict[str, int] = {"flood": 0, "200/s": 200}
EVENTS, EVENTS_QUICK = 50_000, 2_000
SECONDS, SECONDS_QUICK = 15, 2
FLOOD_US_MAX = 20.0
# The client before its cold path was looked at: a call at 200/s took 139 µs then.
FIRST_CLIENT, SLOW_RATIO_MAX = "d2aa2e7ee940", 0.5
_PAIRS_PER_RUN = 2
_TIMEOUT_S = 300.0
_PROGRAM = Path(__file__).parents[1] / "programs" / "emit_of_tree.py"


def measure_client(stack: Stack, tree: Path, events: int, rate: int) -> dict[str, Any]:
    """Measure the client of a tree; return what the program prints. Raises `RuntimeError`."""
    env = {**environment(stack.new_pipeline()), "PYTHONPATH": tree_path(tree)}
    argv = [sys.executable, str(_PROGRAM), f"{events}", f"{rate}"]
    figures = stack.run_to_end(argv, env, "emit-of-tree", _TIMEOUT_S)
    check_tree(figures, "client", tree)
    return figures


def run(bench: Bench) -> list[Result]:
    """Run the measurement."""
    flood = bench.event_count(EVENTS, EVENTS_QUICK)
    seconds = SECONDS_QUICK if bench.options.quick else SECONDS
    pairs: dict[str, list[Pair]] = {name: [] for name in RATES}
    with running_stack(bench) as stack:
        base = stack.folder / "base"
        short = unpack_commit(bench.options.base, base)
        for number in range(1 if bench.options.quick else bench.runs * _PAIRS_PER_RUN):
            for name, rate in RATES.items():
                events = rate * seconds or flood
                title = f"emit, {name}, pair {number + 1}, {events:,} events"
                measure = partial(measure_client, stack, events=events, rate=rate)
                pairs[name].append(bench.run_once(title, partial(measure_pair, measure, base, number)))
    notes = (
        f"beside {short}, {len(pairs['flood'])} pairs; three verbs in turn in one session, with the spool; the other "
        "commit's client runs with the packages installed now",
    )
    return [result for name in RATES for result in pair_results(name, pairs[name], short, notes)]


def pair_results(name: str, pairs: Sequence[Pair], short: str, notes: Sequence[str] = ()) -> list[Result]:
    """Return ratios within each pair of the rate `name`, and the times of both commits.

    `short`: the other commit.
    """
    ratios = [pair.ours["p50_us"] / pair.base["p50_us"] for pair in pairs]
    costs = [pair.ours["cpu_us"] / pair.base["cpu_us"] for pair in pairs]
    ours = [pair.ours["p50_us"] for pair in pairs]
    is_flood = not RATES[name]
    details = {"base": short, "pairs": [pair._asdict() for pair in pairs], "p50_us": statistics.median(ours)}
    ratio_target = Target("<=", SLOW_RATIO_MAX) if not is_flood and short == FIRST_CLIENT else None
    return [
        Result(f"emit, {name}, p50: ours / theirs", "ratio", ratios, ratio_target, notes, details),
        Result(f"emit, {name}, CPU of the process: ours / theirs", "ratio", costs),
        Result(f"emit, {name}, p50, ours", "µs", ours, Target("<=", FLOOD_US_MAX) if is_flood else None),
        Result(f"emit, {name}, p50, theirs", "µs", [pair.base["p50_us"] for pair in pairs]),
    ]
