"""(v) Rows per second of the sinks of this tree beside those of another commit, in pairs.

A processor of this tree fills the topics once. The sinks of both commits then write the same
records, in turn, each time into an empty database of one engine. Within a pair the order changes.
Only ratios within a pair are judged.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench
from benchmarks.harness.stack import Stack, running_stack
from benchmarks.measurements.base_commit import Pair, check_tree, measure_pair, tree_path, unpack_commit
from benchmarks.measurements.full_job import make_workload
from benchmarks.measurements.sinks import EVENTS, EVENTS_QUICK, judged_topics, measure_load
from benchmarks.results import Result, Target
from sessionary.schemas.settings import KafkaSettings

# Rows per second of this tree to those of the other one, by the core of this tree's sinks.
RATE_TARGETS = {"native": Target(">=", 1.5), "python": Target(">=", 1.0)}
_PAIRS_PER_RUN = 2
_TIMEOUT_S = 60.0
# Asked of each tree: where its sinks are, and whether their rows are made by the compiled core.
_WHERE = """
import importlib.util, json
import sessionary.sinks.app as app
found = importlib.util.find_spec("sessionary.sinks.core.rows.event_columns")
is_native = found is not None and not str(found.origin).endswith(".py")
print(json.dumps({"sinks": app.__file__, "core": "native" if is_native else "python"}))
"""


def measure_sinks(
    stack: Stack, bench: Bench, tree: Path, kafka: KafkaSettings, wanted: Mapping[str, int]
) -> dict[str, Any]:
    """Measure the sinks of a tree.

    Return rows per second, CPU of all sinks and of the engine per row in µs, and the core that made
    the rows. Raises `RuntimeError`.
    """
    path = tree_path(tree)
    found = stack.run_to_end([sys.executable, "-c", _WHERE], {"PYTHONPATH": path}, "where", _TIMEOUT_S)
    check_tree(found, "sinks", tree)
    load = measure_load(stack, bench, kafka, wanted, path)
    sinks_s = sum(spent for name, spent in load.cpu_s.items() if name != "engine")
    costs = {"cpu_us": sinks_s * 1e6 / load.rows_counted, "engine_us": load.cpu_s["engine"] * 1e6 / load.rows_counted}
    return {"rows_per_s": load.rows_per_s, **costs, "core": found["core"]}


def run(bench: Bench) -> list[Result]:
    """Run the measurement."""
    events, pairs = bench.event_count(EVENTS, EVENTS_QUICK), list[Pair]()
    workload = make_workload(bench)
    with running_stack(bench) as stack:
        base = stack.folder / "base"
        short = unpack_commit(bench.options.base, base)
        kafka, wanted = bench.run_once(
            f"topics of {events:,} events", lambda: judged_topics(stack, bench, workload, events)
        )
        measure = partial(measure_sinks, stack, bench, kafka=kafka, wanted=wanted)
        bench.run_once("warm-up, not counted", lambda: measure(base))
        for number in range(1 if bench.options.quick else bench.runs * _PAIRS_PER_RUN):
            title = f"sinks, pair {number + 1}, {sum(wanted.values()):,} rows"
            pairs.append(bench.run_once(title, partial(measure_pair, measure, base, number)))
    return pair_results(pairs, short, wanted)


def pair_results(pairs: Sequence[Pair], short: str, wanted: Mapping[str, int]) -> list[Result]:
    """Return ratios within each pair, and the rates of both trees; `short`: the other commit."""
    core = pairs[0].ours["core"]
    notes = (
        f"beside {short}, {len(pairs)} pairs of {json.dumps(wanted)} rows; the other commit's sinks and migrations run "
        "with the packages installed now",
        f"core that made the rows: ours {core}, theirs {pairs[0].base['core']}",
    )
    rates = [pair.ours["rows_per_s"] / pair.base["rows_per_s"] for pair in pairs]
    costs = [pair.ours["cpu_us"] / pair.base["cpu_us"] for pair in pairs]
    engine_costs = [pair.ours["engine_us"] / pair.base["engine_us"] for pair in pairs]
    details = {"base": short, "pairs": [pair._asdict() for pair in pairs]}
    return [
        Result("sinks, rows per second: ours / theirs", "ratio", rates, RATE_TARGETS[core], notes, details),
        Result("sinks, CPU per row: ours / theirs", "ratio", costs),
        Result("sinks, CPU of the engine per row: ours / theirs", "ratio", engine_costs),
        Result("sinks, ours", "rows/s", [pair.ours["rows_per_s"] for pair in pairs]),
        Result("sinks, theirs", "rows/s", [pair.base["rows_per_s"] for pair in pairs]),
    ]
