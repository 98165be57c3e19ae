"""The owners of an assignment, without a broker: start, end, and a new start after a failure."""

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from sessionary.schemas.records import Position
from sessionary.stream_processors.core.model import ClockSetting, LogRecord
from sessionary.stream_processors.errors import Halted, Lost
from sessionary.stream_processors.metrics import Metrics
from sessionary.stream_processors.runtime import assignment as assignment_module
from sessionary.stream_processors.runtime.assignment import Assignment, find_own_repair, waits_for_repair, with_way_out
from sessionary.stream_processors.runtime.decisions import (
    BrokerTime,
    GapAcceptance,
    OperatorDecision,
    RecordSkip,
    TruncationAcceptance,
)
from sessionary.stream_processors.runtime.job import processor_job
from sessionary.stream_processors.runtime.partition_owner import PartitionOwner
from sessionary.stream_processors.runtime.worker_context import WorkerContext
from sessionary.stream_processors.settings import ProcessorSettings
from sessionary.stream_processors.store.stores import PartitionStores
from tests.core.stream_processors.runtime.owner_doubles import FakeFetchControl
from tests.support.event_factory import EventFactory
from tests.support.module_time import set_module_time

RECORDS = [LogRecord(0, 1_000, None, b"value", ())]


class StuckExecutor(Executor):
    """Each call waits until the test ends it: no owner ever opens.

    Calls that ask a broker for its time are made at once.
    """

    def __init__(self) -> None:
        self.calls: list[Future[Any]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        if getattr(fn, "func", None) != vars(assignment_module)["read_broker_time"]:
            self.calls.append(future)
            return future
        try:
            future.set_result(fn(*args, **kwargs))
        except Lost as error:
            future.set_exception(error)
        return future


class Bench:
    """An assignment whose owners are stuck in opening, until the test lets them fail.

    `unheard_s` is for how long the group has acknowledged no heartbeat.
    """

    def __init__(self) -> None:
        settings = ProcessorSettings(bootstrap_servers="127.0.0.1:1")
        self.executor, self.fetch_control, self.metrics = StuckExecutor(), FakeFetchControl(), Metrics()
        context = WorkerContext(settings, processor_job(settings), self.metrics, self.executor, self.fetch_control)
        self.unheard_s, self.looks = 0.0, 0
        stores = PartitionStores(settings, None, context.job.row_codec)
        self.assignment = Assignment(context, stores, self._heartbeat_s)

    async def fail_all(self, error: Exception) -> None:
        """Let each call under way raise `error`, and its owner end."""
        await self.seen(lambda: self.executor.calls)
        calls, self.executor.calls = self.executor.calls, []
        tasks = [owner.task for owner in self.assignment.owners.values()]
        for call in calls:
            call.set_exception(error)
        await asyncio.wait(tasks)
        await asyncio.sleep(0)

    def _heartbeat_s(self) -> float:
        self.looks += 1
        return time.monotonic() - self.unheard_s

    def is_replaced(self, former: PartitionOwner) -> bool:
        return self.assignment.owners[former.partition] is not former

    async def seen(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0.001)


def run(story: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    async def play() -> None:
        bench = Bench()
        await story(bench)
        for owner in bench.assignment.owners.values():
            owner.task.cancel()
        await bench.assignment.close()

    asyncio.run(play())


def test_a_dry_run_that_takes_too_long_is_ended_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, now_s = list[bool](), [1_000.0]

    async def plan(_context: object, _partition: int, _mode: str, wanted: Callable[[], bool]) -> None:
        asked.append(wanted())
        now_s[0] += assignment_module.PLAN_S_MAX
        asked.append(wanted())
        raise Lost("partition 0: no longer wanted")

    monkeypatch.setattr(assignment_module, "plan_rebuild", plan)
    set_module_time(monkeypatch, assignment_module.__name__, monotonic=lambda: now_s[0])

    async def story(bench: Bench) -> None:
        with pytest.raises(Lost, match="a dry run took longer than"):
            await bench.assignment.plan_rebuild(0, "refold")
        assert asked == [True, False]

    run(story)


def test_an_assignment_ends_the_owners_that_leave_and_starts_those_that_come() -> None:
    async def story(bench: Bench) -> None:
        assert not bench.assignment.has_assignment
        bench.assignment.take_assignment([0, 1])
        first = dict(bench.assignment.owners)
        bench.assignment.begin_rebalance()
        assert not any(owner.end_requested for owner in first.values())
        bench.assignment.take_assignment([1, 2])
        assert sorted(bench.assignment.owners) == [1, 2]
        assert bench.assignment.owners[1] is first[1]
        assert (first[0].end_requested, first[1].end_requested) == (True, False)
        assert (bench.assignment.has_assignment, bench.assignment.is_ready) == (True, False)
        assert (bench.metrics.rebalances._value.get(), bench.metrics.owned._value.get()) == (2, 2)
        bench.assignment.take_assignment([0, 1])
        assert bench.assignment.owners[0] is not first[0], "it was another worker's in between"
        first[0].task.cancel()

    run(story)


def test_a_partition_that_failed_gets_a_new_owner_with_the_assignment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignment_module, "_BACK_OFF_S", 3_600.0)
    monkeypatch.setattr(assignment_module, "_BACK_OFF_S_MAX", 3_600.0)

    async def story(bench: Bench) -> None:
        bench.assignment.take_assignment([0])
        first = bench.assignment.owners[0]
        await bench.fail_all(Lost("fenced"))
        bench.assignment.take_assignment([0])
        assert bench.is_replaced(first)

    run(story)


def test_a_partition_that_is_lost_during_a_rebalance_waits_for_the_assignment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignment_module, "_BACK_OFF_S", 0.0)

    async def story(bench: Bench) -> None:
        bench.assignment.take_assignment([0, 1])
        first = bench.assignment.owners[0]
        bench.assignment.begin_rebalance()
        await bench.fail_all(Lost("fenced"))
        bench.assignment._reopen_if_current(first)  # as after a failure just before
        for _ in range(10):
            await asyncio.sleep(0)
        assert bench.executor.calls == []  # nothing was asked of a broker
        assert bench.assignment.owners[0] is first
        assert bench.metrics.errors.labels("reopened")._value.get() == 0, "the partition may have moved"
        bench.assignment.take_assignment([0])
        assert bench.is_replaced(first)

    run(story)


