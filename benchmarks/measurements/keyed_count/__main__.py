"""This measurement alone, with a choice of engines; writes no results file."""

import argparse

from rich.console import Console

from benchmarks.bench import RUNS, Bench, Options
from benchmarks.measurements.keyed_count.compare import run
from benchmarks.measurements.keyed_count.engines import ENGINES
from benchmarks.results import print_results


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.measurements.keyed_count", description="compare engines"
    )
    parser.add_argument("--engines", default=",".join(ENGINES), help=f"comma-separated: {','.join(ENGINES)}")
    parser.add_argument("--rounds", type=int, default=RUNS, help="runs of each engine, in turn")
    parser.add_argument("--events", type=int, help="events; the first fifth is warm-up")
    parser.add_argument("--quick", action="store_true", help="few events, one round: shows that it works")
    parser.add_argument("--keep", action="store_true", help="keep the temporary folder with data and logs")
    given = parser.parse_args()
    names = [name.strip() for name in given.engines.split(",")]
    if unknown := sorted(set(names) - set(ENGINES)):
        parser.error(f"there is no engine {', '.join(unknown)}; choose from {', '.join(ENGINES)}")
    bench = Bench(Options(runs=given.rounds, quick=given.quick, events=given.events, keep=given.keep))
    print_results("(a) keyed count", run(bench, names), Console(width=120, highlight=False))


if __name__ == "__main__":
    main()
