"""The example of tests with fake time runs as a user runs it."""

import os
import re
import subprocess
import sys

from tests.style.project import ROOT

FOLDER = "examples/tests_with_fake_time"


def test_the_examples_tests_pass_without_waiting() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "sessionary.pytest_plugin", "-p", "no:cacheprovider", "-q", FOLDER],
        cwd=ROOT,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout
    tests = len(re.findall(r"^def test_", (ROOT / FOLDER / "test_invoice_agent.py").read_text(), re.M))
    assert f"{tests} passed" in done.stdout