def test_a_halted_partition_that_is_opened_again_stays_reported_over_an_assignment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(assignment_module, "HALT_RETRY_S", 0.001)
    monkeypatch.setattr(assignment_module, "_HALT_OVER_S", 0.001)

    async def story(bench: Bench) -> None:
        bench.assignment.take_assignment([0])
        halted = bench.assignment.owners[0]
        await bench.fail_all(Halted("log_gap", "gone"))
        await bench.seen(functools.partial(bench.is_replaced, halted))
        bench.assignment.take_assignment([0])
        assert list(bench.assignment.halted_partitions) == [0], "it is not well before it works"
        assert bench.assignment.is_ready, "one halted partition is no reason that a worker is not"
        bench.assignment.owners[0].is_open = True
        await bench.seen(lambda: not bench.assignment.halted_partitions)

    run(story)


def test_an_empty_assignment_is_ready() -> None:
    async def story(bench: Bench) -> None:
        assert not bench.assignment.is_ready
        bench.assignment.take_assignment([])
        assert bench.assignment.is_ready

    run(story)


def test_records_go_to_their_owner_or_nowhere() -> None:
    async def story(bench: Bench) -> None:
        bench.assignment.take_assignment([0])
        bench.assignment.offer_records(1, 0, RECORDS)
        assert bench.fetch_control.pending_bytes == 0
        bench.assignment.offer_records(0, 0, RECORDS)
        assert bench.fetch_control.pending_bytes > 0

    run(story)


