"""Runs schedules by seed; a failure names the seed and how to repeat it."""

import traceback
from collections import Counter
from typing import NamedTuple

from tests.simulation.adapter import JUDGE, Judge
from tests.simulation.checks import find_faults
from tests.simulation.world import World

FAULTS_SHOWN = 8
FAULT_LENGTH = 600


class Failure(Exception):
    """A schedule that failed; the text says how to repeat it."""

    def __init__(self, seed: int, found: list[str], options: str = "") -> None:
        """`options` are those of the command line that the schedule needs besides its seed."""
        shown = [fault[:FAULT_LENGTH] for fault in found[:FAULTS_SHOWN]]
        shown += [f"and {len(found) - FAULTS_SHOWN} more"] if len(found) > FAULTS_SHOWN else []
        lines = [f"schedule {seed}:", *shown, f"repeat: python -m tests.simulation --seed {seed} --trace{options}"]
        super().__init__("\n  ".join(lines))


class ScheduleResult(NamedTuple):
    """The result of a schedule; `trace` is empty unless requested."""

    seen: Counter[str]
    found: list[str]
    trace: list[str]


def run_schedule(seed: int, *, tracing: bool = False, judge: Judge = JUDGE) -> ScheduleResult:
    """Run one schedule and check it. An exception counts as a violation."""
    world = World(seed, tracing=tracing, judge=judge)
    try:
        world.run()
        found = find_faults(world)
    except Exception:  # noqa: BLE001 - a crash of the core under test must be reported with its seed
        found = traceback.format_exc().splitlines()[-8:]
    return ScheduleResult(world.seen, found, world.lines)


def check_schedule(seed: int) -> Counter[str]:
    """Run one schedule; return what occurred in it. Raises `Failure`."""
    result = run_schedule(seed)
    if result.found:
        raise Failure(seed, result.found)
    return result.seen
