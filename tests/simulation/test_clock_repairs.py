"""A broker's clock leaps ahead and back, and the partition's clock is repaired.

An operator has it repaired, or the processor does it by itself once the broker's clock is right.

Every clock of a session is looked at. What is true is the rig's own time: a timeout is false if its
limit had not passed between the records that began and ended it, as the broker truly appended them.
"""

import re
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest

from sessionary.schemas.codec import Decoder
from sessionary.schemas.records import AuditRecord
from sessionary.schemas.types import Limits
from sessionary.stream_processors.core.model import ClockSetting
from sessionary.stream_processors.runtime.assignment import HALT_RETRY_S, PRINCIPAL
from sessionary.stream_processors.settings import ProcessorSettings
from tests.auditor.decoding import LogEntry, decisions_of
from tests.auditor.oracle import find_differences, replay_log
from tests.core.oracle_rig import FIRST_POSITION, START_MS
from tests.integration.refold import set_clock_again
from tests.simulation.adapter import opened
from tests.simulation.test_clock_leaps import (
    BEAT_MS,
    BEFORE_MS,
    DAY_MS,
    SECOND_MS,
    WORKER,
    Agent,
    ClockRig,
    Leap,
)
from tests.support.event_factory import TICK, snapshot_id

LIMITS = Limits(
    model_ms=30_000,
    tool_ms=10_000,
    network_ms=5_000,
    init_ms=60_000,
    idle_ms=120_000,
    max_duration_ms=240_000,
    grace_ms=100_000,
    hold_ms=150_000,
    recovery_ms=90_000,
    override=True,
)
LIMIT_MS = {
    "init_timeout": 60_000,
    "inactive": 45_000,
    "idle": 120_000,
    "max_duration": 240_000,
    "recovery_failed": 90_000,
}
IN_STATE_MS = {"Timeout": 100_000, "Paused": 150_000}  # the reason is timeout_cleanup in both
BEGIN_MS = START_MS + BEFORE_MS


class Scripted(Agent):
    """Sends events at given times (ms from the leap's begin on), and heartbeats until it dies."""

    def __init__(self, name: str, script: Sequence[tuple[int, str]] = (), dies_ms: int | None = None) -> None:
        super().__init__(name, BEAT_MS)
        self.script, self.dies_ms = list(script), None if dies_ms is None else BEGIN_MS + dies_ms

    def start(self) -> list[bytes]:
        created = self.events.event_bytes("session_created", limits=LIMITS)
        self.events.head = snapshot_id("first")
        if self.name == "starts":
            return [created]
        phases = [self.events.event_bytes("session_phase_changed", phase=name) for name in ("validating", "connecting")]
        return [created, *phases, self.events.event_bytes("session_started")]

    def due_events(self, now_ms: int) -> list[bytes]:
        found = [] if self.name == "starts" else super().due_events(now_ms)
        while self.script and now_ms >= BEGIN_MS + self.script[0][0]:
            found.append(self.events.event_bytes(self.script.pop(0)[1]))
            self.beaten_ms = self.worked_ms = now_ms
            self.events.epoch += event_raises_epoch(found[-1])
        return found


def event_raises_epoch(event: bytes) -> int:
    """Return 1 if an event that is applied raises its session's epoch."""
    decoded: Any = Decoder().decode_event(event)
    return int(decoded.envelope.event_type == "session_resumed")