@pytest.mark.parametrize("error", [Lost("fenced"), ZeroDivisionError()])
def test_an_owner_that_fails_is_replaced(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr(assignment_module, "_BACK_OFF_S", 0.001)

    async def story(bench: Bench) -> None:
        bench.assignment.take_assignment([0])
        former = {bench.assignment.owners[0]}
        for failures in (1, 2):
            await bench.fail_all(error)
            await bench.seen(lambda: bench.assignment.owners[0] not in former)
            former.add(bench.assignment.owners[0])
            assert bench.metrics.errors.labels("reopened")._value.get() == failures

    run(story)


SKIP = RecordSkip(4, 6, "it is damaged", "alice", Halted("batch_unreadable", "reported so", offset=4))


@pytest.mark.parametrize(
    ("decision", "error", "left"),
    [
        (SKIP, Lost("no answer"), SKIP),
        (GapAcceptance("gone", "alice"), Lost("no answer"), GapAcceptance("gone", "alice")),
        (TruncationAcceptance("gone", "alice"), Lost("no answer"), None),  # a part may be committed
        (ClockSetting(1_000, 7, "it leapt", "alice"), Lost("no answer"), None),  # the time has passed
        (SKIP, ZeroDivisionError(), None),  # it may be the cause
    ],
)
def test_a_decision_outlasts_a_lost_partition(
    monkeypatch: pytest.MonkeyPatch, decision: OperatorDecision, error: Exception, left: OperatorDecision | None
) -> None:
    monkeypatch.setattr(assignment_module, "_BACK_OFF_S", 0.001)

    async def story(bench: Bench) -> None:
        bench.assignment.take_assignment([0])
        await bench.fail_all(Halted("batch_unreadable", "reported so"))
        bench.assignment.reopen_partition(0, decision)
        former = bench.assignment.owners[0]
        await bench.fail_all(error)
        await bench.seen(functools.partial(bench.is_replaced, former))
        assert bench.assignment.owners[0].decision_left == left

    run(story)


def test_a_decision_outlasts_a_rebalance_that_leaves_the_partition_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignment_module, "_BACK_OFF_S", 3_600.0)
    monkeypatch.setattr(assignment_module, "_BACK_OFF_S_MAX", 3_600.0)

    async def story(bench: Bench) -> None:
        bench.assignment.take_assignment([0])
        await bench.fail_all(Halted("batch_unreadable", "reported so"))
        bench.assignment.reopen_partition(0, SKIP)
        bench.assignment.begin_rebalance()
        await bench.fail_all(Lost("fenced"))
        bench.assignment.take_assignment([0])
        assert bench.assignment.owners[0].decision_left == SKIP
        bench.assignment.take_assignment([])
        bench.assignment.take_assignment([0])
        assert bench.assignment.owners[0].decision_left is None, "it was another worker's in between"

    run(story)


def test_a_decision_does_not_outlast_losses_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignment_module, "_BACK_OFF_S", 0.001)
    monkeypatch.setattr(assignment_module, "_BACK_OFF_S_MAX", 0.008)

    async def story(bench: Bench) -> None:
        bench.assignment.take_assignment([0])
        await bench.fail_all(Halted("batch_unreadable", "reported so"))
        bench.assignment.reopen_partition(0, SKIP)
        left: list[OperatorDecision | None] = []
        for _ in range(4):
            former = bench.assignment.owners[0]
            await bench.fail_all(Lost("no answer"))
            await bench.seen(functools.partial(bench.is_replaced, former))
            left.append(bench.assignment.owners[0].decision_left)
        assert left == [SKIP, SKIP, None, None], "then the partition shows again why it is halted"

    run(story)


