"""A program that measures the full job of the source tree that it runs in, once.

    python job_of_tree.py BOOTSTRAP_SERVERS FOLDER EVENTS SEED

It is started by its path, with the tree's folders first on PYTHONPATH: client, workload, processor
and harness are all of that tree, which may be of another commit. FOLDER is for data and logs.

The tree's newest rules judge. The phases of an update are left out. Trees of before 0.2.0 send them
as events: a tenth of all, and the cheapest.

The program prints one line of JSON: events per second, CPU time per event in µs, the version of the
rules, the build of the core that runs, and the file of the processor's package, which identifies
the tree.
"""

import inspect
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench, Options
from benchmarks.harness.stack import Stack
from benchmarks.measurements.full_job import CONCURRENT, run_job
from benchmarks.workload.events import Template, Workload, agent_runs
from sessionary import stream_processors

_UPDATE_PHASES = ("updating", "persisting")


def main(bootstrap_servers: str, folder: str, events: str, seed: str) -> int:
    """Measure, print, and return the exit code."""
    prepare, version = _begin_with()
    bench = Bench(Options(seed=int(seed)))
    workload = Workload(agent_runs(None), seed=bench.options.seed, concurrent=CONCURRENT)
    workload.templates = [_without_phases(template) for template in workload.templates]
    stack = Stack(bench, Path(folder), bootstrap_servers)
    try:
        found = run_job(stack, bench, workload, int(events), *prepare)
    finally:
        stack.stop()
    figures: dict[str, Any] = {"events_per_s": found.events_per_s, "cpu_us": found.cpu_us, "rules": version}
    figures |= {"core": _core(), "processor": stream_processors.__file__}
    sys.stdout.write(json.dumps(figures) + "\n")
    return 0


def _without_phases(template: Template) -> Template:
    """Return a session without the events that are fields of `StateUpdated` since 0.2.0."""
    lines = (line for line in template.lines if getattr(line.payload, "phase", None) not in _UPDATE_PHASES)
    return template._replace(lines=tuple(lines))


def _core() -> str:
    """Return the core that runs: native or python. An old tree has the Python only."""
    try:
        from sessionary.stream_processors.core_build import core_build
    except ImportError:
        return "python"
    return core_build()


def _begin_with() -> tuple[Sequence[Callable[[Any], Any]], int]:
    """Return further arguments of `run_job`, so that the newest rules judge; their version."""
    from benchmarks.workload.live_sessions import preload_sessions
    from sessionary.schemas.rules import NEWEST_RULES

    # A tree of before 0.2.0 begins with older rules unless they are named.
    named: Any = {"rules": NEWEST_RULES} if "rules" in inspect.signature(preload_sessions).parameters else {}
    return (lambda kafka: preload_sessions(kafka, (), 0, **named),), NEWEST_RULES.version


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
