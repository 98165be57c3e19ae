"""A broker's clock leaps ahead and back, and no operator acts: is a live session timed out?

The fold is the processor's, and so are the limit on what may be folded and the repair that
follows. The rig's own time is the truth: a timeout is false if its limit had not passed when
the broker appended the record at which it fired.
"""

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import pytest
from confluent_kafka import Message

from sessionary.schemas.types import Limits
from sessionary.stream_processors.core.clock import believed_from
from sessionary.stream_processors.core.model import ClockSetting
from sessionary.stream_processors.errors import Halted
from sessionary.stream_processors.runtime.assignment import (
    HALT_RETRY_S,
    HALT_RETRY_S_MAX,
    find_own_repair,
    waits_for_repair,
)
from sessionary.stream_processors.runtime.decisions import BrokerTime
from sessionary.stream_processors.runtime.pending_records import group_by_partition
from sessionary.stream_processors.settings import ProcessorSettings
from tests.core.oracle_rig import START_MS, OracleRig
from tests.simulation.adapter import BatchResult, LogRecord, PartitionSettings, opened
from tests.support.event_factory import TICK, EventFactory

LOG_APPEND_TIME = 2
FETCHED_MAX = 1_000
SECOND_MS, DAY_MS = 1_000, 86_400_000
WORKER = ProcessorSettings()
AHEAD_MS_MAX = int(WORKER.clock_ahead_s_max * SECOND_MS)
BUDGET_MS = 45_000  # the shortest recommended one
BEAT_MS = 7_500  # a client's heartbeats come at least six times within the budget
IDLE_MS, WORK_MS = 120_000, 90_000
LIMITS = Limits(model_ms=30_000, tool_ms=10_000, network_ms=5_000, idle_ms=IDLE_MS)
LIMIT_MS = {"inactive": BUDGET_MS, "idle": IDLE_MS}
BEFORE_MS = 40_000  # from the sessions' start to the first leap


class Leap(NamedTuple):
    """The broker's clock is ahead by `ahead_ms`, from `begin_ms` to `end_ms` of the rig's time."""

    ahead_ms: int
    begin_ms: int
    end_ms: int


class Timeout(NamedTuple):
    """A timeout as the rig sees it: `early_ms` before its limit had truly passed."""

    agent: str
    reason_code: str
    early_ms: int


class Agent:
    """A session's agent that sends heartbeats, and now and then works."""

    def __init__(self, name: str, beat_ms: int = BEAT_MS, work_ms: int = WORK_MS) -> None:
        self.name, self.beat_ms, self.work_ms = name, beat_ms, work_ms
        self.events = EventFactory(name)
        self.beaten_ms = self.worked_ms = START_MS
        self.dies_ms: int | None = None

    def start(self) -> list[bytes]:
        """Return the events that make its session Active."""
        events = [self.events.event_bytes("session_created", limits=LIMITS)]
        events += [
            self.events.event_bytes("session_phase_changed", phase=name) for name in ("validating", "connecting")
        ]
        return [*events, self.events.event_bytes("session_started")]

    def due_events(self, now_ms: int) -> list[bytes]:
        if self.dies_ms is not None and now_ms >= self.dies_ms:
            return []
        found = []
        if now_ms - self.worked_ms >= self.work_ms:
            self.worked_ms = self.beaten_ms = now_ms
            found.append(self.events.event_bytes("session_activity"))
        elif now_ms - self.beaten_ms >= self.beat_ms:
            self.beaten_ms = now_ms
            found.append(self.events.event_bytes("heartbeat"))
        return found

    def silent_ms(self, reason_code: str, now_ms: int) -> int:
        """Return how long it has truly been silent, or without work."""
        return now_ms - (self.beaten_ms if reason_code == "inactive" else self.worked_ms)


