"""Make mutants of the pure core and try them: `python -m tests.mutants [--only PATTERN] [--workers 2]`.

Ends with 1 where a mutant survives that is not listed in equivalent.txt, with its reason.
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

import sessionary.stream_processors
import tests
from tests.mutants.bench import Install, Result, tried
from tests.mutants.mutations import Mutant, mutants_of
from tests.mutants.report import keep, outcome, report, wrongly_listed
from tests.mutants.suite import ROOT, suite

MODULES = (
    "core.session.transitions",
    "core.session.clocks",
    "core.session.limits",
    "core.session.accepted",
    "core.session.effects",
    "core.session.decide",
    "core.session.report",
    "core.session.machine",
    "core.clock",
    "core.timers",
    "core.sequencing",
    "core.verdict",
    "core.trail",
    "core.overlay",
    "core.partition",
)
SOURCE = ROOT / "stream_processors" / "sessionary" / "stream_processors"
EQUIVALENT = Path(__file__).with_name("equivalent.txt")
RESULTS = ROOT / "build" / "mutants.json"
# Loaded once, for all trials; none of them imports a module that is mutated.
PRELOADED = (
    "sessionary.schemas.codec",
    "sessionary.sinks.core.intent",
    "tests.auditor.account",
    "tests.support.scribe",
    "hypothesis.stateful",
)
STOPPED = 130  # as shells have it for Ctrl-C
_TOLD_EVERY_S = 30.0  # where the progress is kept in a file


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", metavar="PATTERN", help="only ids that hold this, or match it where it has * or ?")
    parser.add_argument("--workers", type=int, default=2, help="trials side by side (default 2)")
    parser.add_argument("--sample", type=int, help="try so many, drawn by --seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--all", action="store_true", help="try those listed as equivalent too")
    parser.add_argument("--list", action="store_true", help="print the mutants and try none")
    return parser.parse_args()


def equivalents() -> dict[str, str]:
    """Mutants that nobody can tell from the original, and why: id → reason."""
    lines = (line.partition("  ") for line in EQUIVALENT.read_text("utf-8").splitlines())
    return {id_: reason.strip() for id_, _, reason in lines if id_ and not id_.startswith("#")}


def text_of(module: str, source: Path = SOURCE) -> str:
    """Return the text of one of `MODULES`."""
    return (source / module.replace(".", "/")).with_suffix(".py").read_text("utf-8")


def chosen(arguments: argparse.Namespace, source: Path) -> list[Mutant]:
    """The mutants that were asked for, in the order of the modules."""
    found = [mutant for name in MODULES for mutant in mutants_of(name, text_of(name, source))]
    if arguments.only:
        pattern = arguments.only if set(arguments.only) & set("*?") else f"*{arguments.only}*"
        found = [mutant for mutant in found if fnmatch(mutant.id, pattern)]
    if arguments.sample and arguments.sample < len(found):
        sys.stdout.write(f"a sample of {arguments.sample} of {len(found)} mutants, seed {arguments.seed}\n")
        drawn = set(Random(arguments.seed).sample(range(len(found)), arguments.sample))
        found = [mutant for n, mutant in enumerate(found) if n in drawn]
    return found


class Progress:
    """Says how far it is: on one line of a terminal, now and then in a file; survivors at once."""

    def __init__(self, total: int) -> None:
        self._total, self._tried, self._survived = total, 0, 0
        self._begun_s = self._told_s = time.monotonic()

    def heard(self, result: Result, *, survived: bool) -> None:
        """Take note of a result."""
        self._tried += 1
        now_s, on_a_line = time.monotonic(), sys.stderr.isatty()
        if survived:
            self._survived += 1
            mutant = result.mutant
            sys.stderr.write("\r" * on_a_line + f"survived: {mutant.id}, line {mutant.line}\n")
        if on_a_line or now_s - self._told_s >= _TOLD_EVERY_S or self._tried == self._total:
            self._told_s = now_s
            numbers = f"{self._tried:,} of {self._total:,} tried, {self._survived:,} survived"
            line = f"{numbers}, {now_s - self._begun_s:.0f} s, at {result.mutant.module}"
            sys.stderr.write(f"\r{line:72}" if on_a_line else f"{line}\n")
            sys.stderr.flush()

    def ended(self) -> None:
        """Leave the line."""
        if sys.stderr.isatty():
            sys.stderr.write("\n")


def main() -> int:
    arguments = _arguments()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)  # in the background too: what was tried so far is told
    for name in PRELOADED:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory(prefix="mutants-source-") as folder:
        source, checks = Path(folder) / "stream_processors", Path(folder) / "tests"
        # Copies, as a run takes long, and whoever goes on working meanwhile is not to kill anything.
        for tree, copy in ((SOURCE, source), (ROOT / "tests", checks)):
            shutil.copytree(tree, copy, ignore=shutil.ignore_patterns("__pycache__"))
            compileall.compile_dir(copy, quiet=1)  # trials write no bytecode: each would compile every test anew
        mutants = chosen(arguments, source)
        if not mutants:
            sys.stderr.write(f"no mutant's id holds {arguments.only!r}; --list tells them all\n")
            return 2
        if arguments.list:
            sys.stdout.write("".join(f"{m.id}  line {m.line}: {m.before!r} -> {m.after!r}\n" for m in mutants))
            return 0

        def install(overlay: Path) -> None:
            # A package is found in one folder only: the mutant's gets links to its neighbours.
            for package in overlay.iterdir():
                shutil.copytree(source / package.name, package, copy_function=_link_missing, dirs_exist_ok=True)
            sessionary.stream_processors.__path__ = [str(overlay), str(source)]
            tests.__path__ = [str(checks)]

        return _tried(mutants, install, arguments)


def _link_missing(neighbour: str, place: str) -> None:
    with contextlib.suppress(FileExistsError):
        os.link(neighbour, place)


def _tried(mutants: list[Mutant], install: Install, arguments: argparse.Namespace) -> int:
    untouched = mutants_of("clock", "x = 1")[0]._replace(module="unmutated", id="unmutated")
    (control,) = tried([untouched], install, suite, 1)
    if control.killed_by is not None:
        sys.stdout.write(f"the suite fails without any mutant: {control.killed_by}\n")
        return 2
    known, begun_s = equivalents(), time.monotonic()
    results = [] if arguments.all else [Result(mutant, None, 0.0) for mutant in mutants if mutant.id in known]
    trials = [mutant for mutant in mutants if arguments.all or mutant.id not in known]
    progress, stopped = Progress(len(trials)), False
    try:
        for result in tried(trials, install, suite, arguments.workers):
            results.append(result)
            progress.heard(result, survived=outcome(result, known) == "survived")
    except KeyboardInterrupt:
        stopped = True
    progress.ended()
    places = {mutant.id: n for n, mutant in enumerate(mutants)}
    results.sort(key=lambda result: places[result.mutant.id])
    keep(results, known, RESULTS)
    cpu_s, elapsed_s = sum(result.cpu_s for result in results), time.monotonic() - begun_s
    sys.stdout.write(f"{report(results, known)}\n{elapsed_s:.0f} s, {cpu_s:.0f} s of processors; ")
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
