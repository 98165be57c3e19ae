"""Runs schedules by their seeds; a failure names the seed and how to see it again."""

import traceback
from collections import Counter
from typing import NamedTuple

from tests.simulation.checks import find_faults
from tests.simulation.world import World

FAULTS_SHOWN = 8
FAULT_LENGTH = 600


class Failure(Exception):
    """A schedule in which something does not hold; the text tells how to see it again."""

    def __init__(self, seed: int, found: list[str]) -> None:
        shown = [fault[:FAULT_LENGTH] for fault in found[:FAULTS_SHOWN]]
        shown += [f"and {len(found) - FAULTS_SHOWN} more"] if len(found) > FAULTS_SHOWN else []
        lines = [f"schedule {seed}:", *shown, f"again: python -m tests.simulation --seed {seed} --trace"]
        super().__init__("\n  ".join(lines))


class ScheduleResult(NamedTuple):
    """A schedule that was run; `trace` where it was wanted."""

    seen: Counter[str]
    found: list[str]
    trace: list[str]


def run_schedule(seed: int, *, tracing: bool = False) -> ScheduleResult:
    """Run one schedule and check it. Whatever is raised in it is a finding like any other."""
    world = World(seed, tracing=tracing)
    try:
        world.run()
        found = find_faults(world)
    except Exception:  # noqa: BLE001 - a crash of the core under test is a finding; the seed has to be told
        found = traceback.format_exc().splitlines()[-8:]
    return ScheduleResult(world.seen, found, world.lines)


def check_schedule(seed: int) -> Counter[str]:
    """Run one schedule; return what was seen. Raises `Failure`."""
    result = run_schedule(seed)
    if result.found:
        raise Failure(seed, result.found)
    return result.seen


__all__ = ["Failure", "ScheduleResult", "check_schedule", "run_schedule"]
