"""Simulated processors: open, fold, write, commit, merge; they may crash between any two steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from tests.simulation.adapter import (
    BatchResult,
    ClockSetting,
    EndWatch,
    PartitionSettings,
    RulesRequest,
    Stored,
    UncommittedBatch,
    announcement,
    clock_repair,
    log_end_answer,
    look,
    opened,
    row_classes,
    skip,
)
from tests.simulation.broker import Fenced
from tests.support.event_factory import TICK

if TYPE_CHECKING:
    from sessionary.schemas.records import SessionState, Tombstone
    from tests.simulation.world import World

_UNKNOWN = -1  # where the changelog ends behind the owner's last commit
Stage = Literal["fenced", "open", "begun", "finished", "written", "committed", "gone"]


class Owner:
    """One worker's ownership of a partition, until it crashes or is fenced."""

    def __init__(self, world: World, worker: Worker, partition: int) -> None:
        self.world, self.worker, self.partition = world, worker, partition
        self.stage: Stage = "fenced"
        self._renew_producer()
        self.settings = world.draw_batch_limits()
        self.batch: UncommittedBatch | None = None
        self.outcome: BatchResult | None = None
        self.index, self.saved = 0, _UNKNOWN
        self.request: RulesRequest | None = None
        self.setting: ClockSetting | None = None  # tried once, as by an owner that opens
        self.skips = 0  # how many records an operator wants left unfolded; tried once
        world.trace("%s takes partition %d, epoch %d", worker.name, partition, self.epoch)

    @property
    def ready(self) -> bool:
        return self.stage not in ("fenced", "gone")

    @property
    def caught_up(self) -> bool:
        log = self.world.broker.events[self.partition]
        return self.stage == "open" and (not log or self.fold.position.next_offset > log[-1].offset)

    def step(self) -> None:
        """Do the next step. A fenced owner is gone."""
        world = self.world
        if not world.broker.up and self.stage not in ("open", "begun"):
            return  # these steps need the broker
        try:
            getattr(self, f"_leave_{self.stage}")()
        except Fenced:
            world.mark("owner: fenced")
            world.trace("%s is fenced from partition %d", self.worker.name, self.partition)
            self.stage = "gone"

    def _leave_fenced(self) -> None:
        """Recover from the changelog, whole or compacted, or from the own store and its rest."""
        records = self.worker.recovery_records(self.partition)
        self.fold = opened(self.partition, self.settings, records, self.world.judge)
        self.saved = _UNKNOWN
        for name in sorted(row_classes(self.fold)):
            self.world.mark(f"recovery: of a {name}")
        self.stage = "open"

    def _leave_open(self) -> None:
        self.batch = announcement(self.fold, self.request)
        if self.batch is not None:
            self.world.mark("rules: announced")
            self.world.trace("%s announces rules in partition %d", self.worker.name, self.partition)
            self.outcome, self.stage = self.batch.finish(), "finished"
            return
        setting, self.setting = self.setting, None
        self.batch = clock_repair(self.fold, setting)
        if self.batch is not None:
            self.world.trace("%s sets the clock of partition %d: %s", self.worker.name, self.partition, setting)
            self.outcome, self.stage = self.batch.finish(), "finished"
            return
        self.batch = self._skip()
        if self.batch is not None:
            self.world.trace("%s skips in partition %d", self.worker.name, self.partition)
            self.outcome, self.stage = self.batch.finish(), "finished"
            return
        if self.caught_up:
            return
        self.batch = self.fold.begin()
        self.index = self.world.broker.from_offset(self.partition, self.fold.position.next_offset)
        self.stage = "begun"

    def _skip(self) -> UncommittedBatch | None:
        """Return a batch that skips what an operator wants skipped, None if there is nothing.

        Records of a steady agent are never skipped: its session would time out.
        """
        (skips, self.skips), world, position = (self.skips, 0), self.world, self.fold.position
        first = world.broker.from_offset(self.partition, position.next_offset)
        records = world.broker.events[self.partition][first : first + skips]
        if not records or {record.key for record in records} & world.agents.steady_keys:
            return None
        clock_ms = max(position.clock_ms, records[-1].timestamp_ms)
        if world.rng.random() < 0.5:
            clock_ms = position.clock_ms  # the records are known by their leader epoch
        return skip(self.fold, records, clock_ms)

    def _leave_begun(self) -> None:
        """Fold a few records; then, or if the batch is full, finish it."""
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
        if self.batch.records >= self.settings.records_max:
            full = "records"
        elif outcome.counts.timers >= self.settings.timers_max:
            full = "timers"
        else:
            full = "output" if self.batch.is_output_full else "bytes"
        self.world.mark(f"batch: full by {full}")

    def _leave_finished(self) -> None:
        assert self.outcome is not None
        if self.ends.doubt is not None:
            self._renew_producer()
            if self.saved != len(self.world.broker.changelogs[self.partition]):
                self.world.mark("transaction: none begun, the last end is in doubt")
                self.stage = "fenced"
                return
            self.world.mark("transaction: begun by a new producer")
        self.ends.begin()
        self.world.broker.write(self.partition, self.epoch, self.outcome)
        self.stage = "written"

    def _leave_written(self) -> None:
        """Commit; it may be rejected, or its answer lost: then the owner reopens the partition."""
        world, chance = self.world, self.world.rng.random()
        if chance < 0.04 * world.trouble:
            self._end(commits=False)
            self.ends.abort()
            self.saved = _UNKNOWN  # the marker is behind it
            world.mark("transaction: aborted, folded again")
            self.stage = "open"
            return
        self._end(commits=True, is_repeated=chance > 0.07 and chance < 0.1 * world.trouble)
        if chance < 0.07 * world.trouble:
            world.mark("transaction: committed, answer lost")
            self.stage = "fenced"
            self._renew_producer()
            return
        self.stage, self.saved = "committed", len(world.broker.changelogs[self.partition])

    def _renew_producer(self) -> None:
        self.epoch, self.ends = self.world.broker.fence(self.partition), EndWatch()

    def _end(self, *, commits: bool, is_repeated: bool = False) -> None:
        """End the transaction. If an answer is lost, the driver repeats the request.

        The broker may get the first one at once, or late.
        """
        broker, partition, epoch = self.world.broker, self.partition, self.epoch
        if is_repeated:
            broker.end(partition, epoch, commits=commits)
            log_end_answer(self.ends, "_TRANSPORT")
        elif broker.delay_end(partition, epoch, commits=commits, trouble=self.world.trouble):
            log_end_answer(self.ends, "_TRANSPORT")
        broker.end(partition, epoch, commits=commits)
        log_end_answer(self.ends, "NO_ERROR")

    def _leave_committed(self) -> None:
        assert self.batch is not None
        before, former_ms = self.fold.position.rules, self.fold.position.clock_ms
        repairs = self.fold.position.clock_repairs
        self.fold.merge(self.batch)
        if self.fold.position.rules != before:
            self.world.mark("rules: in force")
        if self.fold.position.clock_repairs != repairs:
            self.world.mark(f"clock: set {'back' if self.fold.position.clock_ms < former_ms else 'ahead'}")
        self.stage = "open"
        if self.world.rng.random() < 0.3:
            self.worker.save_store(self.partition, self.saved)

    def _leave_gone(self) -> None:
        return