class ClockRig:
    """One partition: agents, a broker whose clock leaps, a worker whose clock is right."""

    repairs_itself = True  # else only an operator sets a clock

    def __init__(self, leaps: Sequence[Leap], agents: Sequence[Agent], worker: ProcessorSettings = WORKER) -> None:
        self.leaps, self.agents, self.worker = leaps, agents, worker
        self.now_ms = START_MS
        self.settings = PartitionSettings("sessionary.events", 1, worker.outage_ms, worker.outage_grace_ms)
        self.fold = opened(0, self.settings, ())
        self.log: list[LogRecord] = []
        self.truth: list[dict[tuple[str, str], int]] = []  # for each record: true silence by agent and reason
        self.timeouts: list[Timeout] = []
        self.outcomes: list[BatchResult] = []
        self.halts: list[tuple[int, int]] = []  # when, and until when
        self.waiting: Halted | None = None  # for a repair
        self.pause_s, self.ticked_ms = HALT_RETRY_S, START_MS
        for agent in agents:
            for event in agent.start():
                self.append(agent.events.key.encoded(), event)
            agent.events.epoch = 1

    @property
    def is_halted(self) -> bool:
        return bool(self.halts) and self.now_ms < self.halts[-1][1]

    def append(self, key: bytes | None, value: bytes) -> None:
        skew_ms = sum(leap.ahead_ms for leap in self.leaps if leap.begin_ms <= self.now_ms < leap.end_ms)
        self.log.append(LogRecord(len(self.log), self.now_ms + skew_ms, key, value))
        self.truth.append(
            {(agent.name, code): agent.silent_ms(code, self.now_ms) for agent in self.agents for code in LIMIT_MS}
        )

    def run_until(self, until_ms: int, step_ms: int) -> None:
        while self.now_ms < until_ms:
            self.now_ms += step_ms
            for agent in self.agents:
                for event in agent.due_events(self.now_ms):
                    self.append(agent.events.key.encoded(), event)
            if self.is_halted or (self.waiting is not None and not self.repair_itself(self.waiting)):
                continue
            if self.fold.next_deadline_ms is not None and self.now_ms - self.ticked_ms >= SECOND_MS:
                self.ticked_ms = self.now_ms
                self.append(None, TICK)
            self.fold_pending()

    def fold_pending(self) -> None:
        """Fold what may be folded, and halt before the rest, as a worker does."""
        while not self.is_halted and self.fold.position.next_offset < len(self.log):
            begin = self.fold.position.next_offset
            messages = [
                Message(partition=0, offset=at, key=key, value=value, timestamp=(LOG_APPEND_TIME, stamp_ms))
                for at, stamp_ms, key, value, *_ in self.log[begin : begin + FETCHED_MAX]
            ]
            believed = {0: believed_from(self.fold.position.clock_repairs)}
            ahead_s_max = self.worker.clock_ahead_s_max
            [fetched] = group_by_partition(messages, self.now_ms / SECOND_MS, ahead_s_max, believed)
            if fetched.records:
                self.fold_records(fetched.records)
                self.pause_s = HALT_RETRY_S
            assert self.fold.position.clock_ms <= self.now_ms + self.worker.clock_ahead_s_max * SECOND_MS
            if fetched.fault is not None:
                self.halt(fetched.fault[0])

    def halt(self, fault: Halted) -> None:
        """Stop until the assignment would open the partition again."""
        assert fault.reason == "clock_ahead"
        assert fault.clears_in_s is not None
        if waits_for_repair(fault):
            self.waiting = fault
            self.halts.append((self.now_ms, self.now_ms + int(HALT_RETRY_S * SECOND_MS)))
            return
        pause_s = min(self.pause_s, max(HALT_RETRY_S, fault.clears_in_s))
        self.halts.append((self.now_ms, self.now_ms + int(pause_s * SECOND_MS)))
        self.pause_s = min(HALT_RETRY_S_MAX, 2 * self.pause_s)

    def repair_itself(self, fault: Halted) -> bool:
        """Set the clock if this is the time for it, as the assignment does; else wait on."""
        if not self.repairs_itself:
            return False
        offset = len(self.log)
        self.append(None, TICK)
        stamp_ms = self.log[offset].timestamp_ms
        broker = BrokerTime(offset, stamp_ms, (stamp_ms - self.now_ms) / SECOND_MS)
        if (setting := find_own_repair(fault, self.fold.position, broker)) is None:
            self.halt(fault)
            return False
        self.set_clock(setting)
        return True

    def set_clock(self, setting: ClockSetting) -> None:
        """Set the clock, and go on at once."""
        batch = self.fold.begin()
        batch.set_clock(setting)
        self.outcomes.append(batch.finish())
        self.fold.merge(batch)
        self.waiting = None
        if self.is_halted:
            self.halts[-1] = (self.halts[-1][0], self.now_ms)

    def fold_records(self, records: Sequence[LogRecord]) -> None:
        folded = 0
        while folded < len(records):
            batch = self.fold.begin()
            for record in records[folded:]:
                if not batch.apply(record):
                    break
                folded += 1
            outcome = batch.finish()
            self.fold.merge(batch)
            self.outcomes.append(outcome)
            for key, line in outcome.records_on("audit"):
                if line.reason_code in LIMIT_MS and line.due_at is not None:
                    name = next(agent.name for agent in self.agents if agent.events.key.encoded() == key)
                    silent_ms = self.truth[line.source_offset][name, line.reason_code]
                    self.timeouts.append(Timeout(name, line.reason_code, LIMIT_MS[line.reason_code] - silent_ms))


