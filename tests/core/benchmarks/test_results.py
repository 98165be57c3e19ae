"""Figures, results files and tables."""

import io
import json
import re
from pathlib import Path

from rich.console import Console

from benchmarks.bench import Bench, Options
from benchmarks.machine import machine_facts
from benchmarks.results import Result, Target, format_figure, print_results, quantile, write_results
from sessionary.stream_processors.core_build import core_build, interpreter_build


def test_a_figure_is_the_median_of_its_runs() -> None:
    result = Result("rate", "events/s", [10.0, 30.0, 20.0], Target(">=", 15))
    assert (result.median, result.spread, result.met) == (20.0, 1.0, True)
    assert Result("time", "s", [2.0], Target("<=", 1)).met is False
    assert Result("time", "s", [2.0]).met is None
    assert [format_figure(value) for value in (0.0, 12_345.6, 12.3456)] == ["0", "12,346", "12.35"]


def test_a_results_file_names_no_machine(tmp_path: Path) -> None:
    bench = Bench(Options(runs=2))
    found = bench.repeat("work", lambda n: float(n))
    path = write_results("part", [Result("it", "s", found)], bench.log, machine_facts(), tmp_path)
    text = path.read_text()
    content = json.loads(text)
    assert [run["title"] for run in content["runs"]] == ["work, run 1 of 2", "work, run 2 of 2"]
    assert content["versions"]["kafka"]
    assert content["versions"]["core"] == core_build()
    assert content["versions"]["interpreter_built_with"] == interpreter_build()
    assert content["machine"]["cores"]
    assert re.search(r'"/\w+/', text) is None


def test_a_table_shows_what_was_missed() -> None:
    out = io.StringIO()
    missed = Result("rate", "events/s", [10.0], Target(">=", 15), ("a note",))
    print_results("title", [missed, Result("other", "s", [1.0])], Console(file=out, width=100))
    assert "MISSED" in out.getvalue()
    assert "  - a note" in out.getvalue()


def test_a_quantile_is_a_measured_value() -> None:
    assert [quantile([1.0, 2.0, 3.0], share) for share in (0.0, 0.5, 0.99)] == [1.0, 2.0, 3.0]
