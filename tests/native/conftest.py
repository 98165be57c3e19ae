"""A compiled copy of the core, which the tests of this folder share."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from native.modules import ROOMS, compiled_modules
from native.tree import find_extensions
from tests.style.project import ROOT
from tests.support.native_builds import build_lock, folder_of_run

TREE = ROOT / "build" / "native" / "tree"


@pytest.fixture(scope="session")
def native_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PYTHONPATH with which a compiled copy of the core is found before the Python.

    The first worker of a run that asks builds the copy.
    """
    done = folder_of_run(request.config, tmp_path_factory) / "compiled-core"
    with build_lock():
        if not done.exists():
            _build_copy()
            done.touch()
    return join_rooms(TREE)


def _build_copy() -> None:
    built = run_program([sys.executable, "-m", "native", "--tree", str(TREE)], {})
    assert built.returncode == 0, built.stderr
    modules = len(compiled_modules(ROOT))
    assert f"compiled {modules} modules" in built.stderr
    assert len(list(find_extensions(TREE))) == modules + 1


def join_rooms(tree: Path) -> str:
    """Return a PYTHONPATH of the rooms of a tree."""
    return os.pathsep.join(str(tree / room) for room in ROOMS)


def run_program(words: list[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a program from the project's folder to its end, and return what it wrote."""
    return subprocess.run(
        words, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
