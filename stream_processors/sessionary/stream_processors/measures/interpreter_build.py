"""How the interpreter that runs this process was built, which changes how fast everything runs."""

import sysconfig
from typing import Literal

InterpreterBuild = Literal["PGO and LTO", "PGO", "LTO", "neither PGO nor LTO"]


def interpreter_build() -> InterpreterBuild:
    """Return with which of the two optimisations that CPython's documents advise it was built.

    PGO is profile-guided optimisation, LTO optimisation while linking. Debian and Ubuntu build
    with both, but do not pass them to `configure`: their interpreters are known by an install
    scheme of their own, `deb_system`.
    """
    if "deb_system" in sysconfig.get_scheme_names():
        return "PGO and LTO"
    told = f"{sysconfig.get_config_var('CONFIG_ARGS') or ''}"
    match "--enable-optimizations" in told, "--with-lto" in told:
        case True, True:
            return "PGO and LTO"
        case True, False:
            return "PGO"
        case False, True:
            return "LTO"
    return "neither PGO nor LTO"


__all__ = ["InterpreterBuild", "interpreter_build"]
