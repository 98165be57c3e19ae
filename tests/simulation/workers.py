"""Processors: they open partitions, fold, commit, merge; and may die between any two of these."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from tests.simulation.adapter import Outcome, Overlay, PartitionSettings, Stored, look, opened
from tests.simulation.broker import Fenced

if TYPE_CHECKING:
    from sessionary.schemas.records import Gravestone, SessionState
    from tests.simulation.world import World

Stage = Literal["fenced", "open", "begun", "finished", "written", "committed", "gone"]


class Owner:
    """One partition in the hands of one worker, until it dies or learns that it has lost it."""

    def __init__(self, world: World, worker: Worker, partition: int) -> None:
        self.world, self.worker, self.partition = world, worker, partition
        self.stage: Stage = "fenced"
        self.epoch = world.broker.fence(partition)
        self.settings = world.drawn_settings()
        self.batch: Overlay | None = None
        self.outcome: Outcome | None = None
        self.index = self.saved = 0
        world.say("%s takes partition %d, epoch %d", worker.name, partition, self.epoch)

    @property
    def ready(self) -> bool:
        return self.stage not in ("fenced", "gone")

    @property
    def caught_up(self) -> bool:
        log = self.world.broker.events[self.partition]
        return self.stage == "open" and (not log or self.fold.position.next_offset > log[-1].offset)

    def step(self) -> None:
        """Do the next thing. A fenced owner is gone."""
        world = self.world
        if not world.broker.up and self.stage not in ("open", "begun"):
            return  # whoever asks the broker for anything waits
        try:
            getattr(self, f"_{self.stage}")()
        except Fenced:
            world.mark("owner: fenced")
            world.say("%s is fenced off partition %d", self.worker.name, self.partition)
            self.stage = "gone"

    def _fenced(self) -> None:
        """Recover: the whole changelog, or what compaction left of it, or the own store and the rest."""
        self.fold = opened(self.partition, self.settings, self.worker.remembered(self.partition))
        self.stage = "open"

    def _open(self) -> None:
        if self.caught_up:
            return
        self.batch = self.fold.begin()
        self.index = self.world.broker.from_offset(self.partition, self.fold.position.next_offset)
        self.stage = "begun"

    def _begun(self) -> None:
        """Fold a few records; then, or where the batch is full, finish."""
        assert self.batch is not None
        log, rng = self.world.broker.events[self.partition], self.world.rng
        for _ in range(rng.choice((1, 2, 4, 8, 1_000))):
            if self.index >= len(log):
                break
            if not self.batch.apply(log[self.index]):
                self._note_what_filled_it()
                break
            self.index += 1
        else:
            if rng.random() < 0.3:
                return
        self.outcome = self.batch.finish()
        self.stage = "finished"

    def _note_what_filled_it(self) -> None:
        assert self.batch is not None
        outcome = self.batch.finish()
        full = "timers" if outcome.counts.timers >= self.settings.timers_max else "bytes"
        self.world.mark(f"batch: full by {'records' if self.batch.records >= self.settings.records_max else full}")

    def _finished(self) -> None:
        assert self.outcome is not None
        self.world.broker.write(self.partition, self.epoch, self.outcome)
        self.stage = "written"

    def _written(self) -> None:
        """Commit. It may be refused, or its answer may get lost: then the owner opens the partition anew."""
        world, chance = self.world, self.world.rng.random()
        if chance < 0.04 * world.trouble:
            world.broker.abort(self.partition, self.epoch)
            world.mark("transaction: aborted, folded again")
            self.stage = "open"
            return
        world.broker.commit(self.partition, self.epoch)
        if chance < 0.07 * world.trouble:
            world.mark("transaction: committed, answer lost")
            self.stage, self.epoch = "fenced", world.broker.fence(self.partition)
            return
        if chance < 0.1 * world.trouble:
            world.broker.commit(self.partition, self.epoch)
        self.stage, self.saved = "committed", len(world.broker.changelogs[self.partition])

    def _committed(self) -> None:
        assert self.batch is not None
        self.fold.merge(self.batch)
        self.stage = "open"
        if self.world.rng.random() < 0.3:
            self.worker.keep(self.partition, self.saved)

    def _gone(self) -> None:
        return


class Worker:
    """A process; `stores` is what it has on its disk: rows by key, as far as the changelog was at some commit."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.owners: dict[int, Owner] = {}
        self.stores: dict[int, tuple[int, dict[bytes, bytes]]] = {}

    def keep(self, partition: int, committed: int) -> None:
        """Save what was committed so far; it is behind the changelog, never ahead."""
        self.stores[partition] = committed, compacted(self.world.broker.changelogs[partition][:committed])

    def remembered(self, partition: int) -> list[Stored]:
        """What a recovery reads."""
        world, changelog = self.world, self.world.broker.changelogs[partition]
        if partition in self.stores and world.rng.random() < 0.6:
            world.mark("recovery: own store and the rest")
            saved, rows = self.stores[partition]
            return [*rows.items(), *changelog[saved:]]
        if world.rng.random() < 0.5:
            world.mark("recovery: compacted changelog")
            return list(compacted(changelog).items())
        world.mark("recovery: whole changelog")
        return changelog

    def crash(self) -> None:
        """Lose everything but the disk."""
        for owner in self.owners.values():
            if owner.stage != "gone":
                self.world.mark(f"crash: processor {owner.stage}")
        self.world.say("%s dies (%s)", self.name, [(o.partition, o.stage) for o in self.owners.values()])
        self.owners.clear()


