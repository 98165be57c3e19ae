"""A whole measurement, small: it ends well, and prints every figure that it has.

All of them would take a quarter of an hour, so most are left out.
"""

import re
import subprocess
import sys

import pytest

from benchmarks.machine import ROOT
from benchmarks.measurements import MEASUREMENTS

HOPS = ("baseline", "paced baseline")
# The figures of a quick run; some have a smaller size in their names than those of a whole one.
FIGURES = {
    "c": [
        *(f"200/s, {name}" for name in ("p50", "p95", "p99", "largest")),
        *(f"200/s, {hop} {name}" for hop in HOPS for name in ("p50", "p99")),
        *(f"200/s, p99 to the {hop}'s" for hop in HOPS),
    ],
}
# Run by other tests, in their main parts: `test_benchmarks`, `test_streams_full_job`.
ELSEWHERE = {"b", "o", "s", "t", "w", "x", "y", "z"}
LEFT_OUT = {
    "a": "five engines in turn, of which two are installed first",
    "d": "recovery of many sessions",
    "e": "sessions after a recovery, as in d",
    "f": "sinks and their load, as in w and x",
    "g": "loops around the client's calls, as in c",
    "h": "the full job of b, with sessions before it",
    "k": "workers that start beside a load",
    "m": "recovery, as in d",
    "n": "folds and tables, as in other tests of states at a point; callgrind",
    "p": "many partitions: it watches for minutes",
    "q": "it watches for a minute",
    "r": "restarts of processes, as in k",
    "u": "the full job of b, twice",
    "v": "the full job of b, calls and the sinks of f, for two commits each",
}


def printed_figures(said: str) -> list[str]:
    """Return the names of all figures in the printed tables; a long one has two lines there."""
    names: list[str] = []
    for line in re.findall(r"^\| (.*) \|$", said, re.M):
        name, median, *_ = (cell.strip() for cell in line.split("|"))
        if median == "median":
            continue
        if median:
            names.append(name)
        else:
            names[-1] = f"{names[-1]} {name}"
    return names


def test_every_measurement_is_run_or_is_left_out_for_a_reason() -> None:
    named = {*FIGURES, *ELSEWHERE, *LEFT_OUT}
    assert [each.name for each in MEASUREMENTS if not {each.letter, each.name} & named] == []
    assert named <= {name for each in MEASUREMENTS for name in (each.letter, each.name)}


@pytest.mark.parametrize("letter", FIGURES)
def test_a_quick_run_ends_well_and_prints_every_figure(letter: str) -> None:
    command = [sys.executable, "-m", "benchmarks", "--only", letter, "--quick", "--base", "HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert printed_figures(done.stdout) == FIGURES[letter], done.stderr
