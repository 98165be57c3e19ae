"""How long a fault may hold partitions and sinks up, and the kinds of which that is not asked."""

import pytest

from tests.chaos.recovery import GO_ON_S_MAX, NOT_BOUNDED, FaultOutcome, judge_recovery
from tests.chaos.schedule import KINDS, Fault, FaultKind


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_its_bound_or_a_reason_for_none(kind: FaultKind) -> None:
    outcome = FaultOutcome(Fault(1.0, kind, "a part"), 5.0, "a note")
    assert judge_recovery(outcome, GO_ON_S_MAX) == outcome
    late = judge_recovery(outcome, GO_ON_S_MAX + 1)
    if kind in NOT_BOUNDED:
        assert late == outcome
        assert NOT_BOUNDED[kind]
    else:
        assert late.recovered_s is None
        assert late.note == "a note; went on only 61 s after the servers answered and nothing else was broken"


def test_a_busy_machine_may_have_a_wider_bound() -> None:
    outcome = FaultOutcome(Fault(1.0, "kill broker", "broker"), 5.0, "")
    assert judge_recovery(outcome, 2 * GO_ON_S_MAX, 2 * GO_ON_S_MAX) == outcome
    assert judge_recovery(outcome, 2 * GO_ON_S_MAX + 1, 2 * GO_ON_S_MAX).recovered_s is None


def test_only_what_is_no_partition_and_no_sink_has_no_bound() -> None:
    assert set(NOT_BOUNDED) == {"kill agent", "freeze agent", "full spool"}
