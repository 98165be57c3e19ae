"""Run simulated schedules: `python -m tests.simulation --schedules 20000`, `--seed 7 --trace`."""

import argparse
import sys
import time
from collections import Counter

from tests.simulation.adapter import JUDGE
from tests.simulation.runner import Failure, run_schedule
from tests.support.tally_family import tally_judge

_PROGRESS_S = 1.0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--schedules", type=int, default=3_000, help="number of schedules (default 3000)")
    parser.add_argument(
        "--first-seed", type=int, default=1, help="seed of the first schedule; the others count on (default 1)"
    )
    parser.add_argument("--seed", type=int, help="run only the schedule of this seed")
    parser.add_argument("--trace", action="store_true", help="print each step")
    parser.add_argument("--failures", type=int, default=3, help="stop after this many failures (default 3)")
    parser.add_argument("--coverage", action="store_true", help="print how often each kind of event occurred")
    parser.add_argument("--tally", action="store_true", help="fold with the tests' own family of rows")
    given = parser.parse_args()
    if given.schedules < 1 or given.failures < 1:
        parser.error("--schedules and --failures must be at least 1")
    return given


def main() -> int:
    """Return 1 if any schedule fails."""
    arguments = _arguments()
    single = arguments.seed is not None
    seeds = [arguments.seed] if single else range(arguments.first_seed, arguments.first_seed + arguments.schedules)
    judge, options = (tally_judge(), " --tally") if arguments.tally else (JUDGE, "")
    seen: Counter[str] = Counter()
    failures, begun_s, reported_s = 0, time.monotonic(), 0.0
    for n, seed in enumerate(seeds, 1):
        result = run_schedule(seed, tracing=arguments.trace, judge=judge)
        seen += result.seen
        if arguments.trace:
            sys.stdout.write("\n".join([*result.trace, ""]))
        if result.found:
            failures += 1
            sys.stdout.write(f"\n{Failure(seed, result.found, options)}\n")
        elapsed_s = time.monotonic() - begun_s
        if not single and (elapsed_s - reported_s > _PROGRESS_S or n == len(seeds)):
            reported_s = elapsed_s
            rate = n / elapsed_s * 60
            sys.stderr.write(
                f"\r{n:,} schedules, {seen['records']:,} records, {rate:,.0f} a minute, {failures} failed "
            )
            sys.stderr.flush()
        if failures >= arguments.failures:
            break
    sys.stderr.write("\n")
    if arguments.coverage:
        sys.stdout.write("".join(f"{times:9,}  {what}\n" for what, times in sorted(seen.items())))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
