"""Runs pytest over a short file of tests, as the tests of plugins do."""

import subprocess
import sys
from pathlib import Path

from tests.style.project import ROOT


def run_pytest(folder: Path, *options: str, workers: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the tests of a folder, with no settings but those of its `conftest.py`."""
    alone = ["-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(folder), f"--numprocesses={workers}"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *alone, *options, str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
