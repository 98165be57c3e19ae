"""One schedule, in one thread: everything that happens in it follows from its seed.

world = World(seed)      clients, network, log, processors and sinks in memory, with a manual clock
world.run()              dozens of steps, each an action or a fault; then everything recovers
find_faults(world)       what is wrong with the result (checks.py)
"""

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from tests.core.oracle_rig import START_MS
from tests.simulation.adapter import JUDGE, ChunkSizes, Judge, PartitionSettings
from tests.simulation.agents import AgentPool
from tests.simulation.broker import Broker
from tests.simulation.clients import Sent
from tests.simulation.migrations import Movers
from tests.simulation.quotas import QuotaWorker
from tests.simulation.sinks import ClickHouse, SinkGroup
from tests.simulation.workers import Cluster
from tests.support.event_factory import TICK
from tests.support.signing import KEYS, with_signature

OUTAGE_MS, OUTAGE_GRACE_MS = 5_000, 25_000
WEEKS_MS = 15 * 86_400_000


class ScheduleShape(NamedTuple):
    """The size of a schedule. `calm`: the log's clock never leaps; a steady agent must survive.

    `renewed`: the rules that are asked for begin at once, if nothing goes wrong.
    """

    partitions: int
    workers: int
    sessions: int
    processes: int
    steps: int
    calm: bool
    renewed: bool
    extra: str


def draw_shape(rng: Random) -> ScheduleShape:
    chance = rng.random()
    return ScheduleShape(
        partitions=rng.choice((1, 1, 1, 2, 3)),
        workers=rng.choice((1, 2, 2, 3)),
        sessions=rng.randint(1, 3),
        processes=rng.randint(1, 4),
        steps=rng.choice((30, 45, 60, 90)),
        calm=rng.random() < 0.35,
        renewed=rng.random() < 0.4,
        extra="crowd" if chance < 0.015 else "large" if chance < 0.03 else "talk" if chance < 0.06 else "",
    )


