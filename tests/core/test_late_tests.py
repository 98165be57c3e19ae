"""A test that would begin too late is skipped with a reason; what has begun goes on. Which files of
the integration come first can be chosen.
"""

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.late_tests import OPTION, LateTests
from tests.support.pytest_runs import run_pytest

CONFTEST = """
from tests.support.late_tests import LateTests

def pytest_configure(config):
    config.pluginmanager.register(LateTests({minutes}))
"""
TESTS = """
import time, pytest

@pytest.fixture
def costly():
    raise RuntimeError("a late test sets nothing up")

def test_first():
    time.sleep(1.0)

def test_second(costly): ...
"""


def run_tests(folder: Path, minutes: float, workers: int) -> str:
    """Run two tests of which the first one takes a second; return pytest's answer."""
    (folder / "conftest.py").write_text(CONFTEST.format(minutes=minutes))
    (folder / "test_two.py").write_text(TESTS)
    return run_pytest(folder, "-rs", workers=workers).stdout


@pytest.mark.parametrize("workers", [0, 1])
def test_a_test_that_would_begin_too_late_is_skipped_with_a_reason(workers: int, tmp_path: Path) -> None:
    said = run_tests(tmp_path, 1 / 120, workers)
    assert f"test_two.py: too late on a slow machine, no test begins after 0.00833333 min ({OPTION})" in said
    # The first one may be too late too, on a busy machine.
    assert "1 passed, 1 skipped" in said.splitlines()[-1] or "2 skipped" in said.splitlines()[-1]


def test_what_begins_in_time_runs(tmp_path: Path) -> None:
    said = run_tests(tmp_path, 600, 0)
    assert "1 passed, 1 error" in said.splitlines()[-1]


class Item(NamedTuple):
    nodeid: str
    path: Path


def items_of(*nodeids: str) -> list[Item]:
    return [Item(f"tests/{nodeid}", Path(nodeid.partition("::")[0])) for nodeid in nodeids]


@pytest.mark.parametrize(
    ("first_file", "order"),
    [
        (0, ["a::1", "a::2", "b::1", "c::1"]),
        (1, ["b::1", "c::1", "a::1", "a::2"]),
        (5, ["c::1", "a::1", "a::2", "b::1"]),
    ],
)
def test_another_file_of_the_integration_may_be_the_first(first_file: int, order: list[str]) -> None:
    own = items_of(*(f"integration/{name}" for name in ("a::1", "a::2", "b::1", "c::1")))
    before, after = items_of("chaos/z::1", "core/y::1")
    items: list[Any] = [before, *own, after]
    LateTests(1, first_file).pytest_collection_modifyitems(items)
    assert [item.nodeid for item in items] == [
        before.nodeid,
        *(f"tests/integration/{name}" for name in order),
        after.nodeid,
    ]


def test_without_any_file_of_the_integration_the_order_stays() -> None:
    items: list[Any] = [*items_of("core/y::1", "core/x::1")]
    LateTests(1, 7).pytest_collection_modifyitems(items)
    assert [item.nodeid for item in items] == ["tests/core/y::1", "tests/core/x::1"]
