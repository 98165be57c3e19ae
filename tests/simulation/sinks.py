"""The audit sink with the product's plan, and a ClickHouse that drops blocks with known tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessionary.sinks.core.block_due import BlockLimits
from sessionary.sinks.core.intent import PartitionPlan
from sessionary.sinks.core.rows.shared import RawRecord
from tests.simulation.broker import Fenced

if TYPE_CHECKING:
    from sessionary.schemas.records import AuditRecord
    from tests.simulation.world import World

Place = tuple[int, int]


class ClickHouse:
    """Rows by partition and offset, as often as they were inserted."""

    def __init__(self) -> None:
        self.rows: list[tuple[Place, AuditRecord]] = []
        self._tokens: dict[str, list[Place]] = {}

    def insert(self, token: str, rows: list[tuple[Place, AuditRecord]]) -> bool:
        """Return False if the block is there already; one token for other rows is an error."""
        places = [place for place, _ in rows]
        if token in self._tokens:
            assert self._tokens[token] == places, f"token {token}: {places} after {self._tokens[token]}"
            return False
        self._tokens[token] = places
        self.rows.extend(rows)
        return True


class Sink:
    """One partition of one assignment."""

    def __init__(self, world: World, partition: int) -> None:
        self.world, self.partition = world, partition
        self.log = world.broker.audits[partition]
        self.generation = world.broker.join(partition)
        limits = BlockLimits(rows=world.rng.choice((1, 2, 5, 50)), bytes=1 << 30, seconds=world.rng.choice((0.5, 5.0)))
        committed, metadata = world.broker.groups[partition]
        self.plan = PartitionPlan(limits, committed, metadata)
        self.next = committed or 0
        self.fenced = False
        self.line: dict[int, AuditRecord] = {}
        if self.plan.is_replaying:
            world.mark("sink: replays a declared block")

    @property
    def idle(self) -> bool:
        return self.plan.in_flight is None and not self.plan.waiting_records and self.next >= self.log.end

    def step(self, *, flush: bool = False) -> None:
        """Fetch, or take the next step with the block in flight."""
        try:
            self._step(self.world.now_ms / 1_000, flush=flush)
        except Fenced:
            self.world.mark("sink: fenced")
            self.fenced = True

    def _step(self, now: float, *, flush: bool) -> None:
        plan = self.plan
        if plan.in_flight is None:
            if plan.is_due(now) or (
                flush and plan.waiting_records and not plan.is_replaying and self.next >= self.log.end
            ):
                plan.take_block(now, self.world.now_ms)
            elif self.next < self.log.end:
                self._fetch(now)
            elif (offset := plan.closing_commit()) is not None:
                self.world.broker.commit_offset(self.partition, self.generation, offset, "")
                self.world.mark("sink: closing commit")
                plan.mark_closed(offset)
        elif plan.in_flight.intent is not None:
            self._declare()
        else:
            self._insert()

    def _fetch(self, now: float) -> None:
        new = self.log.since(self.next)[: self.world.rng.choice((1, 3, 100))]
        for offset, line in new:
            self.line[offset] = line
            self.next = offset + 1
        records = [RawRecord("audit", self.partition, offset, self.world.now_ms, None, None) for offset, _ in new]
        self.plan.add_records(records, now, self.log.end)
        if not new or new[-1][0] == self.log.records[-1][0]:
            self.next = self.log.end
            self.plan.reached_end(self.log.end)

    def _declare(self) -> None:
        block = self.plan.in_flight
        assert block is not None
        assert block.intent is not None
        self.world.broker.commit_offset(self.partition, self.generation, block.first, block.intent.to_metadata())
        self.plan.mark_declared()

    def _insert(self) -> None:
        block, world = self.plan.in_flight, self.world
        assert block is not None
        if self.generation != world.broker.generations[self.partition]:
            world.mark("sink: a zombie inserts")
        rows = [((self.partition, record.offset), self.line[record.offset]) for record in block.records]
        if rows and not world.clickhouse.insert(block.insert_token("sink", "audit", self.partition), rows):
            world.mark("sink: block dropped as known")
        if world.rng.random() < 0.1 * world.trouble:
            world.mark("sink: inserted, answer lost")
            return  # the same block again
        self.plan.mark_written()

    @property
    def stage(self) -> str:
        block = self.plan.in_flight
        if block is None:
            return "gathering"
        return "taken" if block.intent is not None else "declared"


class SinkGroup:
    """The sinks of all partitions."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sinks: dict[int, Sink] = {}
        self.zombies: list[Sink] = []

    def sink(self, partition: int) -> Sink:
        sink = self.sinks.get(partition)
        if sink is None or sink.fenced:
            sink = self.sinks[partition] = Sink(self.world, partition)
        return sink

    def work(self, steps: int) -> None:
        sink = self.sink(self.world.rng.randrange(self.world.shape.partitions))
        for _ in range(steps):
            sink.step()

    def crash(self) -> None:
        """Lose a sink; a zombie goes on for a while and knows nothing of it."""
        partition = self.world.rng.randrange(self.world.shape.partitions)
        sink = self.sinks.pop(partition, None)
        if sink is None:
            return
        self.world.mark(f"crash: sink {sink.stage}")
        self.world.trace("the sink of partition %d dies or loses it (%s)", partition, sink.stage)
        if self.world.rng.random() < 0.4:
            self.zombies.append(sink)
            self.sink(partition)

    def wake_zombie(self) -> None:
        if self.zombies:
            sink = self.zombies[self.world.rng.randrange(len(self.zombies))]
            for _ in range(self.world.rng.choice((1, 4))):
                if not sink.fenced:
                    sink.step()
            if sink.fenced:
                self.zombies.remove(sink)

    def finish(self) -> None:
        """Everything in ClickHouse."""
        for partition in range(self.world.shape.partitions):
            for _ in range(10_000):
                sink = self.sink(partition)
                if sink.idle and sink.plan.closing_commit() is None:
                    break
                sink.step(flush=True)
            else:
                raise AssertionError(f"the sink of partition {partition} does not come to its end")
