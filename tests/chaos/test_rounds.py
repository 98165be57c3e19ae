"""How many rounds of faults a slow machine needs."""

from collections import Counter

import pytest

from tests.chaos.rounds import ROUNDS_MAX, carry_out_rounds, find_missing_kinds
from tests.chaos.schedule import Fault, FaultKind, draw_faults, kinds_in_deck


class SlowMachine:
    """Is both the faults and the load: it begins only a few faults of each schedule."""

    def __init__(self, faults_per_round: int) -> None:
        self._faults_per_round = faults_per_round
        self.begun: Counter[FaultKind] = Counter()
        self.until_s = 60.0
        self.steps: list[str] = []

    def carry_out(self, schedule: list[Fault], until_s: float) -> None:
        assert until_s == self.until_s
        self.steps.append("faults")
        self.begun.update(fault.kind for fault in schedule[: self._faults_per_round])

    def wait(self) -> None:
        self.steps.append("recovery")

    def extend(self) -> None:
        self.steps.append("more load")
        self.until_s += 60.0


DECK = kinds_in_deck(60.0)


def carry_out(machine: SlowMachine, kinds_min: int = 0, times_min: int = 0) -> int:
    return carry_out_rounds(
        machine,
        machine,
        lambda n, kinds: draw_faults(n, 60, kinds),
        lambda begun: find_missing_kinds(begun, DECK, kinds_min, times_min),
    )


@pytest.mark.parametrize("kinds_min", [0, 1, 4, 6])
def test_a_slow_machine_has_as_many_kinds_of_faults_as_a_fast_one(kinds_min: int) -> None:
    fast, slow = SlowMachine(100), SlowMachine(1)
    assert carry_out(fast, kinds_min) == 1
    assert fast.steps == ["faults", "recovery"]
    rounds = carry_out(slow, kinds_min)
    assert len(slow.begun) >= kinds_min
    assert rounds == max(kinds_min, 1), "each further round begins with a kind that is missing"
    assert slow.steps == ["faults", *["recovery", "more load", "faults"] * (rounds - 1), "recovery"]


def test_a_kind_that_is_too_rare_is_carried_out_in_a_further_round() -> None:
    machine = SlowMachine(7)
    assert carry_out(machine, times_min=2) > 1
    assert all(machine.begun[kind] >= 2 for kind in DECK)


def test_only_what_is_missing_is_drawn_again() -> None:
    begun = Counter[FaultKind](dict.fromkeys(DECK, 3))
    begun["kill sink"] = 2
    assert find_missing_kinds(begun, DECK, 0, 3) == ["kill sink"]
    assert find_missing_kinds(begun, DECK, 6, 0) == []
    del begun["kill sink"]
    assert find_missing_kinds(begun, DECK, 5, 0) == []
    assert find_missing_kinds(begun, DECK, 6, 0) == ["kill sink"]
    assert find_missing_kinds(begun, ["kill sink"], 4, 0) == ["kill sink"], "a deck may be smaller"


def test_a_machine_that_begins_no_fault_ends_its_run() -> None:
    assert carry_out(SlowMachine(0), 4) == ROUNDS_MAX
