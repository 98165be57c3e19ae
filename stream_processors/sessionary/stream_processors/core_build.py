"""Which build of the rules and the codec this process runs: the compiled one, or the Python."""

import sysconfig
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Literal

from sessionary.schemas.codec.compiled_helpers import generated_functions
from sessionary.stream_processors.core import uncommitted_batch

CoreBuild = Literal["native", "python"]


def core_build() -> CoreBuild:
    """Return the build that was imported. Both do the same; the compiled one is faster.

    It is native if the rules, and the readers and writers of records, are.
    """
    files = uncommitted_batch.__file__, f"{getattr(generated_functions(), '__file__', '')}"
    return "native" if all(file.endswith(tuple(EXTENSION_SUFFIXES)) for file in files) else "python"


# How the interpreter that runs this process was built, which changes how fast everything runs.


def interpreter_build() -> str:
    """Return with which of the two optimisations advised by CPython the interpreter was built.

    PGO is profile-guided optimisation, LTO optimisation while linking. Debian and Ubuntu build
    with both, but do not pass them to `configure`: their interpreters are known by an install
    scheme named `deb_system`.
    """
    if "deb_system" in sysconfig.get_scheme_names():
        return "PGO and LTO"
    reported = f"{sysconfig.get_config_var('CONFIG_ARGS') or ''}"
    known = {"--enable-optimizations": "PGO", "--with-lto": "LTO"}
    return " and ".join(name for option, name in known.items() if option in reported) or "neither PGO nor LTO"
