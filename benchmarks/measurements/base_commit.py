"""(v) The full job of this tree beside that of another commit, in pairs.

Both commits use one broker, in turn, with the packages that are installed now; each makes its
events with its own client. Within a pair the order changes, so that what drifts (the machine's
clock rate, neighbours) falls on both. Only ratios within a pair are judged.

The other commit is freshly unpacked, so its core is the Python. This tree's is the native one if
`make native` built it, else the Python too; the notes name it.
"""

import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.bench import Bench
from benchmarks.harness.stack import Stack, running_stack
from benchmarks.machine import ROOT, run_git
from benchmarks.measurements.full_job import CONCURRENT, make_workload, warm_up
from benchmarks.results import Result, Target

EVENTS, EVENTS_QUICK = 200_000, 60_000
# Target ratios of this tree to the other one, by this tree's core: events per second, CPU time.
RATE_TARGETS = {"native": Target(">=", 2.2), "python": Target(">=", 1.0)}
COST_TARGETS = {"native": Target("<=", 0.42), "python": Target("<=", 1.0)}
_PAIRS_PER_RUN = 2
_TIMEOUT_S = 900.0
_PROGRAM = Path(__file__).parents[1] / "programs" / "job_of_tree.py"
_ROOMS = ("infra", "producers", "schemas", "sinks", "stream_processors")


class Pair(NamedTuple):
    """The output of `programs.job_of_tree`, for this tree and for the other commit."""

    ours: dict[str, Any]
    base: dict[str, Any]


def unpack_commit(commit: str, folder: Path) -> str:
    """Unpack a commit's files into `folder`, and return its short hash. Raises `RuntimeError`."""
    short = run_git("rev-parse", "--short=12", "--verify", "--quiet", f"{commit}^{{commit}}")
    if not short:
        raise RuntimeError(f"--base: there is no commit {commit}")
    packed = folder.with_suffix(".tar")
    if run_git("archive", "--format=tar", f"--output={packed}", short) is None:
        raise RuntimeError(f"git cannot archive {short}")
    with tarfile.open(packed) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python before 3.11.4 has none
        archive.extractall(folder)
    packed.unlink()
    if (folder / "generation").is_dir():
        _make_codec(folder)
    return short


def _make_codec(tree: Path) -> None:
    """Make the readers and writers of a tree, as its installation would. Raises `RuntimeError`."""
    done = subprocess.run(
        [sys.executable, "-m", "generation"],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": tree_path(tree)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the readers and writers of {tree.name} cannot be made: {done.stderr[-2_000:]}")


def tree_path(tree: Path) -> str:
    """Return the PYTHONPATH with which a tree's packages are found before the installed ones."""
    return os.pathsep.join(str(tree / part) for part in ("", *_ROOMS))


def check_tree(figures: dict[str, Any], part: str, tree: Path) -> None:
    """Remove from `figures` the file of the measured part, after a look that it is of `tree`.

    Results must not hold a path of this machine. Raises `RuntimeError`.
    """
    place = figures.pop(part)
    if not Path(place).is_relative_to(tree):
        raise RuntimeError(f"the {part} of {place} was measured, not that of {tree}")


def measure_tree(stack: Stack, bench: Bench, tree: Path, events: int) -> dict[str, Any]:
    """Measure the full job of a tree; return what the program prints. Raises `RuntimeError`."""
    folder = stack.folder / f"job-{len(list(stack.folder.glob('job-*')))}"
    folder.mkdir()
    words = (stack.bootstrap_servers, str(folder), f"{events}", f"{bench.options.seed}")
    figures = stack.run_to_end(
        [sys.executable, str(_PROGRAM), *words], {"PYTHONPATH": tree_path(tree)}, "job-of-tree", _TIMEOUT_S
    )
    check_tree(figures, "processor", tree)
    rate, cost = f"{figures['events_per_s']:,.0f} events/s", f"{figures['cpu_us']:.1f} µs CPU"
    bench.print_progress(f"  {tree.name}: {rate}, {cost}, rules {figures['rules']}, {figures['core']} core")
    return figures


def measure_pair(measure: Callable[[Path], dict[str, Any]], base: Path, number: int) -> Pair:
    """Return what `measure` finds of this tree and of `base`; who begins changes with each pair."""
    trees = (ROOT, base) if number % 2 else (base, ROOT)
    found = {tree: measure(tree) for tree in trees}
    return Pair(found[ROOT], found[base])


def run(bench: Bench) -> list[Result]:
    """Run the measurement."""
    events = bench.event_count(EVENTS, EVENTS_QUICK)
    pairs: list[Pair] = []
    with running_stack(bench) as stack:
        base = stack.folder / "base"
        short = unpack_commit(bench.options.base, base)
        warm_up(stack, bench, make_workload(bench))
        for number in range(1 if bench.options.quick else bench.runs * _PAIRS_PER_RUN):
            title = f"pair {number + 1}, {events:,} events"
            measure = partial(measure_tree, stack, bench, events=events)
            pairs.append(bench.run_once(title, partial(measure_pair, measure, base, number)))
    return pair_results(pairs, short, events)


def pair_results(pairs: Sequence[Pair], short: str, events: int) -> list[Result]:
    """Return ratios within each pair, and the figures of both trees; `short`: the other commit."""
    core = pairs[0].ours["core"]
    notes = (
        f"beside {short}, {len(pairs)} pairs of {events:,} events of {CONCURRENT:,} sessions at a time; the other "
        "commit makes the same runs' events with its own client, and runs with the packages installed now",
        f"ours is judged by rules {pairs[0].ours['rules']} and the {core} core, theirs by rules "
        f"{pairs[0].base['rules']} and the {pairs[0].base['core']} core",
    )
    rates = [pair.ours["events_per_s"] / pair.base["events_per_s"] for pair in pairs]
    costs = [pair.ours["cpu_us"] / pair.base["cpu_us"] for pair in pairs]
    details = {"base": short, "pairs": [pair._asdict() for pair in pairs]}
    return [
        Result("full job, events per second: ours / theirs", "ratio", rates, RATE_TARGETS[core], notes, details),
        Result("full job, CPU per event: ours / theirs", "ratio", costs, COST_TARGETS[core]),
        Result("full job, ours", "events/s", [pair.ours["events_per_s"] for pair in pairs]),
        Result("full job, ours, CPU per event", "µs", [pair.ours["cpu_us"] for pair in pairs]),
        Result("full job, theirs", "events/s", [pair.base["events_per_s"] for pair in pairs]),
        Result("full job, theirs, CPU per event", "µs", [pair.base["cpu_us"] for pair in pairs]),
    ]
