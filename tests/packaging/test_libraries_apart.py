"""What failures mean with libraries that the tests' own environment does not have."""

import os
import subprocess
import sys
from pathlib import Path

from tests.packaging.wheel_rig import run_clean
from tests.style.project import ROOT

_LIBRARIES = (
    *("aiohttp==3.14.5", "anthropic==2.14.0", "botocore==1.44.8", "grpcio==1.85.3", "httpx==0.28.1", "openai==3.57.0"),
    *("requests==2.34.2", "tenacity==9.2.1"),
)
_NAMES = ("urllib", "urllib3", "requests", "httpx", "httpx async", "aiohttp", "botocore", "openai", "anthropic")
_FOLDER = ROOT / "tests" / "core" / "producers" / "context"


def test_failures_of_all_libraries_mean_what_became_of_their_calls(tmp_path: Path) -> None:
    run_clean(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    constraints = tmp_path / "constraints.txt"
    pinned = (ROOT / "constraints.txt").read_text("utf-8").splitlines(keepends=True)
    # botocore needs an older one than our own environment has.
    constraints.write_text("".join(line for line in pinned if not line.startswith("python-dateutil==")), "utf-8")
    wanted = (ROOT, "cryptography", "pytest", *_LIBRARIES)
    run_clean(python, "-m", "pip", "install", "--quiet", *wanted, cwd=tmp_path, constraints=constraints)
    files = (_FOLDER / "test_library_failures.py", _FOLDER / "failures_apart.py")
    options = ("-v", "-p", "no:cacheprovider", f"--confcutdir={_FOLDER}", "-o", "filterwarnings=default")
    done = subprocess.run(
        [python, "-m", "pytest", *options, *files],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))},
        capture_output=True,
        text=True,
        timeout=1_200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [name for name in _NAMES if f"its_request[{name}] PASSED" not in done.stdout] == []
