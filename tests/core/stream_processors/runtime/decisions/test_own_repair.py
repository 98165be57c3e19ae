"""When a processor sets a clock by itself, and what operators are told until then."""

import asyncio

import pytest

from sessionary.schemas.records import Position
from sessionary.stream_processors.core.model import ClockSetting
from sessionary.stream_processors.errors import Halted, Lost
from sessionary.stream_processors.runtime import assignment as assignment_module
from sessionary.stream_processors.runtime.decisions.broker_time import BrokerTime
from sessionary.stream_processors.runtime.decisions.own_repair import find_own_repair, waits_for_repair, with_way_out
from sessionary.stream_processors.runtime.decisions.pending_decision import Decision
from sessionary.stream_processors.runtime.partition_owner import PartitionOwner
from sessionary.stream_processors.settings import ProcessorSettings
from tests.core.stream_processors.runtime.test_assignment import Bench, run

AHEAD = Halted("clock_ahead", "the stamp of offset 7 is ahead", 540.0, 7, b"k")
POSITION = Position(5, 10_000, 0, 1, 0)


def test_a_clock_is_set_forward_to_a_broker_that_agrees_with_the_worker() -> None:
    reason = "the stamp of offset 7 was far ahead of the worker's clock, and broker and worker agree again ({} s)"
    for stamp_ms, ahead_s, told in ((10_000, 0.0, "+0.0"), (20_000, 5.0, "+5.0"), (20_000, -5.0, "-5.0")):
        expected = ClockSetting(stamp_ms, 9, reason.format(told), "processor")
        assert find_own_repair(AHEAD, POSITION, BrokerTime(9, stamp_ms, ahead_s)) == expected


@pytest.mark.parametrize(("stamp_ms", "ahead_s"), [(20_000, 5.001), (20_000, -5.001), (20_000, 600.0), (9_999, 0.0)])
def test_no_clock_is_set_while_the_clocks_differ_and_none_is_set_back(stamp_ms: int, ahead_s: float) -> None:
    assert find_own_repair(AHEAD, POSITION, BrokerTime(9, stamp_ms, ahead_s)) is None


def test_only_a_stamp_ahead_waits_for_a_repair() -> None:
    assert waits_for_repair(AHEAD)
    assert not waits_for_repair(Halted("log_gap", "gone"))


def test_operators_are_told_how_a_partition_goes_on() -> None:
    by_itself = with_way_out(AHEAD, 3)
    assert (by_itself.reason, by_itself.clears_in_s, by_itself.offset, by_itself.key) == ("clock_ahead", None, 7, b"k")
    for part in ("ahead. The partition stays halted", "repair-clock 3`", "partition retry 3`"):
        assert part in by_itself.detail
    other = Halted("log_gap", "gone")
    assert with_way_out(other, 3) is other


class AskedBroker:
    """Is not known at first, then ahead of the worker's clock, then right."""

    def __init__(self) -> None:
        self.answers: list[BrokerTime | Lost] = [
            Lost("no answer"),
            BrokerTime(8, 5_000, 600.0),
            BrokerTime(9, 6_000, 0.0),
        ]
        self.asked: list[int] = []

    def read(self, _settings: ProcessorSettings, partition: int) -> BrokerTime:
        self.asked.append(partition)
        if isinstance(answer := self.answers.pop(0), Lost):
            raise answer
        return answer


def halt_by_a_leap(bench: Bench) -> PartitionOwner:
    """Let the only partition be halted by a stamp that is ahead, which is no longer so in 1 ms."""
    bench.assignment.take_assignment([0])
    owner = bench.assignment.owners[0]
    owner.state.load_position(Position(5, 5_000, 0, 1, 0))
    bench.assignment._retry_halted_later(owner, Halted("clock_ahead", "ahead", 0.001, 7))
    return owner


def test_a_partition_whose_stamps_went_back_waits_for_the_broker_and_is_repaired(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker, decisions = AskedBroker(), list[Decision | None]()
    monkeypatch.setattr(assignment_module, "HALT_RETRY_S", 0.0)
    monkeypatch.setattr(assignment_module, "read_broker_time", broker.read)

    async def story(bench: Bench) -> None:
        halt_by_a_leap(bench)
        monkeypatch.setattr(bench.assignment, "reopen_partition", lambda _, decision=None: decisions.append(decision))
        await bench.seen(lambda: decisions)

    run(story)
    assert broker.asked == [0, 0, 0]
    [setting] = decisions
    assert isinstance(setting, ClockSetting)
    assert (setting.clock_ms, setting.until_offset, setting.principal) == (6_000, 9, "processor")


def test_a_partition_that_an_operator_opened_is_no_longer_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = AskedBroker()
    monkeypatch.setattr(assignment_module, "HALT_RETRY_S", 0.0)
    monkeypatch.setattr(assignment_module, "read_broker_time", broker.read)

    async def story(bench: Bench) -> None:
        halt_by_a_leap(bench)
        bench.assignment.reopen_partition(0)
        for _ in range(10):
            await asyncio.sleep(0)

    run(story)
    assert broker.asked == []