def play_leap(ahead_ms: int, lasts_ms: int, worker: ProcessorSettings = WORKER) -> ClockRig:
    """Let the broker's clock leap ahead and back, until the log's clock goes on, and longer.

    One agent works and lives, one dies just before the leap; a third one sends something every
    second, so that the log has no outage, not even while its partition is halted.
    """
    begin_ms = START_MS + BEFORE_MS
    dies = Agent("dies")
    dies.dies_ms = begin_ms - 3 * SECOND_MS
    agents = [Agent("lives"), dies, Agent("dense", beat_ms=SECOND_MS, work_ms=SECOND_MS)]
    rig = ClockRig([Leap(ahead_ms, begin_ms, begin_ms + lasts_ms)], agents, worker)
    rig.run_until(begin_ms + lasts_ms + 90 * SECOND_MS, 500)
    back_ms = begin_ms
    if not rig.halts:
        back_ms = begin_ms + ahead_ms
        rig.run_until(back_ms - AHEAD_MS_MAX, max(5 * SECOND_MS, ahead_ms // 2_000))
    rig.run_until(back_ms + lasts_ms + 200 * SECOND_MS, 500)
    assert rig.fold.position.next_offset == len(rig.log)
    return rig


def false_timeouts(rig: ClockRig) -> list[Timeout]:
    """Return the timeouts of agents that live."""
    return [timeout for timeout in rig.timeouts if timeout.agent != "dies"]


LEAPS_MS = (1_000, 4_900, 5_001, 20_000, 50_000, 60_000, 61_000, 600_000)


@pytest.mark.parametrize("lasts_ms", [500, 20_000])
@pytest.mark.parametrize("ahead_ms", [*LEAPS_MS, DAY_MS])
def test_a_leap_that_ends_before_the_outage_grace_makes_no_false_timeout(ahead_ms: int, lasts_ms: int) -> None:
    rig = play_leap(ahead_ms, lasts_ms)
    assert false_timeouts(rig) == []
    [noticed] = rig.timeouts
    assert (noticed.agent, noticed.reason_code) == ("dies", "inactive")
    assert noticed.early_ms <= (ahead_ms if ahead_ms <= WORKER.outage_ms else 0)
    assert bool(rig.halts) == (ahead_ms > AHEAD_MS_MAX)


@pytest.mark.parametrize("ahead_ms", [*LEAPS_MS, DAY_MS])
def test_an_agent_that_sends_heartbeats_survives_a_leap_however_long_it_lasts(ahead_ms: int) -> None:
    for lasts_ms in (26_000, 60_000, 120_000):
        rig = play_leap(ahead_ms, lasts_ms)
        assert [timeout for timeout in false_timeouts(rig) if timeout.reason_code == "inactive"] == []
        assert ("dies", "inactive") in {timeout[:2] for timeout in rig.timeouts}


@pytest.mark.parametrize("lasts_ms", [60_000, 120_000])
@pytest.mark.parametrize("ahead_ms", [60_000, 61_000, 600_000, DAY_MS])
def test_a_leap_that_outlasts_the_outage_grace_makes_no_false_timeout(ahead_ms: int, lasts_ms: int) -> None:
    rig = play_leap(ahead_ms, lasts_ms)
    assert false_timeouts(rig) == []
    assert len(rig.fold.position.clock_repairs) == (ahead_ms > AHEAD_MS_MAX)


@pytest.mark.parametrize("ahead_s_max", [60.0, 100_000.0])
@pytest.mark.parametrize("ahead_ms", [60_000, 600_000, DAY_MS])
def test_with_a_longer_outage_grace_it_makes_no_false_timeout(ahead_ms: int, ahead_s_max: float) -> None:
    worker = ProcessorSettings(outage_grace_ms=WORKER.outage_grace_ms + 60_000, clock_ahead_s_max=ahead_s_max)
    rig = play_leap(ahead_ms, 60_000, worker)
    assert false_timeouts(rig) == []
    assert bool(rig.halts) == (ahead_ms > ahead_s_max * SECOND_MS)


@pytest.mark.parametrize("seed", range(12))
def test_heartbeats_survive_a_clock_that_leaps_again_and_again(seed: int) -> None:
    rng, leaps, at_ms = Random(seed), list[Leap](), START_MS + BEFORE_MS
    for _ in range(12):
        lasts_ms = rng.choice((500, 3_000, 20_000, 40_000))
        ahead_ms = rng.choice((rng.randint(1, 5_000), rng.randint(5_001, 60_000), rng.randint(60_001, 300_000)))
        leaps.append(Leap(ahead_ms, at_ms, at_ms + lasts_ms))
        at_ms += lasts_ms + rng.choice((10_000, 30_000, 90_000))
    rig = ClockRig(leaps, [Agent("lives"), Agent("dense", beat_ms=SECOND_MS, work_ms=SECOND_MS)])
    rig.run_until(at_ms + 400_000, 500)
    assert rig.fold.position.next_offset == len(rig.log)
    assert [timeout for timeout in rig.timeouts if timeout.reason_code == "inactive"] == []
    assert rig.halts


class LeapingLog:
    """A session, and a log whose clock may leap a day ahead for one record."""

    def __init__(self) -> None:
        self.rig, self.agent = OracleRig(), EventFactory()
        self.rig.start(self.agent, limits=LIMITS)

    def leap(self) -> None:
        self.rig.at += DAY_MS
        self.rig.tick()
        self.rig.at -= DAY_MS - SECOND_MS


def test_a_leap_past_the_maximum_duration_rejects_a_resume_in_the_grace_period() -> None:
    for has_leapt in (False, True):
        log = LeapingLog()
        assert log.rig.advance(BUDGET_MS) == ["T06 inactive"]
        if has_leapt:
            log.leap()
        expected = "rejected max_duration_exceeded" if has_leapt else "applied"
        assert log.rig.send(log.agent, "session_resumed") == expected


def test_a_pause_after_a_leap_takes_the_leap_off_the_maximum_duration() -> None:
    log = LeapingLog()
    left_ms = log.rig.row_of(log.agent).max_due_at
    assert left_ms is not None
    assert left_ms - log.rig.at > 7 * 3_600_000
    log.leap()
    assert log.rig.send(log.agent, "session_paused") == "applied"
    assert log.rig.row_of(log.agent).max_due_at == 0, "what is left of it"
