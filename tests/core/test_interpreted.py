"""Tests that only the Python core can pass are left out and counted where the core is compiled."""

from pathlib import Path

import pytest

from tests.support.interpreted import MARK, Interpreted
from tests.support.pytest_runs import run_pytest

CONFTEST = """
from tests.support.interpreted import Interpreted

def pytest_configure(config):
    config.addinivalue_line("markers", "interpreted: only the Python core can pass it")
    config.pluginmanager.register(Interpreted({core!r}))
"""
TESTS = """
import pytest

@pytest.mark.interpreted
@pytest.mark.parametrize("n", [1, 2])
def test_only_by_python(n): ...

@pytest.mark.interpreted
def test_not_chosen(): ...

def test_by_both(): ...
"""


def run_tests(folder: Path, core: str, workers: int) -> list[str]:
    """Run a short file of tests as if this were the core; return the lines of pytest's answer."""
    (folder / "conftest.py").write_text(CONFTEST.format(core=core))
    (folder / "test_both.py").write_text(TESTS)
    done = run_pytest(folder, "-k", "not not_chosen", workers=workers)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("workers", [0, 1])
def test_with_a_compiled_core_they_are_left_out_and_a_line_says_how_many_and_why(workers: int, tmp_path: Path) -> None:
    lines = run_tests(tmp_path, "native", workers)
    assert "core: native" in lines
    assert "1 passed" in lines[-1]
    assert "skipped" not in lines[-1]
    (reported,) = (line for line in lines if "were left out" in line)
    assert reported.startswith(f"2 tests marked {MARK} were left out: they change what is fixed in the compiled core")


def test_with_the_python_core_all_of_them_run(tmp_path: Path) -> None:
    lines = run_tests(tmp_path, "python", 0)
    assert "core: python" in lines
    assert "3 passed" in lines[-1]
    assert [line for line in lines if "left out" in line] == []


def test_this_run_asks_the_core_that_it_has_loaded(request: pytest.FixtureRequest) -> None:
    plugins = request.config.pluginmanager.get_plugins()
    assert [plugin for plugin in plugins if isinstance(plugin, Interpreted)] != []
