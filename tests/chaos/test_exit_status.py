"""What a run's exit status tells: 1 if anything was found, although its audit finds nothing."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.chaos import __main__ as chaos
from tests.chaos.process_watch import JUDGING_S_MIN, Growth
from tests.chaos.quota_runs import QuotaFigures
from tests.chaos.recovery import FaultOutcome
from tests.chaos.schedule import Fault, FaultKind, kinds_in_deck
from tests.core.test_auditor import evidence_of, recorded_rig

MINUTES = JUDGING_S_MIN / 60
ENOUGH = kinds_in_deck(MINUTES * 60) * 3
STEADY = Growth("agent-1", 500.0, (9, 9), (30, 30), (1e8, 1e8), ())
GROWN = STEADY._replace(faults=("agent-1 had at most 9 threads in the middle and at least 90 at the end",))


class Runs:
    """Runs the command over the evidence of a run without a fault, without a stack."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._evidence = folder, evidence_of(recorded_rig()[0])
        self.happened: Sequence[FaultKind] = ENOUGH
        self.growth: list[Growth] = [STEADY]

    def run(self, options: Any, logs: Path, *, namespace: bool) -> Any:
        outcomes = [FaultOutcome(Fault(1.0, kind, "a part"), 5.0) for kind in self.happened]
        faults: Any = SimpleNamespace(outcomes=outcomes, left_out=[])
        readiness: Any = SimpleNamespace(sentences=[], observations=1)
        processes: Any = SimpleNamespace(growth=lambda: self.growth)
        found = chaos._find_differences(options, faults, readiness, processes, [], namespace=namespace)
        rest: Any = [], self.growth, QuotaFigures(), 700.0
        return chaos._result(options, self._evidence, faults, found, *rest, namespace=namespace)

    def ends_with(self, minutes: float = MINUTES) -> tuple[int, list[list[str]]]:
        """Return the exit status of a run, and the differences in the file of its result."""
        result = self.folder / "result.json"
        status = chaos.main(["--minutes", str(minutes), "--json", str(result)])
        return status, [list(one.values()) for one in json.loads(result.read_text())["differences"]]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    made = Runs(tmp_path)
    monkeypatch.setattr(chaos, "_run", made.run)
    monkeypatch.setattr(chaos, "_BUILD", tmp_path)
    monkeypatch.setattr(chaos, "enter_namespace", lambda _: True)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    return made


def test_a_run_in_which_nothing_was_found_ends_with_0(runs: Runs) -> None:
    assert runs.ends_with() == (0, [])


def test_a_process_that_grew_ends_a_run_with_1(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    runs.growth = [STEADY, GROWN]
    assert runs.ends_with() == (1, [["growth", *GROWN.faults]])
    assert "processes that grew                1" in capsys.readouterr().out


def test_a_fault_that_was_too_rare_ends_a_run_with_1(runs: Runs) -> None:
    runs.happened = ENOUGH[1:]
    text = f"{ENOUGH[0]} happened 2 times in {MINUTES:g} minutes, must be 3"
    assert runs.ends_with() == (1, [["rare fault", text]])


def test_a_long_run_that_could_judge_no_process_ends_with_1(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    runs.growth = []
    text = f"no process was watched for 300 s in {JUDGING_S_MIN:g} s of load, so none was judged"
    assert runs.ends_with() == (1, [["growth", text]])
    assert "processes that grew                0" in capsys.readouterr().out


def test_a_brief_run_says_that_it_could_judge_no_process(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    runs.growth = []
    assert runs.ends_with(MINUTES - 0.1) == (0, [])
    assert "no process lived long enough to tell how it grew" in capsys.readouterr().out
