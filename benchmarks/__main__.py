"""`python -m benchmarks`: run the parts, print their tables, write `results/<part>.json`.

Ends with 1 where a figure misses its target, with 2 where a part failed. With `--quick` nothing is written to the
results' folder and no target counts.
"""

import importlib
import sys
import traceback
from collections.abc import Sequence

from rich.console import Console

from benchmarks.bench import Bench, parse
from benchmarks.machine import facts
from benchmarks.parts import PARTS, Part
from benchmarks.results import Result, print_results, write_results

_WIDTH = 120


def _run(part: Part, bench: Bench, console: Console) -> bool:
    """Run one part; False where it failed, which is told, and leaves the others their turn."""
    bench.say(f"({part.letter}) {part.title}")
    bench.log.clear()
    try:
        found: list[Result] = importlib.import_module(part.module).run(bench)
    except Exception:  # noqa: BLE001 - one part's failure, whatever it is, must not take the others' figures along
        traceback.print_exc()
        return False
    if bench.options.quick:
        found = [result._replace(target=None) for result in found]
    bench.done[part.name] = found
    print_results(f"({part.letter}) {part.title}", found, console)
    if not bench.options.quick:
        # Asked for anew for each part: somebody may commit meanwhile.
        write_results(part.name, found, bench.log, {**facts(), "options": _said(bench)})
    return True


def _said(bench: Bench) -> dict[str, object]:
    options = bench.options
    named = options.runs_file.name if options.runs_file else "sample"
    return {"runs": bench.runs, "events": options.events, "seed": options.seed, "agent_runs": named}


def main(words: Sequence[str]) -> int:
    """Run what `words` ask for; return the exit code."""
    options, letters = parse(words, sorted({part.letter for part in PARTS}))
    bench, console = Bench(options), Console(width=_WIDTH, highlight=False)
    wanted = [part for part in PARTS if part.letter in letters]
    failed = [part.name for part in wanted if not _run(part, bench, console)]
    missed = [result.name for found in bench.done.values() for result in found if result.met is False]
    if failed:
        sys.stderr.write(f"failed: {', '.join(failed)}\n")
    if missed and not options.quick:
        sys.stderr.write(f"below target: {'; '.join(missed)}\n")
    return 2 if failed else 1 if missed and not options.quick else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
