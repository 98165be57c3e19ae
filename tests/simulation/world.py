"""One schedule: everything that happens in it follows from its seed, in one thread.

world = World(seed)      clients, network, log, processors, sinks, all in memory; one clock that is moved by hand
world.run()              some dozens of steps, each an act or a fault; then everything heals and comes to its end
faults(world)            what is wrong with the result (checks.py)
"""

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from tests.core.court import START_MS
from tests.simulation.adapter import PartitionSettings
from tests.simulation.agents import Crowd
from tests.simulation.broker import Broker
from tests.simulation.clients import Sent
from tests.simulation.sinks import ClickHouse, SinkGroup
from tests.simulation.workers import Cluster
from tests.support.scribe import TICK

HOLE_MS, QUIET_MS = 5_000, 25_000
WEEKS_MS = 15 * 86_400_000


class Shape(NamedTuple):
    """What a schedule is made of. `calm`: the log's clock does not leap, so that a steady agent must survive."""

    partitions: int
    workers: int
    sessions: int
    processes: int
    steps: int
    calm: bool
    extra: str


def drawn_shape(rng: Random) -> Shape:
    chance = rng.random()
    return Shape(
        partitions=rng.choice((1, 1, 1, 2, 3)),
        workers=rng.choice((1, 2, 2, 3)),
        sessions=rng.randint(1, 3),
        processes=rng.randint(1, 4),
        steps=rng.choice((30, 45, 60, 90)),
        calm=rng.random() < 0.35,
        extra="crowd" if chance < 0.015 else "large" if chance < 0.03 else "",
    )


