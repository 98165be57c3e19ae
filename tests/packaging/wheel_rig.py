"""Wheels in fresh environments: what an installed one says of its core, and what it writes."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.workload.events import Workload, agent_runs
from tests.style.project import ROOT

EVENTS, SESSIONS = 5_000, 200
_TIMEOUT_S = 1_800
_PROGRAM = ROOT / "tests" / "packaging" / "core_of_wheel.py"


def run_clean(*argv: str | Path, cwd: Path, constraints: Path = ROOT / "constraints.txt") -> str:
    """Run a program with nothing of the checkout on its path; return what it prints."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SESSIONARY_", "COV_"))}
    # The second is for the build's own environment, where pip 26 no longer reads the first.
    env["PIP_CONSTRAINT"] = env["PIP_BUILD_CONSTRAINT"] = str(constraints)
    done = subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    assert done.returncode == 0, f"{argv}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def write_log(folder: Path) -> Path:
    """Write the first events of the package's sample of agent runs into a file; return it."""
    log = folder / "log"
    workload = Workload(agent_runs(), concurrent=SESSIONS)
    log.write_bytes(pickle.dumps([(event.key, event.value) for event in workload.event_stream(EVENTS)]))
    return log


def ask_wheel(python: Path, wheel: Path, build: str, log: Path, folder: Path) -> dict[str, Any]:
    """Install a wheel into an environment of its own below `folder`; return what it says.

    It first has the packages that an agent installs only; what it loads of them is in `loaded`.
    """
    folder.mkdir()
    # With the pip that runs: that of another interpreter may be old.
    run_clean(python, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    installed = folder / "venv" / "bin" / "python"
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", installed, "--disable-pip-version-check"]
    install = [*pip, "install", "--quiet"]
    run_clean(*install, wheel, cwd=folder)
    bare: dict[str, Any] = json.loads(run_clean(installed, "-W", "error", _PROGRAM, build, cwd=folder))
    run_clean(*install, f"{wheel}[metrics]", cwd=folder)
    whole: dict[str, Any] = json.loads(run_clean(installed, "-W", "error", _PROGRAM, build, log, cwd=folder))
    return {**whole, "loaded": bare["loaded"]}
