"""Build the wheels of this machine: python -m native.wheels [--folder dist] [--python 3.12 …].

The pure wheel, and for each interpreter that is found a wheel with the compiled core. Each is built
as `pip wheel` builds it for anybody, in an environment of its own.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from native.interpreters import VERSIONS, Interpreter, find_interpreters, running_version

ROOT = Path(__file__).parents[1]


def main(words: list[str] | None = None) -> int:
    """Build; return the exit code: 1 if a wheel could not be built, or a version was not found."""
    parser = argparse.ArgumentParser(prog="python -m native.wheels", description="Build the wheels of this machine.")
    parser.add_argument("--folder", type=Path, default=ROOT / "dist", help="folder for the wheels; default: dist")
    parser.add_argument(
        "--python", action="append", choices=VERSIONS, help="build for this version only, and fail if it is missing"
    )
    options = parser.parse_args(words)
    wanted = tuple(options.python or VERSIONS)
    interpreters = find_interpreters(wanted)
    missing = sorted(set(wanted) - {each.version for each in interpreters})
    if missing:
        _report(f"no CPython {', '.join(missing)} with headers was found: no wheel is built for it")
    pure = Interpreter(running_version(), Path(sys.executable))
    faults = [_report_wheel(pure, options.folder, is_native=False)]
    faults += [_report_wheel(each, options.folder, is_native=True) for each in interpreters]
    return 1 if any(faults) or (options.python and missing) else 0


def build_wheel(python: Path, folder: Path, *, is_native: bool) -> Path:
    """Build a wheel with an interpreter; return it.

    Raises `RuntimeError` with the builder's output.
    """
    folder.mkdir(parents=True, exist_ok=True)
    before = _wheels_in(folder)
    done = subprocess.run(_command(python, folder), env=_environment(is_native), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{done.stdout[-4_000:]}{done.stderr[-4_000:]}")
    (made,) = (path for path, at_ns in _wheels_in(folder).items() if before.get(path) != at_ns)
    return made


def _report_wheel(interpreter: Interpreter, folder: Path, *, is_native: bool) -> bool:
    """Build a wheel, and say so; return whether it failed."""
    kind = f"for CPython {interpreter.version}, with the compiled core" if is_native else "pure"
    _report(f"building a wheel, {kind} (with {interpreter.program})")
    begun_s = time.monotonic()
    try:
        made = build_wheel(interpreter.program, folder, is_native=is_native)
    except RuntimeError as error:
        _report(f"{error}\nthe wheel was not built: {kind}")
        return True
    _report(f"{made.name}: {made.stat().st_size / 1e6:.1f} MB in {time.monotonic() - begun_s:.0f} s")
    return False


def _command(python: Path, folder: Path) -> Sequence[str | Path]:
    # The pip that runs builds for another interpreter too: that one may have an old pip, or none.
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    return [*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT]


def _environment(is_native: bool) -> dict[str, str]:
    pinned = str(ROOT / "constraints.txt")
    # The second is for the build's own environment, where pip 26 no longer reads the first.
    constraints = {"PIP_CONSTRAINT": pinned, "PIP_BUILD_CONSTRAINT": pinned}
    return {**os.environ, **constraints, "NATIVE_WHEEL": "1" if is_native else "0"}


def _wheels_in(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.glob("*.whl")}


def _report(line: str) -> None:
    sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
