"""Compile the core: python -m native [--tree FOLDER | --remove].

In place, or in a copy of the sources that is made below FOLDER. A line says what is missing.
`CFLAGS` in the environment is passed on to the C compiler; give such a build a work folder of its
own.
"""

import argparse
import sys
import time
from pathlib import Path

from generation.modules import write_files
from native.build import compile_tree, work_folder
from native.modules import CYTHON_MODULES, compiled_modules
from native.toolchain import find_missing_part
from native.tree import copy_sources, place_extensions, remove_extensions

ROOT = Path(__file__).parents[1]


def main(words: list[str] | None = None) -> int:
    """Build, or remove what was built; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m native", description="Compile the core.")
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--tree", type=Path, help="make a copy of the sources in this folder, and compile there")
    place.add_argument("--remove", action="store_true", help="remove the compiled core, so that the Python runs")
    parser.add_argument("--codec-only", action="store_true", help="compile readers and writers only, not the rules")
    parser.add_argument(
        "--work", type=Path, default=work_folder(ROOT), help="folder of what is made; default: one below build/native"
    )
    options = parser.parse_args(words)
    if options.remove:
        remove_extensions(ROOT)
        return _report("the Python core runs from now on")
    if missing := find_missing_part():
        return _report(f"the core cannot be compiled: {missing}", 1)
    write_files(ROOT)
    tree: Path = ROOT
    if options.tree is not None:
        tree = options.tree.resolve()
        copy_sources(ROOT, tree)
    modules = list(CYTHON_MODULES) if options.codec_only else compiled_modules(tree)
    _report(f"compiling {len(modules)} modules (the first time: about three minutes)")
    begun_s, work = time.monotonic(), options.work.resolve()
    if fault := compile_tree(ROOT, tree, work, codec_only=options.codec_only):
        return _report(fault, 1)
    remove_extensions(tree)
    placed = place_extensions(work / "built", tree)
    return _report(f"compiled {placed} modules in {time.monotonic() - begun_s:.0f} s; make native-remove undoes it")


def _report(line: str, code: int = 0) -> int:
    sys.stderr.write(f"{line}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
