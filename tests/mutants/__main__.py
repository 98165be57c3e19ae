"""Test the tests with mutants of the pure core: `python -m tests.mutants [--only PATTERN]`.

Exit code 1 if a mutant survives that equivalent.txt does not list.
"""

import argparse
import compileall
import contextlib
import importlib
import os
import shutil
import signal
import sys
import tempfile
import time
from fnmatch import fnmatch
from pathlib import Path
from random import Random

import sessionary.schemas
import sessionary.stream_processors
import tests
from tests.mutants.mutations import Mutant, mutants_of
from tests.mutants.report import outcome, report, write_json, wrongly_listed
from tests.mutants.suite import ROOT, run_suite
from tests.mutants.trials import Install, Result, run_trials

MODULES = (
    "schemas.limits",
    "core.session.transitions",
    "core.session.clocks",
    "core.session.values",
    "core.session.accepted",
    "core.session.effects",
    "core.session.values",
    "core.session.judge",
    "core.session.report",
    "core.session.rows",
    "core.session.judge",
    "core.session.children",
    "core.session.admission",
    "core.session.admission",
    "core.run.transitions",
    "core.run.judge",
    "core.run.rows",
    "core.run.changes",
    "core.committed",
    "core.children.step",
    "core.children.call",
    "core.children.artifact",
    "core.children.message",
    "core.quota.claims",
    "core.quota.judge",
    "core.quota.claims",
    "core.family",
    "core.children.agent",
    "core.committed",
    "core.family",
    "core.clock",
    "core.clock",
    "core.sequencing",
    "core.model",
    "core.rows",
    "core.judge",
    "schemas.fast_replace",
    "core.trail",
    "core.model",
    "core.committed",
    "core.tombstones",
    "core.tombstones",
    "core.uncommitted_batch",
    "core.uncommitted_batch",
    "core.partition",
)
SOURCES = {  # where a module is, by the first part of its name
    "core": ROOT / "stream_processors" / "sessionary" / "stream_processors" / "core",
    "schemas": ROOT / "schemas" / "sessionary" / "schemas",
}
EQUIVALENT = Path(__file__).with_name("equivalent.txt")
RESULTS = ROOT / "build" / "mutants.json"
# Imported once for all trials; none of them imports a mutated module.
PRELOADED = (
    "sessionary.schemas.codec",
    "sessionary.sinks.core.intent",
    "tests.auditor.oracle",
    "tests.support.event_factory",
    "hypothesis.stateful",
    "tests.core.conftest",  # the same examples in each trial
)
STOPPED = 130  # the exit code of shells for Ctrl-C
_REPORT_EVERY_S = 30.0  # if stderr is a file


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", metavar="PATTERN", help="only ids that contain this, or match it if it has * or ?")
    parser.add_argument("--workers", type=int, default=2, help="parallel trials (default 2)")
    parser.add_argument("--sample", type=int, help="try a random sample of this size, drawn by --seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--all", action="store_true", help="also try those listed as equivalent")
    parser.add_argument("--list", action="store_true", help="only print the mutants")
    return parser.parse_args()


def read_equivalents() -> dict[str, str]:
    """Return the listed mutants that behave like the original: id → reason."""
    lines = (line.partition("  ") for line in EQUIVALENT.read_text("utf-8").splitlines())
    return {id_: reason.strip() for id_, _, reason in lines if id_ and not id_.startswith("#")}


def module_text(module: str) -> str:
    """Return the text of one of `MODULES`."""
    package, *names = module.split(".")
    return SOURCES[package].joinpath(*names).with_suffix(".py").read_text("utf-8")


def select_mutants(arguments: argparse.Namespace) -> list[Mutant]:
    """Return the requested mutants in the order of the modules."""
    found = [mutant for name in MODULES for mutant in mutants_of(name, module_text(name))]
    if arguments.only:
        pattern = arguments.only if set(arguments.only) & set("*?") else f"*{arguments.only}*"
        found = [mutant for mutant in found if fnmatch(mutant.id, pattern)]
    if arguments.sample and arguments.sample < len(found):
        sys.stdout.write(f"a sample of {arguments.sample} of {len(found)} mutants, seed {arguments.seed}\n")
        drawn = set(Random(arguments.seed).sample(range(len(found)), arguments.sample))
        found = [mutant for n, mutant in enumerate(found) if n in drawn]
    return found