class Worker:
    """A processor; `stores` is its disk: by partition, changelog offset and rows by key."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.owners: dict[int, Owner] = {}
        self.stores: dict[int, tuple[int, dict[bytes, bytes]]] = {}

    def save_store(self, partition: int, committed: int) -> None:
        """Save the committed rows; the store may lag behind the changelog, but is never ahead."""
        self.stores[partition] = committed, compact_records(self.world.broker.changelogs[partition][:committed])

    def recovery_records(self, partition: int) -> list[Stored]:
        """Return the records that a recovery reads."""
        world, changelog = self.world, self.world.broker.changelogs[partition]
        if partition in self.stores and world.rng.random() < 0.6:
            world.mark("recovery: own store and the rest")
            saved, rows = self.stores[partition]
            return [*rows.items(), *changelog[saved:]]
        if world.rng.random() < 0.5:
            world.mark("recovery: compacted changelog")
            return list(compact_records(changelog).items())
        world.mark("recovery: whole changelog")
        return changelog

    def crash(self) -> None:
        """Lose everything except the disk."""
        for owner in self.owners.values():
            if owner.stage != "gone":
                self.world.mark(f"crash: processor {owner.stage}")
                if owner.ready and owner.fold.position.announced is not None:
                    self.world.mark("rules: crash after the announcement")
        self.world.trace("%s crashes (%s)", self.name, [(o.partition, o.stage) for o in self.owners.values()])
        self.owners.clear()


def compact_records(changelog: list[Stored]) -> dict[bytes, bytes]:
    """Return the last value of each key."""
    last = dict(changelog)
    return {key: value for key, value in last.items() if value is not None}


class Cluster:
    """Which worker owns which partition, and the zombies that still believe to own one."""

    def __init__(self, world: World, workers: int) -> None:
        self.world = world
        self.workers = [Worker(world, f"worker-{n}") for n in range(workers)]
        self.assigned = [world.rng.randrange(workers) for _ in range(world.shape.partitions)]
        self.zombies: list[Owner] = []

    def owner(self, partition: int) -> Owner:
        """Return the assigned owner; open the partition if there is none."""
        worker = self.workers[self.assigned[partition]]
        owner = worker.owners.get(partition)
        if owner is None or owner.stage == "gone":
            owner = worker.owners[partition] = Owner(self.world, worker, partition)
        return owner

    def ready_owners(self) -> list[Owner]:
        """Return all open owners, zombies included."""
        owners = [owner for worker in self.workers for owner in worker.owners.values()]
        return [owner for owner in [*owners, *self.zombies] if owner.ready]

    def look(self, key: bytes, partition: int) -> SessionState | Tombstone | None:
        """Return what the control API would answer; None if the owner is not ready."""
        owner = self.workers[self.assigned[partition]].owners.get(partition)
        return look(owner.fold, key) if owner is not None and owner.ready else None

    def move(self) -> None:
        """Reassign a partition; the former owner may not notice."""
        world = self.world
        partition = world.rng.randrange(len(self.assigned))
        former = self.workers[self.assigned[partition]]
        self.assigned[partition] = world.rng.randrange(len(self.workers))
        owner = former.owners.pop(partition, None)
        world.trace("partition %d goes from %s to worker-%d", partition, former.name, self.assigned[partition])
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

    def request_rules(self) -> None:
        """Ask an owner to announce rules; a zombie may be asked too."""
        if owners := self.ready_owners():
            owner = self.world.rng.choice(owners)
            owner.request = self.world.quotas.request
            for _ in range(self.world.rng.choice((0, 1, 3, 4))):
                owner.step()

    def activate_rules(self) -> None:
        """Let the rules that are asked for begin in all partitions."""
        for partition in range(len(self.assigned)):
            self.world.broker.append(partition, None, TICK, self.world.now_ms)  # without a time, none can begin
            self.work(9, partition)
            owner = self.owner(partition)
            owner.request = self.world.quotas.request
            for _ in range(4):
                owner.step()
        self.world.begin_rules()

    def repair_clock(self) -> None:
        """Ask an owner to set its partition's clock to the broker's; a zombie may be asked too.

        Often the broker's clock leaps before, and is corrected.
        """
        world, owners = self.world, self.ready_owners()
        if not owners or not world.broker.up:
            return
        if not world.shape.calm and world.rng.random() < 0.6:
            leap_ms = world.rng.choice((1, 5_001, 60_000, 600_000))
            world.broker.skew_ms += leap_ms
            for _ in range(world.rng.choice((1, 4, 9))):
                world.step()
            self.work(world.rng.choice((0, 9)))
            world.broker.skew_ms -= leap_ms
        owner = world.rng.choice(owners)
        tick = world.broker.append(owner.partition, None, TICK, world.now_ms)
        world.trace("log %d:%d  tick by which the clock is set", owner.partition, tick.offset)
        owner.setting = ClockSetting(tick.timestamp_ms, tick.offset, "it leapt", "on-call")
        for _ in range(world.rng.choice((0, 1, 3, 4))):
            owner.step()

    def skip_records(self) -> None:
        """Ask an owner to leave its next records unfolded; a zombie may be asked too.

        If the owner is at the end of the log, it may go on behind offsets that have no record.
        """
        world, owners = self.world, self.ready_owners()
        if not owners:
            return
        owner = world.rng.choice(owners)
        if owner.caught_up and world.broker.up and world.rng.random() < 0.5:
            world.broker.leave_gap(owner.partition)
            world.broker.append(owner.partition, None, TICK, world.now_ms)
        owner.skips = world.rng.choice((1, 1, 2, 3))
        for _ in range(world.rng.choice((0, 1, 3, 4))):
            owner.step()

    def work(self, steps: int, partition: int | None = None) -> None:
        """Let an assigned owner do up to `steps` steps."""
        owner = self.owner(self.world.rng.randrange(len(self.assigned)) if partition is None else partition)
        for _ in range(steps):
            if owner.caught_up or owner.stage == "gone":
                break
            owner.step()

    def finish(self) -> None:
        """Let each assigned owner catch up with the log."""
        for partition in range(len(self.assigned)):
            for _ in range(10_000):
                owner = self.owner(partition)
                if owner.caught_up:
                    break
                owner.step()
            else:
                raise AssertionError(f"partition {partition} does not reach the log's end")


__all__ = ["Cluster", "Owner", "PartitionSettings", "Worker"]
