"""Some hundreds of schedules, always the same; and proof that nothing of what they are for has gone missing."""

from collections import Counter
from typing import Any, get_args

import pytest

from sessionary.schemas.types import RefusalReason
from tests.simulation.checks import faults
from tests.simulation.running import Failure, checked, ran
from tests.simulation.world import World

SCHEDULES = 1_000
# A sink's, and what no processor of today says.
NO_JUDGES = {"UNKNOWN", "bad_row"}
REASONS = {f"refused: {reason}" for reason in set(get_args(RefusalReason)) - NO_JUDGES}
TRANSITIONS = {f"T{n:02}" for n in range(1, 15)}
FIRED = {"init_timeout", "inactive", "idle", "max_duration", "timeout_cleanup", "recovery_failed", "archived"}
STAGES = ("fenced", "open", "begun", "finished", "written", "committed")
TROUBLE = {
    *(f"crash: processor {stage}" for stage in STAGES),
    *(f"crash: sink {stage}" for stage in ("gathering", "taken", "declared")),
    *(f"zombie: goes on when {stage}" for stage in STAGES),
    *(f"batch: full by {bound}" for bound in ("records", "bytes", "timers")),
    *(f"recovery: {source}" for source in ("whole changelog", "compacted changelog", "own store and the rest")),
    *("transaction: aborted by the next owner", "transaction: aborted, folded again"),
    *("transaction: committed, answer lost", "owner: fenced", "cluster: partition moved"),
    *("sink: fenced", "sink: a zombie inserts", "sink: block dropped as known", "sink: inserted, answer lost"),
    *("sink: replays a declared block", "sink: closing commit"),
    *("log: offsets without records", "log: clock set back", "log: clock leaps", "broker: outage", "hole"),
    *("client: a spool is replayed", "client: a process dies with its queue", "client: loses events and goes on"),
    *("client: a straggler comes", "client: a frozen process goes on"),
    *("network: dropped, sent again later", "network: sent twice as the answer was lost"),
    *("duplicate", "gravestone cleared", "steady agent lived", "time: a silence", "time: weeks"),
}
KINDS = {"transition", "refusal", "gap", "release", "context_limit", "limits_override"}
MET = REASONS | TRANSITIONS | TROUBLE | {f"fired: {name}" for name in FIRED} | {f"audit: {kind}" for kind in KINDS}


@pytest.mark.long
def test_every_schedule_holds_and_together_they_meet_everything() -> None:
    seen: Counter[str] = Counter()
    for seed in range(1, SCHEDULES + 1):
        seen += checked(seed)
    assert MET - seen.keys() == set()
    assert seen["records"] > 50 * SCHEDULES


def test_a_seed_gives_the_same_schedule_again() -> None:
    for seed in (3, 4):
        first, second = (ran(seed, tracing=True) for _ in range(2))
        assert first == second
        assert len(first.trace) > 20


def test_tracing_changes_nothing() -> None:
    assert ran(5).seen == ran(5, tracing=True).seen


def ended(seed: int) -> World:
    world = World(seed)
    world.run()
    assert faults(world) == []
    return world


def test_a_failure_names_the_seed_and_how_to_see_it_again() -> None:
    text = str(Failure(17, [f"no. {n}" for n in range(99)]))
    assert "python -m tests.simulation --seed 17 --trace" in text
    assert "and 91 more" in text


def _lose_last(found: list[Any]) -> None:
    found.pop()


def _repeat_last(found: list[Any]) -> None:
    found.append(found[-1])


@pytest.mark.parametrize("lines", ["audits", "rejected"])
def test_a_line_that_lacks_or_stands_twice_is_found(lines: str) -> None:
    for change in (_lose_last, _repeat_last):
        world = ended(2)
        outcome = next(o for outcomes in world.broker.outcomes for o in outcomes if getattr(o, lines))
        change(getattr(outcome, lines))
        assert faults(world)


def test_a_row_that_lacks_or_stands_twice_in_clickhouse_is_found() -> None:
    for change in (_lose_last, _repeat_last):
        world = ended(2)
        change(world.clickhouse.rows)
        assert any("ClickHouse" in fault for fault in faults(world))
