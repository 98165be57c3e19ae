"""`python -m benchmarks`: run measurements, print their tables, write `results/<name>.json`.

The exit code is 1 if a figure misses its target, 2 if a measurement failed. With `--quick` or
`--part` no results file is written; with `--quick` no target is checked.
"""

import importlib
import sys
import traceback
from collections.abc import Sequence

from rich.console import Console

from benchmarks.bench import Bench, parse_options
from benchmarks.machine import machine_facts
from benchmarks.measurements import MEASUREMENTS, Measurement
from benchmarks.results import Result, print_results, write_results
from sessionary.stream_processors.core_build import core_build

_WIDTH = 120


def _run_measurement(measurement: Measurement, bench: Bench, console: Console) -> bool:
    """Run one measurement. Return False, after a traceback, if it failed; the others still run."""
    bench.print_progress(f"({measurement.letter}) {measurement.title}")
    bench.log.clear()
    try:
        found: list[Result] = importlib.import_module(measurement.module).run(bench)
    except Exception:  # noqa: BLE001  the failure of one measurement must not lose the figures of the others
        traceback.print_exc()
        return False
    if bench.options.quick:
        found = [result._replace(target=None) for result in found]
    bench.done[measurement.name] = found
    print_results(f"({measurement.letter}) {measurement.title}", found, console)
    if bench.options.writes_file:
        # Read again for each measurement, because the working tree may change in between.
        facts = {**machine_facts(), "options": _options_json(bench)}
        write_results(measurement.part(core_build()), found, bench.log, facts)
    return True


def _options_json(bench: Bench) -> dict[str, object]:
    options = bench.options
    named = options.runs_file.name if options.runs_file else "sample"
    return {"runs": bench.runs, "events": options.events, "seed": options.seed, "agent_runs": named}


def main(words: Sequence[str]) -> int:
    """Run the measurements that the arguments `words` name; return the exit code."""
    letters, names = {measurement.letter for measurement in MEASUREMENTS}, [each.name for each in MEASUREMENTS]
    options, chosen = parse_options(words, sorted(letters), names)
    bench, console = Bench(options), Console(width=_WIDTH, highlight=False)
    wanted = [each for each in MEASUREMENTS if each.letter in chosen or each.name in chosen]
    failed = [measurement.name for measurement in wanted if not _run_measurement(measurement, bench, console)]
    missed = [result.name for found in bench.done.values() for result in found if result.met is False]
    if failed:
        sys.stderr.write(f"failed: {', '.join(failed)}\n")
    if missed and not options.quick:
        sys.stderr.write(f"below target: {'; '.join(missed)}\n")
    return 2 if failed else 1 if missed and not options.quick else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
