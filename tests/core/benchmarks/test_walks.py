"""The count of files on the way to a verdict runs, and counts."""

import sys
from collections.abc import Callable

import pytest

from benchmarks import walks

pytestmark = pytest.mark.interpreted  # compiled functions have no profile


@pytest.mark.parametrize("walk", [walks.walk_activity, walks.walk_tool_call])
def test_a_walk_counts_files_of_client_and_judge(walk: Callable[[], walks.Walk]) -> None:
    found = walk()
    assert 10 < len(found.files) <= len(found.calls) <= found.calls.total()
    assert {name.partition("/")[0] for name in found.files} == {"producers", "schemas", "stream_processors"}
    assert any(name.startswith("stream_processors/core/session/") for name in found.files)
    assert not any("generated" in name for name in found.files)


def test_only_the_product_is_counted_and_a_profiler_is_kept() -> None:
    before = sys.getprofile()
    assert walks.count_calls(lambda: sorted([2, 1], key=lambda number: number)).total() == 0
    assert sys.getprofile() is before


def test_the_command_prints_both_walks(capsys: pytest.CaptureFixture[str]) -> None:
    assert walks.main(["--files"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("activity ")
    assert any(line.startswith("tool call ") for line in lines)
    assert any(line.startswith("    stream_processors/core/") for line in lines)
