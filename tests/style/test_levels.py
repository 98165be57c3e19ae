"""Each test is in exactly one level, and `make test` needs no C compiler."""

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests import soak
from tests.style.project import ROOT, tracked_files
from tests.support.levels import COLLECTED, OPTION, SHORT, Levels, read_levels

LEVELS = read_levels()
COMPILED = "native_path"  # the fixture that compiles a copy of the core


@pytest.fixture
def collected(request: pytest.FixtureRequest) -> dict[str, tuple[str, ...]]:
    """The ids of all tests with their fixtures, from a run of `make test`, which collects all."""
    if request.config.getoption(OPTION) is None:
        pytest.skip("only a run of a level collects all tests: make test")
    found = request.config.stash[COLLECTED]
    files = {nodeid.partition("::")[0] for nodeid in found}
    ours = {path.relative_to(ROOT).as_posix() for path in tracked_files() if path.name.startswith("test_")}
    assert {file for file in ours if file.startswith("tests/") and file.endswith(".py")} <= files
    return found


def test_each_test_is_in_exactly_one_level(collected: dict[str, tuple[str, ...]]) -> None:
    by_level = {level: {one for one in collected if LEVELS.level_of(one) == level} for level in LEVELS.names}
    assert set(Counter(one for tests in by_level.values() for one in tests).values()) == {1}
    assert sum(map(len, by_level.values())) == len(collected)
    assert [level for level, tests in by_level.items() if not tests] == []


def test_each_entry_decides_the_level_of_a_test(collected: dict[str, tuple[str, ...]]) -> None:
    assert LEVELS.unused(collected) == []


def test_make_test_needs_no_compiler(collected: dict[str, tuple[str, ...]]) -> None:
    compiled = [nodeid for nodeid, fixtures in collected.items() if COMPILED in fixtures]
    assert len(compiled) > 3
    assert [nodeid for nodeid in compiled if LEVELS.level_of(nodeid) == SHORT] == []


MANIFEST = """
[long]
"a/test_a.py::test_one" = "slow"
[soak.x]
"a/test_a.py" = "slower"
"a/test_b.py::test_two[1" = "slower"
[soak.y]
"a/test_b.py::test_two[3]" = "slowest"
"""


def test_the_longest_entry_decides_and_ends_where_a_name_ends() -> None:
    levels = Levels(MANIFEST)
    assert levels.names == ("test", "long", "soak.x", "soak.y")
    assert levels.parts() == ["x", "y"]
    expected = {
        "tests/a/test_a.py::test_one": "long",
        "tests/a/test_a.py::test_one[p]": "long",
        "tests/a/test_a.py::test_one_more": "soak.x",
        "tests/a/test_b.py::test_two[1-2]": "soak.x",
        "tests/a/test_b.py::test_two[10-2]": "test",
        "tests/a/test_b.py::test_two[3]": "soak.y",
        "tests/a/test_b.py": "test",
        "tests/a/test_a.pyx::test_one": "test",
    }
    assert {nodeid: levels.level_of(nodeid) for nodeid in expected} == expected
    assert levels.unused(expected) == []
    assert levels.unused(["tests/a/test_a.py::test_one"]) == list(levels.entries)[1:]
    assert levels.has_tests_in("a/test_b.py", "soak.y")
    assert not levels.has_tests_in("a/test_b.py", "long")


@pytest.mark.parametrize(
    ("more", "fault"), [('"a/test_a.py" = "again"', "is in soak.x and in soak.z"), ('"a/test_c.py" = ""', "no reason")]
)
def test_a_manifest_with_a_fault_is_refused(more: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        Levels(f"{MANIFEST}[soak.z]\n{more}\n")


def test_a_part_that_is_unknown_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert soak.main([LEVELS.parts()[0], "sauna", "--", "-q"]) == 2
    assert f"there is no part sauna, but {', '.join(LEVELS.parts())}" in capsys.readouterr().err


def test_a_part_is_shown_kept_and_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "part.log"
    assert soak.run_with_limit([sys.executable, "-c", "print(5); exit(3)"], log, 60) == 3
    assert log.read_text() == capsys.readouterr().out == "5\n"
    waits = "import time\ntry: time.sleep(60)\nexcept KeyboardInterrupt: print('ended')"
    assert soak.run_with_limit([sys.executable, "-c", waits], log, 1) is None
    assert "ended" in log.read_text()


REPORT = """<testsuites><testsuite errors="0" failures="1" skipped="2" tests="9">
<testcase name="test_a"><properties><property name="seed" value="7"/></properties></testcase><testcase name="test_b"/>
</testsuite></testsuites>"""


def test_a_summary_says_commit_duration_seeds_and_result(tmp_path: Path) -> None:
    (tmp_path / "part.xml").write_text(REPORT)
    counts, seeds = soak.read_report(tmp_path / "part.xml")
    result = soak.Result("x", "0123456789ab", "2026-01-02 03:04", 12.34, seeds, f"failed: {counts}")
    line = "| x | 0123456789ab | 2026-01-02 03:04 | 12.3 | test_a=7 | failed: 1 failures, 2 skipped, 9 tests |"
    assert soak.summary_of([result]).splitlines()[-1] == line
    assert json.dumps(seeds) == '["test_a=7"]'