class RepairRig(ClockRig):
    """A rig whose operator repairs the clock so long after the leap's end.

    With None there is no operator, so the processor does it by itself.
    """

    def __init__(
        self, leap: Leap, agents: Sequence[Agent], repair_after_ms: int | None, worker: ProcessorSettings
    ) -> None:
        self.true_ms: list[int] = []
        self.repairs_itself = repair_after_ms is None
        self.repair_ms = leap.end_ms + (repair_after_ms or 0)  # when an operator does it; else from then on
        super().__init__([leap], agents, worker)

    def append(self, key: bytes | None, value: bytes) -> None:
        super().append(key, value)
        self.true_ms.append(self.now_ms)

    def repair(self) -> None:
        """Do what the control API does, and go on at once."""
        offset = len(self.log)
        self.append(None, TICK)
        self.set_clock(ClockSetting(self.log[offset].timestamp_ms, offset, "it leapt", "on-call"))

    def run_until(self, until_ms: int, step_ms: int) -> None:
        if not self.repairs_itself and self.now_ms < self.repair_ms <= until_ms:
            super().run_until(self.repair_ms, step_ms)
            self.repair()
        super().run_until(until_ms, step_ms)

    @property
    def audits(self) -> list[AuditRecord]:
        return [line for outcome in self.outcomes for _, line in outcome.records_on("audit")]

    def early_timeouts(self) -> list[str]:
        """Return the timeouts whose limit had not truly passed."""
        found: list[str] = []
        entered: dict[str, int] = {}
        ran: dict[str, int] = {}  # of the maximum duration
        for line in self.audits:
            if line.kind != "transition":
                continue
            now_ms, name = self.true_ms[line.source_offset], line.session_id
            since_ms = now_ms - entered.get(name, now_ms)
            if line.from_state != "Idle" and line.from_state != "Paused":
                ran[name] = ran.get(name, 0) + since_ms
            entered[name] = now_ms
            if line.due_at is None or line.to_state == "Archived":
                continue
            limit_ms = LIMIT_MS.get(line.reason_code) or IN_STATE_MS[line.from_state]
            truly_ms = ran[name] if line.reason_code == "max_duration" else since_ms
            if line.reason_code in ("inactive", "idle"):
                agent = next(agent for agent in self.agents if agent.events.key.session_id == name)
                truly_ms = self.truth[line.source_offset][agent.name, line.reason_code]
            if truly_ms < limit_ms:
                found.append(f"{name}: {line.transition} {line.reason_code} after {truly_ms} of {limit_ms} ms")
        return found


