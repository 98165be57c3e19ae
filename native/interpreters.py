"""Finds the interpreters of this machine for which wheels can be built."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

VERSIONS: Final = ("3.11", "3.12", "3.13", "3.14")
_ANSWER_S = 30.0
# Prints the version, and whether there are headers and the usual lock of the interpreter.
_QUESTION = """
import sys, sysconfig
from pathlib import Path
headers = (Path(sysconfig.get_path("include")) / "Python.h").is_file()
locked = not sysconfig.get_config_var("Py_GIL_DISABLED")
print("{}.{}".format(*sys.version_info), headers, locked, sys.implementation.name)
"""


class Interpreter(NamedTuple):
    """An interpreter: its version, as `3.12`, and its program."""

    version: str
    program: Path


def find_interpreters(versions: tuple[str, ...] = VERSIONS) -> list[Interpreter]:
    """Return an interpreter of each version that there is, with headers: CPython as it usually is.

    It looks at the running one, at PATH, and at what pyenv has installed.
    """
    found = (_find_version(version) for version in versions)
    return [interpreter for interpreter in found if interpreter is not None]


def _find_version(version: str) -> Interpreter | None:
    return next((Interpreter(version, each) for each in _candidates(version) if _is_usable(each, version)), None)


def _candidates(version: str) -> Iterator[Path]:
    if version == running_version():
        yield Path(sys.executable)
    if (program := shutil.which(f"python{version}")) is not None:
        yield Path(program)
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}"), reverse=True)


def _is_usable(program: Path, version: str) -> bool:
    """Ask an interpreter itself: a program of its name may be a shim that leads nowhere."""
    try:
        done = subprocess.run(
            [program, "-c", _QUESTION], capture_output=True, text=True, timeout=_ANSWER_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and done.stdout.split() == [version, "True", "True", "cpython"]


def running_version() -> str:
    """Return the version of the interpreter that runs, as `3.12`."""
    return "{}.{}".format(*sys.version_info)
