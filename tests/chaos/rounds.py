"""Further schedules of faults for a machine that is too slow for the first one."""

from collections import Counter
from collections.abc import Callable, Collection
from typing import Protocol

from tests.chaos.schedule import Fault, FaultKind

ROUNDS_MAX = 6


class FaultRunner(Protocol):
    """Carries out a schedule; see `Faults`."""

    @property
    def begun(self) -> Counter[FaultKind]:
        """How many faults of each kind have begun."""
        ...

    def carry_out(self, schedule: list[Fault], until_s: float) -> None:
        """Begin each fault in time; none begins after `until_s` (epoch)."""
        ...

    def wait(self) -> None:
        """Wait until each fault has recovered or timed out."""
        ...


class ExtensibleLoad(Protocol):
    """A load that may go on; see `Load`."""

    until_s: float

    def extend(self) -> None:
        """Go on for a further round."""
        ...


def find_missing_kinds(
    begun: Counter[FaultKind], deck: Collection[FaultKind], kinds_min: int, times_min: int
) -> list[FaultKind]:
    """Return the kinds of which a run needs more faults, in the deck's order.

    `kinds_min`: so many kinds must begin at all. `times_min`: so often must each one.
    """
    if sum(begun[kind] > 0 for kind in deck) < min(kinds_min, len(deck)):
        return [kind for kind in deck if not begun[kind]]
    return [kind for kind in deck if begun[kind] < times_min]


def carry_out_rounds(
    faults: FaultRunner,
    load: ExtensibleLoad,
    draw: Callable[[int, Collection[FaultKind]], list[Fault]],
    find_missing: Callable[[Counter[FaultKind]], Collection[FaultKind]],
) -> int:
    """Carry out schedules, each under load, until no kind of fault is missing. Blocks.

    `draw` gives the schedule of a round, from 0, of some kinds; of all kinds if it gets none.
    Returns the number of rounds, at most `ROUNDS_MAX`.
    """
    faults.carry_out(draw(0, ()), load.until_s)
    rounds = 1
    while (missing := find_missing(faults.begun)) and rounds < ROUNDS_MAX:
        faults.wait()
        load.extend()
        faults.carry_out(draw(rounds, missing), load.until_s)
        rounds += 1
    faults.wait()
    return rounds
