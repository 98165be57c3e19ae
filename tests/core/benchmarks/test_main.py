"""Which results file a measurement writes, by its options and by the build of the core."""

import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import __main__ as program
from benchmarks.measurements import MEASUREMENTS
from benchmarks.results import Result, Target, write_results


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of results; every measurement finds one figure that misses its target."""
    found = [Result("a figure", "s", [2.0], Target("<=", 1.0))]
    monkeypatch.setattr(program, "write_results", partial(write_results, folder=tmp_path))
    monkeypatch.setattr(program, "machine_facts", dict)
    for each in MEASUREMENTS:
        monkeypatch.setitem(sys.modules, each.module, SimpleNamespace(run=lambda _: found))
    return tmp_path


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("name", sorted(each.name for each in MEASUREMENTS if not each.by_build))
def test_a_whole_run_of_a_measurement_writes_its_file(folder: Path, name: str) -> None:
    assert program.main(["--only", name]) == 1  # the figure misses its target
    assert files_in(folder) == [f"{name}.json"]


@pytest.mark.parametrize("option", ["--quick", "--part=idle"])
def test_a_run_that_is_not_whole_writes_no_file(folder: Path, option: str) -> None:
    assert program.main(["--only", "p", option]) == (0 if option == "--quick" else 1)
    assert files_in(folder) == []


@pytest.mark.parametrize("build", ["native", "python"])
def test_the_figures_beside_another_commit_are_kept_by_build(
    folder: Path, monkeypatch: pytest.MonkeyPatch, build: str
) -> None:
    monkeypatch.setattr(program, "core_build", lambda: build)
    program.main(["--only", "v"])
    end = "_pure" if build == "python" else ""
    assert files_in(folder) == [f"base_{part}{end}.json" for part in ("client", "commit", "sinks")]


def test_no_two_measurements_share_a_file() -> None:
    parts = [part for each in MEASUREMENTS for part in each.parts]
    assert len(set(parts)) == len(parts) == len(MEASUREMENTS) + 4
