"""Where extensions lie in a tree of sources: each beside its module, and one that all share."""

import shutil
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Final

from native.modules import CYTHON_MODULES, ROOMS

# The extension that has all the code; those beside the modules are doors to it.
SHARED: Final = "sessionary_core__mypyc"
_NAMESPACE: Final = "sessionary"
_SUFFIX: Final = EXTENSION_SUFFIXES[0]
_ROOT: Final = Path(__file__).parents[1]


def copy_sources(root: Path, tree: Path) -> None:
    """Make `tree` a copy of the rooms' sources, without extensions."""
    shutil.rmtree(tree, ignore_errors=True)
    for room in ROOMS:
        shutil.copytree(root / room, tree / room, ignore=shutil.ignore_patterns("*.so", "*.pyd", "__pycache__"))


def find_extensions(tree: Path) -> Iterator[Path]:
    """Yield the extensions that lie in a tree."""
    for room in ROOMS:
        yield from (tree / room).rglob(f"*{_SUFFIX}")


def remove_extensions(tree: Path) -> None:
    """Remove all extensions from a tree, so that its Python runs."""
    for path in list(find_extensions(tree)):
        path.unlink()


def find_built(built: Path) -> Iterator[tuple[Path, Path]]:
    """Yield what was built, and where it lies below a folder of installed packages."""
    yield from ((path, path.relative_to(built)) for path in sorted(built.rglob(f"*{_SUFFIX}")))


def place_extensions(built: Path, tree: Path) -> int:
    """Copy what was built into a tree; return how many modules it has extensions of."""
    modules = 0
    for path, place in find_built(built):
        is_module = place.parts[0] == _NAMESPACE
        modules += is_module
        room = place.parts[1] if is_module else "schemas"  # the room that every role has
        shutil.copy(path, tree / room / place)  # with the time of now: it may have been built before
    return modules


def find_stale_modules(tree: Path) -> list[Path]:
    """Return the sources that changed after their extensions were built, relative to `tree`."""
    stale = []
    for extension in find_extensions(tree):
        source = extension.with_name(extension.name.removesuffix(_SUFFIX) + ".py")
        if source.name.removesuffix(".py") == SHARED:
            continue
        module = source.relative_to(tree)
        sources = [source, *(_ROOT / other for other in CYTHON_MODULES.get(module, ()))]
        if any(not path.is_file() or path.stat().st_mtime > extension.stat().st_mtime for path in sources):
            stale.append(module)
    return sorted(stale)
