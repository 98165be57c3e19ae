"""The project for the style tests: its modules, tracked files and metadata."""

import ast
import subprocess
import tomllib
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from generation.modules import FOLDER
from tests.style import rules

ROOT = Path(__file__).parents[2]
PACKAGES = ("schemas", "producers", "stream_processors", "sinks", "infra")


class Module(NamedTuple):
    """A Python file."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        """The path below the project, for messages."""
        return self.path.relative_to(ROOT).as_posix()

    @property
    def package(self) -> str:
        """The top-level folder."""
        return self.path.relative_to(ROOT).parts[0]

    @property
    def dotted(self) -> str:
        """The name by which the product imports it; of an `__init__` that of its package."""
        return dotted_name(self.path)


def dotted_name(path: Path) -> str:
    """Return the name by which the product imports a module."""
    parts = path.relative_to(ROOT).with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def complaints(modules: Iterable[Module], check: Callable[[Module], Iterable[str]]) -> list[str]:
    """Return what a rule says of any of the modules, with their names."""
    return [f"{module.name}: {complaint}" for module in modules for complaint in check(module)]


def _modules(folder: Path) -> Iterator[Module]:
    for path in sorted(folder.rglob("*.py")):
        if path.parent == ROOT / FOLDER:
            continue  # made from the schemas
        text = path.read_text("utf-8")
        yield Module(path, text, ast.parse(text))


@cache
def product_modules() -> list[Module]:
    """Return every module of the product."""
    return [module for package in PACKAGES for module in _modules(ROOT / package)]


@cache
def all_modules() -> list[Module]:
    """Return every module, including examples, tests and benchmarks."""
    rest = (ROOT / name for name in ("examples", "tests", "benchmarks", "docs") if (ROOT / name).is_dir())
    return product_modules() + [module for folder in rest for module in _modules(folder)]


@cache
def product_imports() -> dict[str, list[str]]:
    """Return which modules of the product each of them imports, `__init__` modules too."""
    known = {module.dotted for module in product_modules()}
    return {module.dotted: list(rules.imported_modules(module.tree, known)) for module in product_modules()}


def module_named(name: str) -> Module | None:
    """Return a module by package and path below it, as `schemas/ids.py`."""
    package, _, rest = name.partition("/")
    path = ROOT / package / "sessionary" / package / rest
    return next((module for module in product_modules() if module.path == path), None)


@cache
def tracked_files() -> list[Path]:
    """Return tracked files and new ones that git does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return [path for line in listed.stdout.splitlines() if (path := ROOT / line).is_file()]


@cache
def pyproject() -> dict[str, Any]:
    """Return the project's metadata."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
