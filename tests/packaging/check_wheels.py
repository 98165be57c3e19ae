"""Try each wheel of a folder where it is installed: python -m tests.packaging.check_wheels dist.

Each has an environment of its own; the pure wheel has one for every interpreter that is found. All
must run the core that they should, and their folds of the package's sample must write the same
bytes. The exit code is 1 if one does not.
"""

import sys
import tempfile
from pathlib import Path

from native.interpreters import VERSIONS, find_interpreters
from tests.packaging.wheel_rig import EVENTS, ask_wheel, write_log


def main(folder: str) -> int:
    """Check; return the exit code."""
    wheels = sorted(Path(folder).resolve().glob("sessionary-*.whl"))
    (pure,) = (wheel for wheel in wheels if wheel.name.endswith("-none-any.whl"))
    digests: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory(prefix="sessionary-wheels-") as name:
        log = write_log(Path(name))
        for version, python in find_interpreters(VERSIONS):
            tag = f"-cp{version.replace('.', '')}-"
            native = [wheel for wheel in wheels if tag in wheel.name]
            for wheel, build in [(pure, "python"), *((each, "native") for each in native)]:
                said = ask_wheel(python, wheel, build, log, Path(name, f"{build}-{version}"))
                digests.setdefault(said["digest"], []).append(f"{build} {version}")
                sys.stdout.write(
                    f"{wheel.name}, CPython {said['python']}: core {said['core']}, "
                    f"{said['records']:,} records of {EVENTS:,} events, {said['digest'][:16]}\n"
                )
    if len(digests) != 1:
        sys.stdout.write(f"the folds differ: {digests}\n")
    return 0 if len(digests) == 1 else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
