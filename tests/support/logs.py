"""The logs of a test run: `build/logs/run-<pid>/`; the last runs are kept."""

import os
import shutil
from pathlib import Path

FOLDER_VARIABLE = "TESTS_LOGS"
_ROOT = Path(__file__).parents[2] / "build" / "logs"
_RUNS_KEPT = 5


def start_run() -> Path:
    """Create this run's folder, export it to child processes, and delete old runs."""
    _ROOT.mkdir(parents=True, exist_ok=True)
    former = sorted(_ROOT.glob("run-*"), key=lambda folder: folder.stat().st_mtime)
    for folder in former[:-_RUNS_KEPT]:
        if not _is_running(int(folder.name.removeprefix("run-"))):
            shutil.rmtree(folder, ignore_errors=True)
    ours = _ROOT / f"run-{os.getpid()}"
    shutil.rmtree(ours, ignore_errors=True)
    ours.mkdir()
    os.environ[FOLDER_VARIABLE] = str(ours)
    return ours


def _is_running(pid: int) -> bool:
    """Return True if the process runs: a parallel test run still uses its folder."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def log_folder() -> Path:
    """Return this run's folder; the run's first process creates it."""
    named = os.environ.get(FOLDER_VARIABLE)
    return Path(named) if named else start_run()
