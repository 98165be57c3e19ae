"""Where the parts of a test run write their logs: `build/logs/run-<pid>/`, the last few runs are kept."""

import os
import shutil
from pathlib import Path

FOLDER_VARIABLE = "SESSIONARY_TEST_LOGS"
_ROOT = Path(__file__).parents[2] / "build" / "logs"
_RUNS_KEPT = 5


def start_run() -> Path:
    """Make this run's folder, name it to child processes, and forget all but the last runs."""
    _ROOT.mkdir(parents=True, exist_ok=True)
    former = sorted(_ROOT.glob("run-*"), key=lambda folder: folder.stat().st_mtime)
    for folder in former[:-_RUNS_KEPT]:
        if not _runs(int(folder.name.removeprefix("run-"))):
            shutil.rmtree(folder, ignore_errors=True)
    ours = _ROOT / f"run-{os.getpid()}"
    shutil.rmtree(ours, ignore_errors=True)
    ours.mkdir()
    os.environ[FOLDER_VARIABLE] = str(ours)
    return ours


def _runs(pid: int) -> bool:
    """Whether the process lives: a run beside ours still writes to its folder."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def log_folder() -> Path:
    """Return this run's folder; made by the run's first process."""
    named = os.environ.get(FOLDER_VARIABLE)
    return Path(named) if named else start_run()