def test_a_partition_is_opened_again_after_any_number_of_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignment_module, "_BACK_OFF_S_MAX", 0.0)

    async def story(bench: Bench) -> None:
        bench.assignment.take_assignment([0])
        # With a broker away for half a day a partition fails more often than a float can double.
        for _ in range(1_100):
            former = bench.assignment.owners[0]
            await bench.fail_all(Lost("fenced"))
            await bench.seen(functools.partial(bench.is_replaced, former))

    run(story)


def test_a_lost_partition_is_not_opened_again_before_the_group_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignment_module, "_BACK_OFF_S", 0.001)
    monkeypatch.setattr(assignment_module, "_HEARTBEAT_LOOK_S", 0.001)

    async def story(bench: Bench) -> None:
        bench.assignment.take_assignment([0])
        first = bench.assignment.owners[0]
        bench.unheard_s = 6.5  # the session time-out is 6 s
        await bench.fail_all(Lost("fenced"))
        await bench.seen(lambda: bench.looks > 20)
        assert bench.assignment.owners == {0: first}
        assert bench.executor.calls == []  # nothing was asked of a broker
        bench.unheard_s = 5.5
        await bench.seen(functools.partial(bench.is_replaced, first))

    run(story)


def test_a_worker_that_is_lost_to_its_group_takes_the_next_assignment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignment_module, "_BACK_OFF_S", 0.001)
    monkeypatch.setattr(assignment_module, "_HEARTBEAT_LOOK_S", 0.001)

    async def story(bench: Bench) -> None:
        bench.assignment.take_assignment([0, 1])
        bench.unheard_s = 60.0
        await bench.fail_all(Lost("fenced"))
        await bench.seen(lambda: bench.looks > 4)
        bench.unheard_s = 0.0
        bench.assignment.take_assignment([1])
        second = bench.assignment.owners[1]
        await bench.seen(lambda: bench.executor.calls)  # it opens
        assert bench.assignment.owners == {1: second}

    run(story)


def test_a_halted_partition_stays_so_until_the_next_assignment() -> None:
    async def story(bench: Bench) -> None:
        bench.assignment.take_assignment([0, 1])
        halted = Halted("log_gap", "gone")
        await bench.fail_all(halted)
        assert bench.assignment.halted_partitions == {0: halted, 1: halted}
        assert bench.metrics.halted.labels("log_gap")._value.get() == 2
        assert bench.metrics.errors.labels("reopened")._value.get() == 0
        bench.assignment.take_assignment([0])
        assert bench.assignment.halted_partitions == {}

    run(story)


def test_a_halted_partition_is_tried_again_and_only_changes_are_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(assignment_module, "HALT_RETRY_S", 0.001)
    monkeypatch.setattr(assignment_module, "_HALT_OVER_S", 0.001)

    async def story(bench: Bench) -> None:
        bench.assignment.take_assignment([0])
        for fault in (Halted("log_gap", "gone"), Halted("log_gap", "gone"), Halted("changelog_incomplete", "cut")):
            former = bench.assignment.owners[0]
            await bench.fail_all(fault)
            assert bench.assignment.halted_partitions == {0: fault}
            await bench.seen(lambda former=former: bench.assignment.owners[0] is not former)  # type: ignore[misc]
            assert bench.assignment.halted_partitions == {0: fault}, "it is not well before it works"
            assert bench.metrics.halted.labels(fault.reason)._value.get() == 1
        assert bench.metrics.errors.labels("halted")._value.get() == 2
        assert sum("is halted" in record.getMessage() for record in caplog.records) == 2
        bench.assignment.owners[0].is_open = True
        await bench.seen(lambda: not bench.assignment.halted_partitions)
        assert [series.samples for series in bench.metrics.halted.collect()] == [[]]
        assert "partition 0 is no longer halted" in caplog.text

    run(story)


