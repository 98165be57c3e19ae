"""What became of a fault, and how soon the stack had to go on after it.

Within 60 s of the end of all faults so far, and of the first answer of the servers, partitions and
sinks must go on. `NOT_BOUNDED` names the kinds of which this is not asked.
"""

from collections.abc import Mapping
from typing import NamedTuple

from tests.chaos.schedule import Fault, FaultKind

GO_ON_S_MAX = 60.0
# Kinds that need not be over within `GO_ON_S_MAX`, and why.
NOT_BOUNDED: Mapping[FaultKind, str] = {
    "kill agent": "an agent is no partition and no sink; its next process first has to reach the broker that fell too",
    "freeze agent": "the same; it asks the control API, which other faults may hold up",
    "full spool": "the same as of a killed agent, and every broker starts again before the agent can drain its spool",
}


class FaultOutcome(NamedTuple):
    """A fault and its recovery time; `recovered_s` is None if the stack did not recover."""

    fault: Fault
    recovered_s: float | None
    note: str = ""
    began_s: float = 0.0  # since the schedule started; later than `at_s` on a slow machine


def judge_recovery(outcome: FaultOutcome, after_s: float, go_on_s_max: float = GO_ON_S_MAX) -> FaultOutcome:
    """Return the outcome, which never recovered if that took too long.

    `after_s`: seconds from when nothing stood in the way any more.
    """
    if after_s <= go_on_s_max or outcome.fault.kind in NOT_BOUNDED:
        return outcome
    late = f"went on only {after_s:.0f} s after the servers answered and nothing else was broken"
    return outcome._replace(recovered_s=None, note="; ".join(filter(None, (outcome.note, late))))