class World:
    """Everything there is. `seen` counts what happened; `lines` is the trace, where one is wanted."""

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        self.seed, self.tracing = seed, tracing
        self.rng = rng = Random(seed)
        self.seen: Counter[str] = Counter()
        self.lines: list[str] = []
        self.now_ms = START_MS
        self.trouble = 1
        self.former: list[Sent] = []
        self.ticked_ms = 0
        self.shape = drawn_shape(rng)
        self.settings = PartitionSettings("sessionary.events", self.shape.partitions, HOLE_MS, QUIET_MS)
        self.broker = Broker(rng, self.shape.partitions, self.mark)
        self.clickhouse = ClickHouse()
        self.cluster = Cluster(self, self.shape.workers)
        self.sinks = SinkGroup(self)
        self.crowd = Crowd(self)
        self.acts, self.weights = self._acts()

    # What everybody uses

    def mark(self, what: str) -> None:
        self.seen[what] += 1
        if self.tracing:
            self.say("· %s", what)

    def say(self, text: str, *parts: object) -> None:
        """A line of the trace."""
        if self.tracing:
            self.lines.append(f"{(self.now_ms - START_MS) / 1_000:10.3f}  {text % parts}")

    def log(self, sent: Sent) -> None:
        """Append a record of a client."""
        if not self.broker.up:
            return
        record = self.broker.append(sent.partition, sent.key, sent.value, self.now_ms)
        self.former.append(sent)
        self.say("log %d:%d at %.3f  %s", sent.partition, record.offset, self._logged_s(record.timestamp_ms), sent.what)

    def _logged_s(self, timestamp_ms: int) -> float:
        return (timestamp_ms - START_MS) / 1_000

    def some_former(self) -> Sent | None:
        """A record that was sent before, mostly of late."""
        if not self.former:
            return None
        return self.rng.choice(self.former if self.rng.random() < 0.3 else self.former[-20:])

    def drawn_settings(self) -> PartitionSettings:
        """Bounds of a batch: each owner has others, mostly far too small."""
        rng = self.rng
        return self.settings._replace(
            records_max=rng.choice((1, 2, 3, 7, 50, 5_000)),
            bytes_max=rng.choice((200, 1_000, 4_000, 8 << 20)),
            timers_max=rng.choice((1, 1, 2, 5_000)),
        )

    # Time

    def tick(self) -> None:
        """Each who owns a partition in which somebody lives lets its clock move."""
        if not self.broker.up:
            return
        partitions = {
            owner.partition: None for owner in self.cluster.standing() if owner.fold.next_deadline_ms is not None
        }
        for partition in partitions:
            self.log(Sent("tick", partition, None, TICK))
            self.former.pop()

    def pass_ms(self, ms: int, slice_ms: int, *, ticks: bool = True) -> None:
        """Let time pass; steady agents beat, owners tick."""
        until = self.now_ms + ms
        while self.now_ms < until:
            self.now_ms = min(until, self.now_ms + slice_ms)
            first = self.rng.random() < 0.5
            if ticks and first:
                self.tick()
            for attended in self.crowd.attended:
                attended.live()
            if ticks and not first:
                self.tick()

    def short_while(self) -> None:
        self.pass_ms(self.rng.choice((1, 10, 999, 4_999, 5_000, 5_001)), 5_001, ticks=self.rng.random() < 0.5)

    def some_seconds(self) -> None:
        self.pass_ms(self.rng.choice((4_000, 9_000, 12_000, 30_000)), self.rng.choice((2_500, 4_999, 5_000)))

    def to_a_deadline(self) -> None:
        """Time lands on a deadline of somebody, one before or one after; without a hole on the way, mostly."""
        owners = [owner for owner in self.cluster.standing() if owner.fold.next_deadline_ms is not None]
        if not owners:
            return
        due = self.rng.choice(owners).fold.next_deadline_ms
        assert due is not None
        target = due + self.rng.choice((-1, 0, 1)) - self.broker.skew_ms
        ms = target - self.now_ms
        if 0 < ms <= 60_000 and self.rng.random() < 0.9:
            self.pass_ms(ms, self.rng.choice((4_999, 5_000)))
        elif ms > 0:
            self._silence(ms)
        if self.rng.random() < 0.7:
            self.tick()

    def _silence(self, ms: int) -> None:
        """Nobody is heard: an outage of the broker, or of everybody else."""
        self.mark("time: a silence")
        self.say("silence of %d ms", ms)
        self.now_ms += ms
        self.pass_ms(1, 1)

    def weeks(self) -> None:
        if self.rng.random() < 0.25:
            self.mark("time: weeks")
            self._silence(WEEKS_MS)

    def outage(self) -> None:
        """The broker is away; everybody else goes on and gets nowhere."""
        self.mark("broker: outage")
        self.broker.up = False
        self.say("the broker goes away")
        for _ in range(self.rng.randint(0, 4)):
            self.step()
        self.pass_ms(self.rng.choice((3_000, 5_000, 8_000, 60_000)), 2_500)
        self.broker.up = True
        self.say("the broker is back")

    def clock_step(self) -> None:
        """The broker's clock is set: back, or ahead."""
        if self.rng.random() < 0.5:
            self.mark("log: clock set back")
            self.broker.skew_ms -= self.rng.choice((1, 1_000, 3_000, 20_000))
        elif not self.shape.calm:
            self.mark("log: clock leaps")
            self.broker.skew_ms += self.rng.choice((1, 4_999, 5_001, 60_000))
        self.say("the broker's clock is off by %d ms", self.broker.skew_ms)

    # The schedule

    def _acts(self) -> tuple[Sequence[Callable[[], None]], Sequence[int]]:
        crowd, cluster, sinks = self.crowd, self.cluster, self.sinks
        table: list[tuple[int, Callable[[], None]]] = [
            (26, crowd.sense),
            (10, crowd.begin),
            (2, crowd.hold),
            (4, crowd.work),
            (2, crowd.stumble),
            (3, crowd.nonsense),
            (3, crowd.bent),
            (5, crowd.released),
            (2, crowd.foreign),
            (3, crowd.loses),
            (3, crowd.straggles),
            (5, crowd.repeats),
            (2, crowd.rubbish),
            (6, crowd.deliver),
            (3, crowd.freeze),
            (2, crowd.crash),
            (30, self.processors_work),
            (4, cluster.crash),
            (4, cluster.move),
            (3, cluster.wake_zombie),
            (10, self.sinks_work),
            (3, sinks.crash),
            (2, sinks.wake_zombie),
            (6, self.tick),
            (8, self.short_while),
            (4, self.some_seconds),
            (10, self.to_a_deadline),
            (1, self.outage),
            (1, self.clock_step),
            (1, self.weeks),
        ]
        return [act for _, act in table], [weight for weight, _ in table]

    def processors_work(self) -> None:
        self.cluster.work(self.rng.choice((1, 2, 3, 5, 30, 30)))

    def sinks_work(self) -> None:
        self.sinks.work(self.rng.choice((1, 2, 6, 20)))

    def step(self) -> None:
        act = self.rng.choices(self.acts, self.weights)[0]
        if act != self.outage or self.broker.up:
            act()

    def run(self) -> None:
        """All steps, then healing: what is queued goes out, time passes, everybody comes to the log's end."""
        for n in range(self.shape.steps):
            self.step()
            if n == self.shape.steps // 2:
                self._extra()
        self.say("no more trouble")
        self.trouble = 0
        self.crowd.drain()
        for _ in range(self.rng.randint(0, 4)):
            self.cluster.finish()
            self.to_a_deadline()
        self.cluster.finish()
        self.sinks.finish()

    def _extra(self) -> None:
        if self.shape.extra == "crowd":
            self.crowd.everybody_joins()
        elif self.shape.extra == "large":
            self.crowd.grows_too_large()


__all__ = ["HOLE_MS", "QUIET_MS", "Shape", "World"]
