"""Further schedules of faults for a machine that is too slow for the first one."""

from collections.abc import Callable
from typing import Protocol

from tests.chaos.schedule import Fault, FaultKind

ROUNDS_MAX = 6


class FaultRunner(Protocol):
    """Carries out a schedule; see `Faults`."""

    @property
    def kinds_begun(self) -> set[FaultKind]:
        """The kinds of the faults that have begun."""
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
        """Go on for as long as it was to last at first."""
        ...


def carry_out_rounds(
    faults: FaultRunner, load: ExtensibleLoad, draw: Callable[[int], list[Fault]], kinds_min: int
) -> int:
    """Carry out schedules, each under load, until so many kinds of faults have begun. Blocks.

    `draw` gives the schedule of a round, from 0. Returns the number of rounds, at most
    `ROUNDS_MAX`; with a `kinds_min` of 0 it is 1.
    """
    faults.carry_out(draw(0), load.until_s)
    rounds = 1
    while len(faults.kinds_begun) < kinds_min and rounds < ROUNDS_MAX:
        faults.wait()
        load.extend()
        faults.carry_out(draw(rounds), load.until_s)
        rounds += 1
    faults.wait()
    return rounds


__all__ = ["ROUNDS_MAX", "carry_out_rounds"]