class World:
    """All simulated parts. `seen` counts what happened; `lines` is the trace, if requested."""

    def __init__(self, seed: int, *, tracing: bool = False, judge: Judge = JUDGE) -> None:
        """`judge` folds the log; if it is another, agents also send bursts of messages."""
        self.seed, self.tracing, self.judge = seed, tracing, judge
        self.rng = rng = Random(seed)
        self.seen: Counter[str] = Counter()
        self.lines: list[str] = []
        self.now_ms = START_MS
        self.trouble = 1
        self.sent_records: list[Sent] = []
        self.ticked_ms = 0
        self.shape = draw_shape(rng)
        self.settings = PartitionSettings(
            "sessionary.events", self.shape.partitions, OUTAGE_MS, OUTAGE_GRACE_MS, keys=KEYS
        )
        self.broker = Broker(rng, Random(f"late ends {seed}"), self.shape.partitions, self.mark, judge)
        self.quotas = QuotaWorker(self)
        self.clickhouse = ClickHouse()
        self.cluster = Cluster(self, self.shape.workers)
        self.sinks = SinkGroup(self)
        self.agents = AgentPool(self)
        self.movers = Movers(self)
        self.acts, self.weights = self._acts()

    # Used by all parts

    def mark(self, what: str) -> None:
        self.seen[what] += 1
        if self.tracing:
            self.trace("· %s", what)

    def trace(self, text: str, *parts: object) -> None:
        """Add a line to the trace."""
        if self.tracing:
            self.lines.append(f"{(self.now_ms - START_MS) / 1_000:10.3f}  {text % parts}")

    def log(self, sent: Sent) -> None:
        """Append a client's record to the log; does nothing during an outage."""
        if not self.broker.up:
            return
        headers = () if sent.forged else with_signature(sent.key, sent.value)
        record = self.broker.append(sent.partition, sent.key, sent.value, self.now_ms, headers)
        self.sent_records.append(sent)
        self.trace(
            "log %d:%d at %.3f  %s", sent.partition, record.offset, self._logged_s(record.timestamp_ms), sent.what
        )

    def _logged_s(self, timestamp_ms: int) -> float:
        return (timestamp_ms - START_MS) / 1_000

    def pick_sent_record(self) -> Sent | None:
        """Pick a record that was sent before, mostly a recent one."""
        if not self.sent_records:
            return None
        return self.rng.choice(self.sent_records if self.rng.random() < 0.3 else self.sent_records[-20:])

    def draw_batch_limits(self) -> PartitionSettings:
        """Draw an owner's batch limits, mostly very small ones."""
        rng = self.rng
        records_max = rng.choice((1, 2, 3, 7, 50, 5_000))
        return self.settings._replace(
            records_max=records_max,
            chunk_sizes=ChunkSizes(1 + records_max % 2, 2) if records_max < 50 else ChunkSizes(),
            bytes_max=rng.choice((200, 1_000, 4_000, 8 << 20)),
            timers_max=rng.choice((1, 1, 2, 5_000)),
            output_bytes_max=rng.choice((1, 2_000, 16 << 20, 16 << 20)),
        )

    # Time

    def tick(self) -> None:
        """Let each owner of a partition with live sessions write a tick."""
        if not self.broker.up:
            return
        partitions = {
            owner.partition: None for owner in self.cluster.ready_owners() if owner.fold.next_deadline_ms is not None
        }
        for partition in partitions:
            self.log(Sent("tick", partition, None, TICK))
            self.sent_records.pop()

    def begin_rules(self) -> None:
        """Let owners write the record with which announced rules begin; clients may forge it."""
        partitions = {owner.partition for owner in self.cluster.ready_owners() if owner.fold.position.announced}
        if self.rng.random() < 0.2:
            forged = Sent("rules forged", self.rng.randrange(self.shape.partitions), None, self.quotas.activation)
            self.mark("rules: a client's record")
            self.log(forged._replace(forged=True))
        for partition in sorted(partitions) if self.broker.up else ():
            self.log(Sent("rules begin", partition, None, self.quotas.activation))
            self.sent_records.pop()

    def pass_ms(self, ms: int, slice_ms: int, *, ticks: bool = True) -> None:
        """Let time pass; steady agents send heartbeats, owners write ticks."""
        until = self.now_ms + ms
        while self.now_ms < until:
            self.now_ms = min(until, self.now_ms + slice_ms)
            first = self.rng.random() < 0.5
            if ticks and first:
                self.tick()
            for steady_sessions in self.agents.steady_sessions:
                steady_sessions.beat_if_due()
            if ticks and not first:
                self.tick()

    def pass_short_time(self) -> None:
        self.pass_ms(self.rng.choice((1, 10, 999, 4_999, 5_000, 5_001)), 5_001, ticks=self.rng.random() < 0.5)

    def pass_seconds(self) -> None:
        self.pass_ms(self.rng.choice((4_000, 9_000, 12_000, 30_000)), self.rng.choice((2_500, 4_999, 5_000)))

    def jump_to_deadline(self) -> None:
        """Move time to a deadline, 1 ms before or after it, mostly without an outage on the way."""
        owners = [owner for owner in self.cluster.ready_owners() if owner.fold.next_deadline_ms is not None]
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
        """Let time pass without any record."""
        self.mark("time: a silence")
        self.trace("silence of %d ms", ms)
        self.now_ms += ms
        self.pass_ms(1, 1)

    def pass_weeks(self) -> None:
        if self.rng.random() < 0.25:
            self.mark("time: weeks")
            self._silence(WEEKS_MS)

    def stop_broker(self) -> None:
        """Stop the broker for a while; the other parts go on."""
        self.mark("broker: outage")
        self.broker.up = False
        self.trace("the broker stops")
        for _ in range(self.rng.randint(0, 4)):
            self.step()
        self.pass_ms(self.rng.choice((3_000, 5_000, 8_000, 60_000)), 2_500)
        self.broker.up = True
        self.trace("the broker is back")

    def step_broker_clock(self) -> None:
        """Set the broker's clock back or ahead."""
        if self.rng.random() < 0.5:
            self.mark("log: clock set back")
            self.broker.skew_ms -= self.rng.choice((1, 1_000, 3_000, 20_000))
        elif not self.shape.calm:
            self.mark("log: clock leaps")
            self.broker.skew_ms += self.rng.choice((1, 4_999, 5_001, 60_000))
        self.trace("the broker's clock is off by %d ms", self.broker.skew_ms)

    # The schedule

    def _acts(self) -> tuple[Sequence[Callable[[], None]], Sequence[int]]:
        agents, cluster, sinks = self.agents, self.cluster, self.sinks
        table: list[tuple[int, Callable[[], None]]] = [
            (26, agents.send_sensible),
            (10, agents.start_session),
            (2, agents.pause_and_resume),
            (2, agents.step_in),
            (2, agents.ask_person),
            (4, agents.send_work),
            (16, agents.send_run_event),
            (10, agents.start_run),
            (14, agents.send_child_event),
            (5, agents.reserve_call),
            (3, agents.make_artifact),
            (6, agents.send_agent_events),
            (3, agents.fail_and_recover),
            (3, agents.send_any_type),
            (3, agents.send_invalid_envelope),
            (5, agents.confirm_release),
            (2, agents.send_as_other_service),
            (3, agents.take_over),
            (3, agents.lose_events),
            (3, agents.send_late),
            (5, agents.repeat_record),
            (2, agents.send_garbage),
            (6, agents.deliver_one),
            (3, agents.freeze_or_resume),
            (2, agents.crash_process),
            (30, self.processors_work),
            (4, cluster.crash),
            (4, cluster.move),
            (3, cluster.wake_zombie),
            (10, self.sinks_work),
            (3, sinks.crash),
            (2, sinks.wake_zombie),
            (6, self.tick),
            (1, cluster.request_rules),
            (2, self.begin_rules),
            (8, self.pass_short_time),
            (4, self.pass_seconds),
            (10, self.jump_to_deadline),
            (1, self.stop_broker),
            (1, self.step_broker_clock),
            (1, self.pass_weeks),
        ]
        if self.judge is not JUDGE:
            table.append((12, agents.send_messages))
        else:
            table.append((8 if self.shape.renewed else 1, cluster.repair_clock))
            table.append((1, cluster.skip_records))
        return [act for _, act in table], [weight for weight, _ in table]

    def processors_work(self) -> None:
        self.cluster.work(self.rng.choice((1, 2, 3, 5, 30, 30)))

    def sinks_work(self) -> None:
        self.sinks.work(self.rng.choice((1, 2, 6, 20)))

    def step(self) -> None:
        act = self.rng.choices(self.acts, self.weights)[0]
        if act != self.stop_broker or self.broker.up:
            act()
        self.quotas.step()
        self.movers.step()

    def run(self) -> None:
        """Do all steps; then stop all faults, deliver all queues and let everything catch up."""
        if self.shape.renewed:
            self.cluster.activate_rules()
        for n in range(self.shape.steps):
            self.step()
            if n == self.shape.steps // 2:
                self._extra()
        self.trace("no more faults")
        self.trouble = 0
        self.agents.deliver_all()
        self.movers.deliver_all()
        for _ in range(self.rng.randint(0, 4)):
            self.cluster.finish()
            self.jump_to_deadline()
        self.cluster.finish()
        self.quotas.finish()
        self.sinks.finish()

    def _extra(self) -> None:
        if self.shape.extra == "crowd":
            self.agents.join_many_producers()
        elif self.shape.extra == "large":
            self.agents.send_too_large_state()
        elif self.shape.extra == "talk":
            self.agents.hold_conversation()
