"""Compiles in a process of its own, and keeps in a log what the compilers say."""

import os
import subprocess
import sys
from pathlib import Path

from native.modules import ROOMS
from native.toolchain import find_missing_part
from native.tree import find_built

_LINES_SHOWN = 20
# PYTHONPATH would not do: the environment in which pip builds drops what the running one has too.
_START = """
import os, runpy, sys
sys.path[:0] = sys.argv.pop(1).split(os.pathsep)
runpy.run_module("native.compile", run_name="__main__")
"""


def compile_tree(root: Path, tree: Path, work: Path, *, codec_only: bool = False) -> str:
    """Compile the modules of a tree into `work`/built; return what went wrong, or ''.

    Args:
        root: The project, which has the compiler's program.
        tree: A folder that has the rooms; the project itself, or a copy of it.
        work: What is made lies here; what did not change is not compiled again. One interpreter has
            a folder of its own. Only one build at a time may use it.
        codec_only: Leave out the rules, which take most of the time.
    """
    work.mkdir(parents=True, exist_ok=True)
    log = work / "log"
    path = os.pathsep.join(map(str, (root, *(root / room for room in ROOMS))))
    options = ["--codec-only"] if codec_only else []
    with log.open("w") as output:
        done = subprocess.run(
            [sys.executable, "-c", _START, path, str(tree), str(work), *options],
            cwd=root,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode == 0:
        return ""
    lines = "\n".join(log.read_text(errors="replace").splitlines()[-_LINES_SHOWN:])
    return f"{lines}\nthe core was not compiled; the whole output is in {log}"


def work_folder(root: Path) -> Path:
    """Return where a build by the running interpreter keeps what it makes, for the next one."""
    return root / "build" / "native" / str(sys.implementation.cache_tag)


def compile_for_wheel(root: Path) -> dict[str, str]:
    """Compile the project for the interpreter that runs; return extensions and places in the wheel.

    Raises `SystemExit`, with a line that says what is missing or wrong.
    """
    if missing := find_missing_part():
        raise SystemExit(f"NATIVE_WHEEL=1, but the core cannot be compiled: {missing}")
    work = work_folder(root)
    if fault := compile_tree(root, root, work):
        raise SystemExit(fault)
    return {str(path): place.as_posix() for path, place in find_built(work / "built")}
