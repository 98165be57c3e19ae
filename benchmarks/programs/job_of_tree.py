"""A program that measures the full job of the source tree that it runs in, once.

    python job_of_tree.py BOOTSTRAP_SERVERS FOLDER EVENTS SEED RULES

It is started by its path, with the tree's folders first on PYTHONPATH: client, workload, processor
and harness are all of that tree, which may be of another commit. FOLDER is for data and logs.

RULES is the version of the rules that judge; if the tree does not have it, its newest one does.

It prints one line of JSON: events per second, CPU time per event in µs, the version of the rules,
the build of the core that runs, and the file of the processor's package, which tells the tree.
"""

import inspect
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench, Options
from benchmarks.harness.stack import Stack
from benchmarks.measurements.full_job import make_workload, run_job
from sessionary import stream_processors

FIRST = 1  # version of the rules that all trees have


def main(bootstrap_servers: str, folder: str, events: str, seed: str, rules: str) -> int:
    """Measure, print, and return the exit code."""
    prepare, version = _begin_with(int(rules))
    bench = Bench(Options(seed=int(seed)))
    stack = Stack(bench, Path(folder), bootstrap_servers)
    try:
        found = run_job(stack, bench, make_workload(bench), int(events), *prepare)
    finally:
        stack.stop()
    figures: dict[str, Any] = {"events_per_s": found.events_per_s, "cpu_us": found.cpu_us, "rules": version}
    figures |= {"core": _core(), "processor": stream_processors.__file__}
    sys.stdout.write(json.dumps(figures) + "\n")
    return 0


def _core() -> str:
    """Return which core runs: native or python. A tree that cannot tell has the Python only."""
    try:
        from sessionary.stream_processors.measures.core_build import core_build
    except ImportError:
        return "python"
    return core_build()


def _begin_with(version: int) -> tuple[Sequence[Callable[[Any], Any]], int]:
    """Return the further arguments of `run_job` with which these rules judge, and their version."""
    try:
        from benchmarks.workload.live_sessions import preload_sessions
        from sessionary.schemas.rules import FIRST_RULES, NEWEST_RULES
    except ImportError:  # a tree that is older than the second rules
        return (), FIRST
    if "prepare" not in inspect.signature(run_job).parameters:
        return (), FIRST
    rules = NEWEST_RULES if version >= NEWEST_RULES.version else FIRST_RULES
    return (lambda kafka: preload_sessions(kafka, (), 0, rules=rules),), rules.version


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
