"""Makes the extensions of a tree: python -m native.compile TREE WORK [--codec-only].

TREE has the packages. WORK is a folder for the products; WORK/built gets the extensions. The
compiler needs a separate process, because it works in the current folder, and ends the process if a
type is wrong. Unchanged modules are not compiled again.
"""

import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, NamedTuple

from native.cached_globals import HEADER, cache_globals
from native.codec_text import make_codec_text
from native.modules import CODEC, EVENT_COLUMN_PARTS, EVENT_COLUMNS, FAST_REPLACE, PLAIN_MODULES, ROOMS, rule_modules
from native.tree import SHARED, find_built

_CONFIG = """[mypy]
strict = true
plugins = pydantic.mypy
explicit_package_bases = true
namespace_packages = true
ignore_missing_imports = true
disallow_subclassing_any = false
mypy_path = {mypy_path}
cache_dir = {cache}
"""


def main(tree: Path, work: Path, *, codec_only: bool = False) -> None:
    """Compile. Raises `SystemExit` if a type is wrong, or the C compiler fails."""
    from setuptools import setup

    work.mkdir(parents=True, exist_ok=True)
    _begin_anew_with_other_tools(work)
    extensions = [] if codec_only else _rule_extensions(tree, work)
    os.chdir(work)  # setuptools would read a project's file
    _write_if_new(work / "codec.pyx", _codec_text(tree))
    _write_if_new(work / "fast_replace.pyx", Path(__file__).with_name("fast_replace.pyx").read_text("utf-8"))
    parts = (path.read_text("utf-8") for path in (Path(__file__).parents[1] / part for part in EVENT_COLUMN_PARTS))
    _write_if_new(work / "event_columns.pyx", "\n".join(parts))
    extensions += _cython_extensions(
        {CODEC: "codec.pyx", FAST_REPLACE: "fast_replace.pyx", EVENT_COLUMNS: "event_columns.pyx"}
    )
    if not codec_only:
        extensions += _cython_extensions(_copy_plain_modules(tree))
    folders = ["--build-lib", str(work / "built"), "--build-temp", str(work / "objects"), "--parallel", "2"]
    setup(name="sessionary-native", packages=[], ext_modules=extensions, script_args=["build_ext", *folders])
    remove_others(work / "built", extensions)


def _begin_anew_with_other_tools(work: Path) -> None:
    """Remove what was built by another version of a tool, or with other options of the compiler."""
    tools = {name: version(name) for name in ("Cython", "mypy", "setuptools")}
    options = {name: os.environ.get(name) for name in ("CC", "CFLAGS", "LDFLAGS")}
    text = json.dumps({"python": sys.version, **tools, **options}, indent=1)
    mark = work / "built-with.json"
    if not mark.is_file() or mark.read_text("utf-8") != text:
        shutil.rmtree(work / "built", ignore_errors=True)
        mark.write_text(text, "utf-8")


def remove_others(built: Path, extensions: Iterable[Any]) -> None:
    """Remove what was built of modules that are gone."""
    wanted = {extension.name for extension in extensions}
    for path, place in find_built(built):
        if ".".join((*place.parts[:-1], place.name.partition(".")[0])) not in wanted:
            path.unlink()


def _rule_extensions(tree: Path, work: Path) -> list[Any]:
    """Return the extensions of the rules, whose C is written below `work`."""
    from mypyc.build import mypycify

    config = work / "mypy.ini"
    mypy_path = os.pathsep.join(str(tree / room) for room in ROOMS)
    config.write_text(_CONFIG.format(mypy_path=mypy_path, cache=work / "types"))
    os.chdir(tree)  # errors name files as they are given here
    sources = [str(path) for path in rule_modules(tree)]
    before = read_texts(work / "c")
    made: list[Any] = mypycify(
        ["--config-file", str(config), *sources],
        opt_level="2",
        debug_level="0",
        multi_file=True,
        group_name=SHARED.removesuffix("__mypyc"),
        target_dir=str(work / "c"),
    )
    _cache_globals(work / "c")
    keep_times(before)
    for extension in made:
        extension.depends.append(str(HEADER))
    return made


class _Text(NamedTuple):
    """The content of a file, and the time at which it was written."""

    text: str
    at_ns: int


def read_texts(folder: Path) -> dict[Path, _Text]:
    """Return text and time of each C file below a folder."""
    return {path: _Text(path.read_text("utf-8"), path.stat().st_mtime_ns) for path in folder.rglob("*.[ch]")}


def keep_times(before: Mapping[Path, _Text]) -> None:
    """Give files that have the same text again their former times.

    `_cache_globals` changes what mypyc wrote, so mypyc writes it again each time. Cython does if it
    was itself installed since, as in the environment of a wheel. The C compiler would begin again.
    """
    for path, (text, at_ns) in before.items():
        if path.is_file() and path.read_text("utf-8") == text:
            os.utime(path, ns=(at_ns, at_ns))


def _cache_globals(folder: Path) -> None:
    """Rewrite what mypyc wrote into `folder`. Raises `SystemExit` if its C has another form now."""
    found = 0
    for path in folder.glob("__native_*.c"):
        text, lookups = cache_globals(path.read_text("utf-8"))
        found += lookups
        if lookups:
            path.write_text(text, "utf-8")
    if not found:
        raise SystemExit("no look-up of a module's name was found in the C of mypyc")


def _codec_text(tree: Path) -> str:
    """Return the text of the readers and writers that the tree has as Python."""
    spec = spec_from_file_location("made_functions", tree / CODEC)
    assert spec is not None
    assert spec.loader is not None
    made = module_from_spec(spec)
    spec.loader.exec_module(made)
    return make_codec_text(made.DIGEST)


def _copy_plain_modules(tree: Path) -> dict[Path, str]:
    """Copy modules into the current folder, so that the C names no place of the tree."""
    for module in PLAIN_MODULES:
        _write_if_new(module, (tree / module).read_text("utf-8"))
    return {module: str(module) for module in PLAIN_MODULES}


def _write_if_new(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_file() or path.read_text("utf-8") != text:
        path.write_text(text, "utf-8")


def _cython_extensions(sources: Mapping[Path, str]) -> list[Any]:
    """Return the extensions of modules; the sources are files of the current folder."""
    from Cython.Build import cythonize
    from setuptools import Extension

    extensions = [
        Extension(".".join(module.with_suffix("").parts[1:]), [source], extra_compile_args=["-O2", "-g0"])
        for module, source in sources.items()
    ]
    # A module means what its Python means: its annotations say nothing to the compiler.
    directives = {"language_level": 3, "annotation_typing": False}
    options = {"build_dir": "c", "quiet": True, "compiler_directives": directives}
    before = read_texts(Path("c"))
    made: list[Any] = cythonize(extensions, **options)  # type: ignore[no-untyped-call]
    keep_times(before)
    return made


if __name__ == "__main__":
    main(*(Path(word).resolve() for word in sys.argv[1:3]), codec_only="--codec-only" in sys.argv[3:])
