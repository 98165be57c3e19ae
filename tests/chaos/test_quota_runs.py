"""What is counted of runs that wait for a slot can be wrong; the fault must be chosen."""

from contextlib import ExitStack

from tests.chaos.quota_runs import Slots
from tests.chaos.schedule import CHOSEN_ONLY, NEEDS_QUOTAS, QUOTAS, draw_faults, kinds_in_deck


def test_one_run_too_many_at_once_is_reported() -> None:
    slots = Slots(2)
    for _ in range(3):
        with slots.hold(), slots.hold():
            pass
    assert (slots.taken, slots.most, slots.faults) == (6, 2, [])
    with ExitStack() as held:
        for _ in range(3):
            held.enter_context(slots.hold())
    assert (slots.most, slots.faults) == (3, ["3 runs held a slot at once, of 2"])


def test_the_worker_of_quotas_is_killed_only_if_that_is_chosen() -> None:
    for seconds in (60, 600):
        assert "kill quotas" not in kinds_in_deck(seconds)
    drawn = draw_faults(1, 60, ["kill quotas"])
    assert len(drawn) >= 3
    assert {fault.target for fault in drawn} == {QUOTAS}
    assert CHOSEN_ONLY <= NEEDS_QUOTAS, "so runs ask for quotas before the first such fault"
