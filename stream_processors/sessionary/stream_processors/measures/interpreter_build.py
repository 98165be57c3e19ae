"""How the interpreter that runs this process was built, which changes how fast everything runs."""

import sysconfig


def interpreter_build() -> str:
    """Return with which of the two optimisations that CPython's documents advise it was built.

    PGO is profile-guided optimisation, LTO optimisation while linking. Debian and Ubuntu build
    with both, but do not pass them to `configure`: their interpreters are known by an install
    scheme of their own, `deb_system`.
    """
    if "deb_system" in sysconfig.get_scheme_names():
        return "PGO and LTO"
    told = f"{sysconfig.get_config_var('CONFIG_ARGS') or ''}"
    known = {"--enable-optimizations": "PGO", "--with-lto": "LTO"}
    return " and ".join(name for option, name in known.items() if option in told) or "neither PGO nor LTO"
