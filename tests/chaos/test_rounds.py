"""How many rounds of faults a slow machine needs."""

import pytest

from tests.chaos.rounds import ROUNDS_MAX, carry_out_rounds
from tests.chaos.schedule import Fault, FaultKind, draw_faults


class SlowMachine:
    """Is both the faults and the load: it begins only a few faults of each schedule."""

    def __init__(self, faults_per_round: int) -> None:
        self._faults_per_round = faults_per_round
        self.kinds_begun: set[FaultKind] = set()
        self.until_s = 60.0
        self.steps: list[str] = []

    def carry_out(self, schedule: list[Fault], until_s: float) -> None:
        assert until_s == self.until_s
        self.steps.append("faults")
        self.kinds_begun |= {fault.kind for fault in schedule[: self._faults_per_round]}

    def wait(self) -> None:
        self.steps.append("recovery")

    def extend(self) -> None:
        self.steps.append("more load")
        self.until_s += 60.0


@pytest.mark.parametrize("kinds_min", [0, 1, 4, 6])
def test_a_slow_machine_has_as_many_kinds_of_faults_as_a_fast_one(kinds_min: int) -> None:
    fast, slow = SlowMachine(100), SlowMachine(1)
    assert carry_out_rounds(fast, fast, lambda n: draw_faults(n, 60), kinds_min) == 1
    assert fast.steps == ["faults", "recovery"]
    schedules = [draw_faults(1, 60)[n:] for n in range(ROUNDS_MAX)]
    rounds = carry_out_rounds(slow, slow, lambda n: schedules[n], kinds_min)
    assert len(slow.kinds_begun) >= kinds_min
    assert rounds <= ROUNDS_MAX
    assert slow.steps == ["faults", *["recovery", "more load", "faults"] * (rounds - 1), "recovery"]


def test_a_machine_that_begins_no_fault_ends_its_run() -> None:
    stuck = SlowMachine(0)
    assert carry_out_rounds(stuck, stuck, lambda n: draw_faults(n, 60), 4) == ROUNDS_MAX
