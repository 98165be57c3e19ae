"""The needs of a build beside Python packages: a C compiler, and the interpreter's headers."""

import shlex
import shutil
import sysconfig
from importlib.util import find_spec
from pathlib import Path


def find_missing_part() -> str | None:
    """Return what a build lacks here, and how to get it, in a line; None if it lacks nothing."""
    words = shlex.split(f"{sysconfig.get_config_var('CC') or 'cc'}")
    compiler = words[0] if words else "cc"
    if shutil.which(compiler) is None:
        return f"there is no C compiler {compiler}; on Debian: apt-get install gcc libc6-dev"
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").is_file():
        return f"{headers} has no Python.h; on Debian: apt-get install python3-dev"
    packages = [name for name in ("Cython", "mypyc", "setuptools") if find_spec(name) is None]
    if packages:
        return f"there is no {' and no '.join(packages)}: make install"
    return None