def test_a_halt_by_a_record_is_reported_with_its_session(caplog: pytest.LogCaptureFixture) -> None:
    session = EventFactory().key

    async def story(bench: Bench) -> None:
        bench.assignment.take_assignment([0])
        await bench.fail_all(Halted("judge_failed", "partition 0, offset 7", offset=7, key=session.encoded()))
        (line,) = [record for record in caplog.records if "is halted" in record.getMessage()]
        fields = ("tenant_id", "session_id", "partition", "offset", "error_class", "reason")
        assert [line.__dict__[name] for name in fields] == [*session, 0, 7, "Halted", "judge_failed"]

    run(story)


def test_the_pauses_between_two_tries_double_up_to_five_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(bench: Bench) -> None:
        pauses_s: list[float] = []
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "call_later", lambda pause_s, *call: pauses_s.append(pause_s))
        bench.assignment.take_assignment([0])
        owner = bench.assignment.owners[0]
        for _ in range(6):
            bench.assignment._retry_halted_later(owner, Halted("log_gap", "gone"))
        assert pauses_s == [30.0, 60.0, 120.0, 240.0, 300.0, 300.0]
        bench.assignment._retry_halted_later(owner, Halted("record_too_large", "x"))
        assert pauses_s[-1] == 30.0, "another cause begins again"
        monkeypatch.undo()

    run(story)


def test_a_cause_that_clears_by_itself_is_not_waited_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(bench: Bench) -> None:
        pauses_s: list[float] = []
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "call_later", lambda pause_s, *call: pauses_s.append(pause_s))
        bench.assignment.take_assignment([0])
        owner = bench.assignment.owners[0]
        left_s = 540.0
        while left_s > 0:
            bench.assignment._retry_halted_later(owner, Halted("store_disk_full", "full", left_s))
            left_s -= pauses_s[-1]
        assert pauses_s == [30.0, 60.0, 120.0, 240.0, 90.0]
        bench.assignment._retry_halted_later(owner, Halted("store_disk_full", "full", 0.5))
        assert pauses_s[-1] == 30.0, "opening costs too much for a shorter pause"
        monkeypatch.undo()

    run(story)


def test_a_closed_assignment_takes_no_other() -> None:
    async def story(bench: Bench) -> None:
        bench.assignment.take_assignment([0])
        bench.assignment.owners[0].task.cancel()
        await bench.assignment.close()
        bench.assignment.take_assignment([0, 1])
        assert bench.assignment.owners == {}

    run(story)


AHEAD = Halted("clock_ahead", "the stamp of offset 7 is ahead", 540.0, 7, b"k")
POSITION = Position(5, 10_000, 0, 1, 0)


def test_a_clock_is_set_forward_to_a_broker_that_agrees_with_the_worker() -> None:
    reason = "the stamp of offset 7 was far ahead of the worker's clock, and broker and worker agree again ({} s)"
    for stamp_ms, ahead_s, reported in ((10_000, 0.0, "+0.0"), (20_000, 5.0, "+5.0"), (20_000, -5.0, "-5.0")):
        expected = ClockSetting(stamp_ms, 9, reason.format(reported), "processor")
        assert find_own_repair(AHEAD, POSITION, BrokerTime(9, stamp_ms, ahead_s)) == expected


@pytest.mark.parametrize(("stamp_ms", "ahead_s"), [(20_000, 5.001), (20_000, -5.001), (20_000, 600.0), (9_999, 0.0)])
def test_no_clock_is_set_while_the_clocks_differ_and_none_is_set_back(stamp_ms: int, ahead_s: float) -> None:
    assert find_own_repair(AHEAD, POSITION, BrokerTime(9, stamp_ms, ahead_s)) is None


def test_only_a_stamp_ahead_waits_for_a_repair() -> None:
    assert waits_for_repair(AHEAD)
    assert not waits_for_repair(Halted("log_gap", "gone"))


def test_operators_are_shown_how_a_partition_goes_on() -> None:
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
    broker, decisions = AskedBroker(), list[OperatorDecision | None]()
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