class Progress:
    """Prints progress: on one line of a terminal, every 30 s to a file; survivors at once."""

    def __init__(self, total: int) -> None:
        self._total, self._trial_count, self._survived = total, 0, 0
        self._begun_s = self._reported_s = time.monotonic()

    def add_result(self, result: Result, *, survived: bool) -> None:
        """Count a result."""
        self._trial_count += 1
        now_s, on_a_line = time.monotonic(), sys.stderr.isatty()
        if survived:
            self._survived += 1
            mutant = result.mutant
            sys.stderr.write("\r" * on_a_line + f"survived: {mutant.id}, line {mutant.line}\n")
        if on_a_line or now_s - self._reported_s >= _REPORT_EVERY_S or self._trial_count == self._total:
            self._reported_s = now_s
            numbers = f"{self._trial_count:,} of {self._total:,} tried, {self._survived:,} survived"
            line = f"{numbers}, {now_s - self._begun_s:.0f} s, at {result.mutant.module}"
            sys.stderr.write(f"\r{line:72}" if on_a_line else f"{line}\n")
            sys.stderr.flush()

    def finish_line(self) -> None:
        """End the progress line."""
        if sys.stderr.isatty():
            sys.stderr.write("\n")


def main() -> int:
    arguments = _arguments()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)  # in the background too: report what was tried so far
    for name in PRELOADED:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory(prefix="mutants-source-") as folder:
        source, checks = Path(folder) / "stream_processors", Path(folder) / "tests"
        mutants = select_mutants(arguments)
        # Copies, because a run takes long and edits of the tree meanwhile must not affect it.
        for tree, copy in ((SOURCES["core"].parent, source), (ROOT / "tests", checks)):
            copy_modules(tree, copy)
            compileall.compile_dir(copy, quiet=1)  # trials write no bytecode: each would compile all tests again
        if not mutants:
            sys.stderr.write(f"no mutant's id contains {arguments.only!r}; --list prints all ids\n")
            return 2
        if arguments.list:
            sys.stdout.write("".join(f"{m.id}  line {m.line}: {m.before!r} -> {m.after!r}\n" for m in mutants))
            return 0

        def install(overlay: Path) -> None:
            # Python finds a package in one folder only: link the other modules next to the mutant.
            shutil.copytree(source, overlay, copy_function=_link_missing, dirs_exist_ok=True)
            sessionary.stream_processors.__path__ = [str(overlay)]
            sessionary.schemas.__path__ = [str(overlay / "schemas"), *sessionary.schemas.__path__]
            tests.__path__ = [str(checks)]

        return _try_all(mutants, install, arguments)


def copy_modules(tree: Path, copy: Path) -> None:
    """Copy a tree without extensions: Python would import them instead of the mutants."""
    shutil.copytree(tree, copy, ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.pyd"))


def _link_missing(source: str, target: str) -> None:
    """Link a file unless the target, the mutant, exists already."""
    with contextlib.suppress(FileExistsError):
        os.link(source, target)


def _try_all(mutants: list[Mutant], install: Install, arguments: argparse.Namespace) -> int:
    untouched = mutants_of("clock", "x = 1")[0]._replace(module="unmutated", id="unmutated")
    (control,) = run_trials([untouched], install, run_suite, 1)
    if control.killed_by is not None:
        sys.stdout.write(f"the suite fails without any mutant: {control.killed_by}\n")
        return 2
    known, begun_s = read_equivalents(), time.monotonic()
    results = [] if arguments.all else [Result(mutant, None, 0.0) for mutant in mutants if mutant.id in known]
    trials = [mutant for mutant in mutants if arguments.all or mutant.id not in known]
    progress, stopped = Progress(len(trials)), False
    try:
        for result in run_trials(trials, install, run_suite, arguments.workers):
            results.append(result)
            progress.add_result(result, survived=outcome(result, known) == "survived")
    except KeyboardInterrupt:
        stopped = True
    progress.finish_line()
    places = {mutant.id: n for n, mutant in enumerate(mutants)}
    results.sort(key=lambda result: places[result.mutant.id])
    write_json(results, known, RESULTS)
    cpu_s, elapsed_s = sum(result.cpu_s for result in results), time.monotonic() - begun_s
    sys.stdout.write(f"{report(results, known)}\n{elapsed_s:.0f} s, {cpu_s:.0f} s of CPU; ")
    sys.stdout.write(f"the suite without a mutant takes {control.cpu_s:.1f} s\n")
    if stopped:
        sys.stdout.write(f"stopped before {len(mutants) - len(results):,} were tried\n")
        return STOPPED
    return 1 if wrongly_listed(results, known) or any(outcome(result, known) == "survived" for result in results) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(STOPPED)
