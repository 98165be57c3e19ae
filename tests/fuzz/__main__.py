"""Fold many fuzzed records on all cores: `python -m tests.fuzz --records 10000000 --seed 1`.

Exit code 1 if a record raised or changed a neighbour's row, if a kind came too rarely, or if a
process grew. An interrupt ends it with the report of what was done.
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence

from tests.fuzz.campaign import (
    RunResult,
    find_gaps,
    find_growth,
    format_report,
    plan_runs,
    progress_line,
    run_campaign,
)

_SHOWN_MAX = 20


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000, help="number of records")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first run; each next run has the next one")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="default: one per core")
    given = parser.parse_args(argv)
    if given.records <= 0 or given.processes <= 0:
        parser.error("--records and --processes must be greater than 0")
    return given


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(argv: Sequence[str]) -> int:
    """Return the exit code."""
    options = _options(argv)
    began_s, total = time.monotonic(), RunResult()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    runs = run_campaign(plan_runs(options.seed, options.records), options.processes)
    try:
        for _, result in runs:
            total = total.combine(result)
            _say(progress_line(total, options.records, began_s))
            for failure in result.failures:
                _say(failure)
    except KeyboardInterrupt:
        _say("interrupted; what was done so far:")
    finally:
        runs.close()
    for line in format_report(total, time.monotonic() - began_s):
        _say(line)
    gaps = find_gaps(total) + find_growth(total)
    for gap in gaps[:_SHOWN_MAX]:
        _say(gap)
    _say(
        f"{len(gaps)} faults"
        if gaps
        else "no record raised, changed a neighbour or was left without an outcome, and no process grew"
    )
    return 1 if gaps else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
