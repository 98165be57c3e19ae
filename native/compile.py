"""Makes the extensions of a tree: python -m native.compile TREE WORK [--codec-only].

TREE has the rooms. WORK is a folder for what is made; extensions come to lie in WORK/built. A
process of its own, because the compiler works in the current folder, and ends the process if a type
is wrong. What did not change is not compiled again.
"""

import os
import sys
from collections.abc import Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from native.cached_globals import cache_globals
from native.codec_text import make_codec_text
from native.modules import CODEC, EVENT_COLUMN_PARTS, EVENT_COLUMNS, FAST_REPLACE, ROOMS, plain_modules, rule_modules
from native.tree import SHARED

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
        extensions += _cython_extensions({module: str(tree / module) for module in plain_modules(tree)})
    folders = ["--build-lib", str(work / "built"), "--build-temp", str(work / "objects"), "--parallel", "2"]
    setup(name="sessionary-native", packages=[], ext_modules=extensions, script_args=["build_ext", *folders])


def _rule_extensions(tree: Path, work: Path) -> list[Any]:
    """Return the extensions of the rules, whose C is written below `work`."""
    from mypyc.build import mypycify

    config = work / "mypy.ini"
    mypy_path = os.pathsep.join(str(tree / room) for room in ROOMS)
    config.write_text(_CONFIG.format(mypy_path=mypy_path, cache=work / "types"))
    os.chdir(tree)  # errors name files as they are given here
    sources = [str(path) for path in rule_modules(tree)]
    made: list[Any] = mypycify(
        ["--config-file", str(config), *sources],
        opt_level="2",
        debug_level="0",
        multi_file=True,
        group_name=SHARED.removesuffix("__mypyc"),
        target_dir=str(work / "c"),
    )
    _cache_globals(work / "c")
    return made


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


def _write_if_new(path: Path, text: str) -> None:
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
    made: list[Any] = cythonize(extensions, **options)  # type: ignore[no-untyped-call]
    return made


if __name__ == "__main__":
    main(*(Path(word).resolve() for word in sys.argv[1:3]), codec_only="--codec-only" in sys.argv[3:])
