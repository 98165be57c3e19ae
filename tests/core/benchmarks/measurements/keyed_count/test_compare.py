"""Ratios, and what happens if an engine's output is wrong."""

import pytest

from benchmarks.harness.consumption import Rate
from benchmarks.measurements.keyed_count.check import OutputCheck
from benchmarks.measurements.keyed_count.compare import Run, comparison_results
from tests.core.benchmarks.measurements.keyed_count.outputs import EVENTS


def _run(per_s: int, checked: OutputCheck) -> Run:
    return Run(Rate(per_s, 1.0, 1.0, 1.0), checked, EVENTS, 1.0)


RIGHT, WRONG = OutputCheck(EVENTS, 0, 0, 0), OutputCheck(EVENTS, 1, 1, 0)


def test_ratios_are_of_the_same_round_and_a_wrong_engine_is_named() -> None:
    found = comparison_results(
        {
            "ours": [_run(60, RIGHT), _run(240, RIGHT), _run(90, RIGHT)],
            "quix": [_run(30, RIGHT), _run(60, WRONG), _run(30, RIGHT)],
        }
    )
    ratio = next(result for result in found if result.name == "ours / quix")
    assert list(ratio.runs) == [2.0, 4.0, 3.0]
    assert ratio.met
    quix = next(result for result in found if result.name == "quix")
    assert any("run 2: WRONG: 1 missing, 1 doubled" in note for note in quix.notes)


def test_a_wrong_output_of_our_own_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="our own output is wrong"):
        comparison_results({"ours": [_run(60, WRONG)]})
