"""The example of tests with fake time, and those in its page, run as a user runs them."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.style.project import ROOT

FOLDER = "examples/tests_with_fake_time"


def run_pytest(folder: Path | str) -> str:
    """Return what pytest prints, with the package's plugin and no other."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "sessionary.pytest_plugin", "-p", "no:cacheprovider", "-q", folder],
        cwd=ROOT,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_examples_tests_pass_without_waiting() -> None:
    tests = len(re.findall(r"^def test_", (ROOT / FOLDER / "test_invoice_agent.py").read_text("utf-8"), re.M))
    assert f"{tests} passed" in run_pytest(FOLDER)


def test_the_blocks_of_the_page_run(tmp_path: Path) -> None:
    """What is no test runs while pytest collects."""
    blocks = re.findall(
        r"^```python\n(.*?)^```$", (ROOT / "docs" / "guides" / "testing.md").read_text("utf-8"), re.M | re.S
    )
    for number, block in enumerate(blocks):
        is_test = "def test_" in block
        text = block if is_test else f"{block}\n\ndef test_that_it_ran():\n    pass\n"
        (tmp_path / f"test_block_{number}.py").write_text(text)
    assert len(blocks) == 6
    assert "6 passed" in run_pytest(tmp_path)


def test_the_page_names_what_the_memory_has() -> None:
    from sessionary.producers.testing import InMemoryTransport

    text = (ROOT / "docs" / "guides" / "testing.md").read_text("utf-8")
    calls = set(re.findall(r"memory\.(\w+)", text))
    assert calls >= {"advance", "rejections", "cleanups", "verdicts", "audit", "events"}
    assert [name for name in calls if not hasattr(InMemoryTransport(), name)] == []
