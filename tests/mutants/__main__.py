"""Make mutants of the pure core and try them: `python -m tests.mutants [--only PATTERN] [--workers 2]`.

Ends with 1 where a mutant survives that is not listed in equivalent.txt, with its reason.
"""

import argparse
import compileall
import importlib
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path
from random import Random

import sessionary.stream_processors
from tests.mutants.bench import Install, Result, tried
from tests.mutants.mutations import Mutant, mutants_of
from tests.mutants.suite import ROOT, suite

MODULES = ("table", "clock", "timers", "limits", "lifecycle", "ownership", "judge", "fold")
SOURCE = ROOT / "stream_processors" / "sessionary" / "stream_processors"
EQUIVALENT = Path(__file__).with_name("equivalent.txt")
RESULTS = ROOT / "build" / "mutants.json"
# Loaded once, for all trials; none of them imports a module that is mutated.
PRELOADED = (
    "sessionary.schemas.codec",
    "sessionary.sinks.batching",
    "tests.auditor.account",
    "tests.support.scribe",
    "hypothesis.stateful",
)


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


def chosen(arguments: argparse.Namespace, source: Path) -> list[Mutant]:
    """The mutants that were asked for, in the order of the modules."""
    found = [mutant for name in MODULES for mutant in mutants_of(name, (source / f"{name}.py").read_text("utf-8"))]
    if arguments.only:
        pattern = arguments.only if set(arguments.only) & set("*?") else f"*{arguments.only}*"
        found = [mutant for mutant in found if fnmatch(mutant.id, pattern)]
    if arguments.sample and arguments.sample < len(found):
        sys.stdout.write(f"a sample of {arguments.sample} of {len(found)} mutants, seed {arguments.seed}\n")
        drawn = set(Random(arguments.seed).sample(range(len(found)), arguments.sample))
        found = [mutant for n, mutant in enumerate(found) if n in drawn]
    return found


def _told(results: list[Result], known: dict[str, str], elapsed_s: float) -> str:
    """The table, the survivors, the score."""
    lines = [f"{'module':12}{'mutants':>9}{'killed':>9}{'survived':>10}{'equivalent':>12}"]
    for module in (*MODULES, "all"):
        part = [result for result in results if module in (result.mutant.module, "all")]
        if part:
            kinds = Counter(_kind(result, known) for result in part)
            numbers = f"{kinds['killed']:9}{kinds['survived']:10}{kinds['equivalent']:12}"
            lines.append(f"{module:12}{len(part):9}{numbers}")
    for result in results:
        if _kind(result, known) == "survived":
            mutant = result.mutant
            lines += ["", f"survived: {mutant.id}", f"  {mutant.module}.py, line {mutant.line}, {mutant.operator}"]
            lines += [f"  - {line}" for line in mutant.before.splitlines()]
            lines += [f"  + {line}" for line in mutant.after.splitlines()]
    lines += [f"\nlisted as equivalent, but killed: {id_}" for id_ in wrongly_listed(results, known)]
    kinds = Counter(_kind(result, known) for result in results)
    score = 100 * kinds["killed"] / max(1, kinds["killed"] + kinds["survived"])
    killed_s = sorted(result.cpu_s for result in results if result.killed_by)
    middle_s = killed_s[len(killed_s) // 2] if killed_s else 0.0
    lines.append(
        f"\nscore {score:.1f} %: {kinds['killed']} killed, {kinds['survived']} survived, "
        f"{kinds['equivalent']} equivalent; {elapsed_s:.0f} s; "
        f"half of those killed took {middle_s:.2f} s of a processor or less"
    )
    return "\n".join(lines)


def _kind(result: Result, known: dict[str, str]) -> str:
    if result.killed_by is not None:
        return "killed"
    return "equivalent" if result.mutant.id in known else "survived"


def wrongly_listed(results: list[Result], known: dict[str, str]) -> list[str]:
    """Ids in equivalent.txt that a test does tell from the original."""
    return [result.mutant.id for result in results if result.mutant.id in known and result.killed_by is not None]


def _kept(results: list[Result], known: dict[str, str]) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    lines = [
        {
            "id": mutant.id,
            "module": mutant.module,
            "line": mutant.line,
            "operator": mutant.operator,
            "before": mutant.before,
            "after": mutant.after,
            "outcome": _kind(result, known),
            "killed_by": result.killed_by,
            "cpu_s": round(result.cpu_s, 3),
        }
        for result in results
        for mutant in [result.mutant]
    ]
    RESULTS.write_text(json.dumps(lines, indent=1) + "\n", "utf-8")


def main() -> int:
    arguments = _arguments()
    for name in PRELOADED:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory(prefix="mutants-source-") as folder:
        source = Path(folder) / "stream_processors"
        shutil.copytree(SOURCE, source, ignore=shutil.ignore_patterns("__pycache__"))
        compileall.compile_dir(source, quiet=1)
        mutants = chosen(arguments, source)
        if arguments.list:
            sys.stdout.write("".join(f"{m.id}  line {m.line}: {m.before!r} -> {m.after!r}\n" for m in mutants))
            return 0

        def install(overlay: Path) -> None:
            sessionary.stream_processors.__path__ = [str(overlay), str(source)]

        return _tried(mutants, install, arguments)


def _tried(mutants: list[Mutant], install: Install, arguments: argparse.Namespace) -> int:
    untouched = mutants_of("clock", "x = 1")[0]._replace(module="unmutated", id="unmutated")
    (control,) = tried([untouched], install, suite, 1)
    if control.killed_by is not None:
        sys.stdout.write(f"the suite fails without any mutant: {control.killed_by}\n")
        return 2
    known, begun_s = equivalents(), time.monotonic()
    results = [] if arguments.all else [Result(mutant, None, 0.0) for mutant in mutants if mutant.id in known]
    trials = [mutant for mutant in mutants if arguments.all or mutant.id not in known]
    survivors = 0
    for result in tried(trials, install, suite, arguments.workers):
        results.append(result)
        if _kind(result, known) == "survived":
            survivors += 1
            sys.stderr.write(f"\rsurvived: {result.mutant.id}  {result.mutant.before!r} -> {result.mutant.after!r}\n")
        elapsed_s = time.monotonic() - begun_s
        sys.stderr.write(f"\r{len(results)} of {len(mutants)} mutants, {survivors} survived, {elapsed_s:.0f} s ")
        sys.stderr.flush()
    sys.stderr.write(f"{sum(result.cpu_s for result in results):.0f} s of processors\n")
    places = {mutant.id: n for n, mutant in enumerate(mutants)}
    results.sort(key=lambda result: places[result.mutant.id])
    _kept(results, known)
    sys.stdout.write(f"{_told(results, known, time.monotonic() - begun_s)}\n")
    return 1 if survivors or wrongly_listed(results, known) else 0


if __name__ == "__main__":
    sys.exit(main())