def compacted(changelog: list[Stored]) -> dict[bytes, bytes]:
    """The last value of each key."""
    last = dict(changelog)
    return {key: value for key, value in last.items() if value is not None}


class Cluster:
    """Who owns what, who still believes so."""

    def __init__(self, world: World, workers: int) -> None:
        self.world = world
        self.workers = [Worker(world, f"worker-{n}") for n in range(workers)]
        self.assigned = [world.rng.randrange(workers) for _ in range(world.shape.partitions)]
        self.zombies: list[Owner] = []

    def owner(self, partition: int) -> Owner:
        """The rightful owner, opened anew where there is none."""
        worker = self.workers[self.assigned[partition]]
        owner = worker.owners.get(partition)
        if owner is None or owner.stage == "gone":
            owner = worker.owners[partition] = Owner(self.world, worker, partition)
        return owner

    def standing(self) -> list[Owner]:
        """Everybody who thinks that he owns a partition and can tell its deadlines."""
        owners = [owner for worker in self.workers for owner in worker.owners.values()]
        return [owner for owner in [*owners, *self.zombies] if owner.ready]

    def look(self, key: bytes, partition: int) -> SessionState | Gravestone | None:
        """What the control API would show, where the owner answers."""
        owner = self.workers[self.assigned[partition]].owners.get(partition)
        return look(owner.fold, key) if owner is not None and owner.ready else None

    def move(self) -> None:
        """Give a partition to somebody; the former owner may not notice."""
        world = self.world
        partition = world.rng.randrange(len(self.assigned))
        former = self.workers[self.assigned[partition]]
        self.assigned[partition] = world.rng.randrange(len(self.workers))
        owner = former.owners.pop(partition, None)
        world.say("partition %d goes from %s to worker-%d", partition, former.name, self.assigned[partition])
        if owner is not None and owner.stage != "gone":
            world.mark("cluster: partition moved")
            if world.rng.random() < 0.6:
                self.zombies.append(owner)
        if world.rng.random() < 0.8:
            self.owner(partition)

    def wake_zombie(self) -> None:
        if not self.zombies:
            return
        owner = self.world.rng.choice(self.zombies)
        self.world.mark(f"zombie: goes on when {owner.stage}")
        for _ in range(self.world.rng.choice((1, 3, 9))):
            owner.step()
        if owner.stage == "gone":
            self.zombies.remove(owner)

    def crash(self) -> None:
        self.world.rng.choice(self.workers).crash()

    def work(self, steps: int, partition: int | None = None) -> None:
        """Let a rightful owner do a number of things."""
        owner = self.owner(self.world.rng.randrange(len(self.assigned)) if partition is None else partition)
        for _ in range(steps):
            if owner.caught_up or owner.stage == "gone":
                break
            owner.step()

    def finish(self) -> None:
        """Every partition caught up, by its rightful owner."""
        for partition in range(len(self.assigned)):
            for _ in range(10_000):
                owner = self.owner(partition)
                if owner.caught_up:
                    break
                owner.step()
            else:
                raise AssertionError(f"partition {partition} does not come to its end")


__all__ = ["Cluster", "Owner", "PartitionSettings", "Worker"]