def all_agents(lasts_ms: int) -> list[Agent]:
    """Return agents that are, when the clock leaps, on each clock of a session."""
    end_ms = lasts_ms
    return [
        Scripted("lives"),
        Agent("dense", beat_ms=SECOND_MS, work_ms=SECOND_MS),
        Scripted("dies", dies_ms=-3_000),
        Scripted("dies in the leap", dies_ms=lasts_ms // 2),
        Scripted("starts"),
        Scripted("errs", [(-20_000, "session_errored")], dies_ms=-20_000),
        Scripted("errs in the leap", [(lasts_ms // 2, "session_errored")], dies_ms=lasts_ms // 2),
        Scripted("pauses", [(-5_000, "session_paused")], dies_ms=-5_000),
        Scripted("pauses in the leap", [(1_000, "session_paused"), (end_ms + 90_000, "session_resumed")]),
        Scripted("resumes in the leap", [(-20_000, "session_paused"), (lasts_ms // 2, "session_resumed")]),
        Scripted("pauses after it", [(end_ms + 1_000, "session_paused"), (end_ms + 95_000, "session_resumed")]),
    ]


def play_repair(
    ahead_ms: int, lasts_ms: int, repair_after_ms: int | None, worker: ProcessorSettings = WORKER
) -> RepairRig:
    leap = Leap(ahead_ms, BEGIN_MS, BEGIN_MS + lasts_ms)
    rig = RepairRig(leap, all_agents(lasts_ms), repair_after_ms, worker)
    rig.run_until(rig.repair_ms + 700 * SECOND_MS, 500)
    assert rig.fold.position.next_offset == len(rig.log)
    assert len(rig.fold.position.clock_repairs) == 1
    return rig


def check_replays(rig: RepairRig) -> None:
    """The log and the audit trail give the same again, to the fold and to the oracle."""
    ((at, decision),) = [(n, line) for n, line in enumerate(rig.audits) if line.kind == "decision"]
    assert (decision.event_type, decision.actor) == ("clock_repaired", PRINCIPAL if rig.repairs_itself else "on-call")
    fold = opened(0, rig.settings, ())
    fold.load_position(FIRST_POSITION)
    again: list[AuditRecord] = []
    for offset, record in enumerate([*rig.log, None]):
        if offset == decision.source_offset:
            batch = fold.begin()
            set_clock_again(batch, decision)
            again += [line for _, line in batch.finish().records_on("audit")]
            fold.merge(batch)
        if record is not None:
            batch = fold.begin()
            assert batch.apply(record)
            again += [line for _, line in batch.finish().records_on("audit")]
            fold.merge(batch)
    wanted = [line._replace(batch_number=0) for line in rig.audits]
    assert [line._replace(batch_number=0) for line in again] == wanted
    assert dict(fold.rows.items()) == dict(rig.fold.rows.items())
    assert at < len(wanted)
    lines = [line._asdict() for line in rig.audits]
    entries = [LogEntry(0, *record) for record in rig.log]
    oracle = replay_log(entries, 1, decisions_of(lines))
    rejected = [line._asdict() for outcome in rig.outcomes for _, line in outcome.records_on("rejected")]
    assert find_differences(oracle, lines, rejected) == []


@pytest.mark.parametrize(
    ("ahead_ms", "lasts_ms", "repair_after_ms"),
    [*product([600_000, DAY_MS], [20_000, 120_000], [2_000, 60_000, None]), (600_000, 700_000, None)],
)
def test_after_a_repair_no_clock_ends_early_and_the_dead_are_noticed(
    ahead_ms: int, lasts_ms: int, repair_after_ms: int | None
) -> None:
    rig = play_repair(ahead_ms, lasts_ms, repair_after_ms)
    assert rig.halts
    assert rig.early_timeouts() == []
    fired = {(line.transition, line.reason_code) for line in rig.audits if line.due_at is not None}
    assert fired >= {
        ("T03", "init_timeout"),
        ("T06", "inactive"),
        ("T06", "max_duration"),
        ("T08", "timeout_cleanup"),
        ("T09", "timeout_cleanup"),
        ("T12", "recovery_failed"),
    }
    noticed = [line for line in rig.audits if line.reason_code == "inactive"]
    late_ms = max(rig.true_ms[line.source_offset] for line in noticed) - rig.repair_ms
    looked_ms = HALT_RETRY_S * SECOND_MS if rig.repairs_itself else 0
    assert late_ms <= looked_ms + 45_000 + SECOND_MS, "a whole budget after the repair"
    assert abs(rig.fold.position.clock_ms - rig.now_ms) <= 2 * SECOND_MS
    check_replays(rig)


def test_a_leap_that_halts_nothing_ends_limits_early_by_at_most_the_setting() -> None:
    ahead_ms = int(WORKER.clock_ahead_s_max * SECOND_MS)
    leap = Leap(ahead_ms, BEGIN_MS, BEGIN_MS + 60_000)
    rig = RepairRig(leap, all_agents(60_000), None, WORKER)
    rig.run_until(leap.end_ms + 300 * SECOND_MS, 500)
    assert not rig.halts
    ends = [re.search(r"after (\d+) of (\d+) ms", text) for text in rig.early_timeouts()]
    early_ms = [int(end[2]) - int(end[1]) for end in ends if end is not None]
    assert 0 < max(early_ms) <= ahead_ms
    assert not [text for text in rig.early_timeouts() if "inactive" in text or "idle" in text]


def test_a_clock_that_was_folded_ahead_is_set_back_and_no_heartbeat_is_missed() -> None:
    for ahead_ms in (50_000, DAY_MS):
        worker = ProcessorSettings(clock_ahead_s_max=100_000.0)
        rig = play_repair(ahead_ms, 20_000, 3_000, worker)
        assert not rig.halts
        assert [early for early in rig.early_timeouts() if "inactive" in early or "idle" in early] == []
        assert abs(rig.fold.position.clock_ms - rig.now_ms) <= 2 * SECOND_MS
        check_replays(rig)
