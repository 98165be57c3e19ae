"""The ported agents differ from what they were by the lines that the page on adoption names."""

import difflib
import re
from pathlib import Path

import pytest

from tests.style.project import ROOT

PAGE = (ROOT / "docs" / "learn" / "adopting.md").read_text("utf-8")
NAMES = ("loop", "graph", "chat")


def code_of(path: Path) -> list[str]:
    """Return a program's lines after its docstring."""
    return path.read_text("utf-8").split('"""', 2)[2].splitlines()


@pytest.mark.parametrize("name", NAMES)
def test_a_ported_agent_has_as_many_new_lines_as_the_page_says(name: str) -> None:
    folder = ROOT / "examples" / "ported"
    before, after = code_of(folder / f"{name}_before.py"), code_of(folder / f"{name}.py")
    marks = [line[0] for line in difflib.unified_diff(before, after, lineterm="", n=0)][2:]
    said = re.search(rf"`{name}\.py` \| \+(\d+) -(\d+) \|", PAGE)
    assert said is not None
    assert (marks.count("+"), marks.count("-")) == (int(said[1]), int(said[2]))


def test_each_of_the_three_stands_on_the_page() -> None:
    assert re.findall(r"`(\w+)\.py` \| \+", PAGE) == list(NAMES)
