"""Sessions move in some schedules; the account of migrations finds each thing that is wrong."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import pytest

from tests.simulation.adapter import LogRecord
from tests.simulation.checks import find_faults
from tests.simulation.migration_checks import check_migrations
from tests.simulation.migrations import MOVE_STAGES
from tests.simulation.outputs import Written, folded_records, outputs_of
from tests.simulation.world import World

SCHEDULES = 14
Damage = Callable[[Written], Written]


class Evidence(NamedTuple):
    """What the account is notified of a partition."""

    log: list[LogRecord]
    outputs: Written
    rows: Mapping[bytes, Any]

    def faults(self) -> list[str]:
        return list(check_migrations(self.log, self.outputs, self.rows))


def moving_worlds() -> Iterator[World]:
    """Yield the first schedules in which sessions move, before they run."""
    seed, found = 0, 0
    while found < SCHEDULES:
        seed += 1
        world = World(seed)
        if world.movers.is_on:
            found += 1
            yield world


@cache
def finished_worlds() -> list[World]:
    worlds = list(moving_worlds())
    for world in worlds:
        world.run()
    return worlds


def all_evidence() -> Iterator[Evidence]:
    for world in finished_worlds():
        for partition, log in enumerate(world.broker.events):
            outputs = outputs_of(world.broker.outcomes[partition])
            yield Evidence(folded_records(log, outputs), outputs, world.cluster.owner(partition).fold.rows)


def test_a_few_schedules_hold_and_meet_the_steps_of_migrations() -> None:
    seen: Counter[str] = Counter()
    for world in finished_worlds():
        assert find_faults(world) == [], world.seed
        seen += world.seen
    steps = {f"migration: {step}" for step in ("offered", "prepared", "completed", "aborted")}
    faults = {f"migration: an event {what}" for what in ("is lost", "is late", "comes twice")}
    crashes = {f"migration: crash of {who}, {MOVE_STAGES[0]}" for who in ("source", "target", "worker")}
    assert (steps | faults | crashes | {"migration: a former owner is rejected"}) - seen.keys() == set()


def test_schedules_without_moves_stay_as_they_are() -> None:
    """What moves sessions draws nothing from the schedule's chance while it is off."""
    world = next(world for world in map(World, range(1, 99)) if not world.movers.is_on)
    state = world.rng.getstate()
    world.movers.step()
    world.movers.deliver_all()
    assert world.rng.getstate() == state


def without_step(step: str) -> Damage:
    def damage(outputs: Written) -> Written:
        kept = [(key, line) for key, line in outputs.audits if line.migration_step != step]
        return outputs._replace(audits=kept)

    return damage


def twice(step: str) -> Damage:
    def damage(outputs: Written) -> Written:
        doubled = [[pair] * (2 if pair[1].migration_step == step else 1) for pair in outputs.audits]
        return outputs._replace(audits=[pair for pairs in doubled for pair in pairs])

    return damage


def unrejected(reason: str) -> Damage:
    def damage(outputs: Written) -> Written:
        return outputs._replace(rejected=[pair for pair in outputs.rejected if pair[1].reason != reason])

    return damage


def owner_stays(outputs: Written) -> Written:
    """Let the audit say that the former owner still owns what was moved."""
    lines = [
        (key, line._replace(owner_service=line.from_service) if line.migration_step == "completed" else line)
        for key, line in outputs.audits
    ]
    return outputs._replace(audits=lines)


def owner_by_accident(outputs: Written) -> Written:
    """Let one line of the trail say that the session is another's."""
    moved = {key for key, line in outputs.audits if line.migration_step == "completed"}
    lines = [
        (key, line._replace(owner_service="stranger") if key in moved and line.transition == "T02" else line)
        for key, line in outputs.audits
    ]
    return outputs._replace(audits=lines)


def epoch_stays(outputs: Written) -> Written:
    lines = [
        (key, line._replace(epoch=line.epoch - 1) if line.migration_step == "completed" else line)
        for key, line in outputs.audits
    ]
    return outputs._replace(audits=lines)


def stays_held(outputs: Written) -> Written:
    lines = [(key, line) for key, line in outputs.audits if line.reason_code not in ("migrated", "migration_aborted")]
    ends = [(key, line) for key, line in outputs.audits if line.migration_step == "completed"]
    return outputs._replace(audits=sorted([*lines, *ends], key=lambda pair: (pair[1].source_offset, pair[1].source_n)))


def request_lost(outputs: Written) -> Written:
    return outputs._replace(migrations=outputs.migrations[:-1])


def request_doubled(outputs: Written) -> Written:
    return outputs._replace(migrations=[*outputs.migrations, *outputs.migrations[-1:]])


def request_of_another_epoch(outputs: Written) -> Written:
    return outputs._replace(migrations=[(key, one._replace(epoch=99)) for key, one in outputs.migrations])


def release_lost(outputs: Written) -> Written:
    return outputs._replace(cleanups=[pair for pair in outputs.cleanups if pair[1].reason_code != "migrated"])


@pytest.mark.parametrize(
    ("damage", "reported"),
    [
        (without_step("offered"), "is prepared after None"),
        (without_step("prepared"), "is completed after"),
        (without_step("completed"), "it was let go at"),
        (without_step("aborted"), "by the audit"),
        (twice("completed"), "is completed after None"),
        (twice("aborted"), "is aborted after None"),
        (unrejected("stale_epoch"), "of epoch 1 is accepted at"),
        (unrejected("illegal_transition"), "is accepted while it is held"),
        (unrejected("migration_moved"), "a target has"),
        (owner_stays, "gives it to"),
        (owner_by_accident, "makes it"),
        (owner_by_accident, "is stranger's, after"),
        (epoch_stays, "is completed at epoch"),
        (stays_held, "came next"),
        (request_lost, "the targets were notified of"),
        (request_doubled, "the targets were notified of"),
        (request_of_another_epoch, "the targets were notified of"),
        (release_lost, "was not asked once"),
    ],
)
def test_the_account_finds_what_is_wrong(damage: Damage, reported: str) -> None:
    faults: list[str] = []
    for evidence in all_evidence():
        assert evidence.faults() == []
        faults += evidence._replace(outputs=damage(evidence.outputs)).faults()
    assert any(reported in fault for fault in faults), faults[:5]
