"""Makes the extensions of a tree: python -m native.compile TREE WORK.

TREE has the rooms. WORK is a folder for what is made; extensions come to lie in WORK/built. A
process of its own, because the compiler works in the current folder, and ends the process if a type
is wrong. What did not change is not compiled again.
"""

import os
import sys
from pathlib import Path

from native.modules import ROOMS, compiled_modules
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


def main(tree: Path, work: Path) -> None:
    """Compile. Raises `SystemExit` if a type is wrong, or the C compiler fails."""
    from mypyc.build import mypycify
    from setuptools import setup

    work.mkdir(parents=True, exist_ok=True)
    config = work / "mypy.ini"
    mypy_path = os.pathsep.join(str(tree / room) for room in ROOMS)
    config.write_text(_CONFIG.format(mypy_path=mypy_path, cache=work / "types"))
    os.chdir(tree)  # errors name files as they are given here
    sources = [str(path) for path in compiled_modules(tree)]
    extensions = mypycify(
        ["--config-file", str(config), *sources],
        opt_level="2",
        debug_level="0",
        multi_file=True,
        group_name=SHARED.removesuffix("__mypyc"),
        target_dir=str(work / "c"),
    )
    os.chdir(work)  # setuptools would read a project's file
    folders = ["--build-lib", str(work / "built"), "--build-temp", str(work / "objects")]
    setup(name="sessionary-native", packages=[], ext_modules=extensions, script_args=["build_ext", *folders])


if __name__ == "__main__":
    main(*(Path(word).resolve() for word in sys.argv[1:3]))
