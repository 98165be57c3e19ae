"""Compile the core: python -m native [--tree FOLDER | --remove].

In place, or in a copy of the sources that is made below FOLDER. A line says what is missing.
"""

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path

from generation.modules import write_files
from native.modules import compiled_modules
from native.toolchain import find_missing_part
from native.tree import copy_sources, place_extensions, remove_extensions

ROOT = Path(__file__).parents[1]
_WORK = ROOT / "build" / "native"
_LINES_SHOWN = 20


def main(words: list[str] | None = None) -> int:
    """Build, or remove what was built; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m native", description="Compile the core.")
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--tree", type=Path, help="make a copy of the sources in this folder, and compile there")
    place.add_argument("--remove", action="store_true", help="remove the compiled core, so that the Python runs")
    options = parser.parse_args(words)
    if options.remove:
        remove_extensions(ROOT)
        return _tell("the Python core runs from now on")
    if missing := find_missing_part():
        return _tell(f"the core cannot be compiled: {missing}", 1)
    write_files(ROOT)
    tree: Path = ROOT
    if options.tree is not None:
        tree = options.tree.resolve()
        copy_sources(ROOT, tree)
    _tell(f"compiling {len(compiled_modules(tree))} modules (the first time: about three minutes)")
    begun_s = time.monotonic()
    log = _WORK / "log"
    if not _compile(tree, log):
        lines = "\n".join(log.read_text(errors="replace").splitlines()[-_LINES_SHOWN:])
        return _tell(f"{lines}\nthe core was not compiled; the whole output is in {log.relative_to(ROOT)}", 1)
    remove_extensions(tree)
    modules = place_extensions(_WORK / "built", tree)
    return _tell(f"compiled {modules} modules in {time.monotonic() - begun_s:.0f} s; make native-remove undoes it")


def _compile(tree: Path, log: Path) -> bool:
    log.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(_WORK / "built", ignore_errors=True)  # it may have a module that is gone
    with log.open("w") as output:
        done = subprocess.run(
            [sys.executable, "-m", "native.compile", str(tree), str(_WORK)],
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    return done.returncode == 0


def _tell(line: str, code: int = 0) -> int:
    sys.stderr.write(f"{line}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
