"""An owner without a broker: how many open at a time, and what one leaves behind at its end."""

import asyncio
import functools
import gc
import itertools
import threading
import time
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from sessionary.schemas.records import Position
from sessionary.stream_processors.core.model import BatchResult, LogRecord, Rebuild
from sessionary.stream_processors.errors import Halted, Lost, RebuildRefused
from sessionary.stream_processors.runtime import assignment, partition_owner, transaction, worker_context
from sessionary.stream_processors.runtime.partition_owner import CommitNotifications, PartitionOwner
from sessionary.stream_processors.runtime.transaction import CommitReceipt, Seal
from sessionary.stream_processors.runtime.worker_context import RECOVERIES_MAX
from sessionary.stream_processors.store.packed_rows import StoredLookup
from tests.core.stream_processors.runtime.owner_doubles import (
    FakeRecovery,
    FakeWriter,
    GatedWriter,
    OwnerBench,
    RecordingWriter,
    RejectedWriter,
    count_descriptors,
    count_threads,
)
from tests.support.event_factory import TICK
from tests.support.waiting import wait_until

PARTITIONS = range(4)


def count_objects(kind: type[Any]) -> int:
    return sum(type(found) is kind for found in gc.get_objects())


@pytest.mark.usefixtures("no_collection")
def test_a_thousand_failed_ownerships_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_owner, "TransactionWriter", RejectedWriter)
    others = count_objects(PartitionOwner)  # of other tests

    async def story() -> None:
        bench = OwnerBench()
        bench.assignment.take_assignment(PARTITIONS)
        await bench.seen(lambda: bench.count_errors("reopened") >= 20)
        threads, descriptors = count_threads(), count_descriptors()
        await bench.seen(lambda: bench.count_errors("reopened") >= 1_000)
        assert count_threads() <= threads + len(PARTITIONS)
        assert count_descriptors() <= descriptors
        # The current owners, and former ones whose ends some current ones still await.
        assert count_objects(PartitionOwner) <= others + 2 * len(PARTITIONS)
        assert count_objects(RejectedWriter) <= 2 * len(PARTITIONS)
        bench.assignment.take_assignment([])
        await bench.assignment.close()

    asyncio.run(story())
    # A thread of the executor lets go of a call a moment after its caller has the answer.
    wait_until(lambda: count_objects(PartitionOwner) + count_objects(RejectedWriter) <= others, 60, "all to be freed")


def test_a_rebuild_that_is_refused_late_is_in_the_log(
    monkeypatch: pytest.MonkeyPatch, recovery: FakeRecovery, caplog: pytest.LogCaptureFixture
) -> None:
    """By then the command has its answer, and the next retry names the halt alone."""

    async def refuse(*_: object) -> None:
        raise RebuildRefused("partition 0 is not rebuilt: its log begins at offset 7")

    monkeypatch.setattr(partition_owner, "plan_rebuild", refuse)
    recovery.gate.release(100)

    async def story() -> None:
        bench = OwnerBench(find_traces=lambda *_: ["audit has its records"])
        bench.assignment.take_assignment([0])
        await bench.seen(lambda: bench.assignment.halted_partitions)
        caplog.clear()
        bench.assignment.reopen_partition(0, Rebuild("refold", "why", "on-call"))
        await bench.seen(lambda: bench.assignment.owners[0].halted)
        assert "is not rebuilt: its log begins at offset 7" in caplog.text
        await bench.assignment.close()

    asyncio.run(story())


class FencedProducer:
    """A producer whose first call fails; it notes which threads free one of its kind."""

    freed_in: list[int] = []

    def __init__(self, _: object) -> None:
        pass

    def __del__(self) -> None:
        self.freed_in.append(threading.get_ident())

    def __len__(self) -> int:
        return 0

    def list_topics(self, topic: str, timeout: float) -> None:
        """It is connected."""

    def init_transactions(self, timeout_s: float) -> None:
        raise KafkaException(KafkaError(KafkaError._FENCED, "reported so", True, False, False))

    def purge(self, in_queue: bool, in_flight: bool, blocking: bool) -> None:
        """Nothing is queued."""

    def poll(self, timeout_s: float) -> int:
        return 0


@pytest.mark.usefixtures("no_collection")
def test_a_failed_owners_producer_is_freed_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "Producer", FencedProducer)
    monkeypatch.setattr(assignment, "_BACK_OFF_S_MAX", 0.02)
    FencedProducer.freed_in.clear()

    async def story() -> None:
        bench = OwnerBench()
        bench.assignment.take_assignment(PARTITIONS)
        await bench.seen(lambda: len(FencedProducer.freed_in) >= 20)
        bench.assignment.take_assignment([])
        await bench.assignment.close()

    asyncio.run(story())
    assert threading.get_ident() not in FencedProducer.freed_in


class HaltedWriter(RejectedWriter):
    """A transaction writer whose partition halts."""

    def fence_former_owner(self) -> None:
        raise Halted("log_gap", "reported so")


@pytest.mark.interpreted  # a compiled object has no weak references
@pytest.mark.usefixtures("no_collection")
def test_a_halted_owner_keeps_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_owner, "TransactionWriter", HaltedWriter)

    async def story() -> None:
        bench = OwnerBench()
        bench.assignment.take_assignment([0])
        owner = bench.assignment.owners[0]
        owner.state.load_position(Position(7, 0, 0, 1, 0))
        state = weakref.ref(owner.state)
        await bench.seen(lambda: bench.assignment.halted_partitions)
        await bench.seen(owner.task.done)
        assert state() is None
        assert owner.state.position.next_offset == 7
        await bench.assignment.close()

    asyncio.run(story())


def test_four_partitions_recover_at_a_time_and_all_open(recovery: FakeRecovery) -> None:
    async def story() -> None:
        bench = OwnerBench(partitions=64)
        bench.assignment.take_assignment(range(64))
        for ended in range(1, 65):
            await bench.seen(lambda: recovery.under_way == min(RECOVERIES_MAX, 64 - recovery.ended))
            recovery.gate.release()
            await bench.seen(functools.partial(recovery.has_ended, ended))
        await bench.seen(lambda: bench.assignment.is_ready)
        assert recovery.most == RECOVERIES_MAX == 4
        await bench.assignment.close()

    asyncio.run(story())


def test_an_owner_that_waits_for_its_recovery_ends_at_once(recovery: FakeRecovery) -> None:
    async def story() -> None:
        bench = OwnerBench(partitions=64)
        bench.assignment.take_assignment(range(64))
        await bench.seen(lambda: recovery.under_way == RECOVERIES_MAX)
        waiting = [owner for owner in bench.assignment.owners.values() if owner.partition >= 32]
        bench.assignment.take_assignment(range(32))
        await bench.seen(lambda: all(owner.task.done() for owner in waiting))
        assert [owner.task.exception() for owner in waiting] == [None] * 32
        assert recovery.ended == 0  # no turn became free meanwhile
        recovery.gate.release(RECOVERIES_MAX + 32)
        await bench.seen(lambda: bench.assignment.is_ready)
        await bench.assignment.close()
        assert bench.context.recovery_turns._value == RECOVERIES_MAX

    asyncio.run(story())


def test_a_failed_recovery_gives_its_turn_back(recovery: FakeRecovery, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise Lost("silent")

    async def story() -> None:
        bench = OwnerBench()
        monkeypatch.setattr(assignment, "_BACK_OFF_S_MAX", 0.0)
        monkeypatch.setattr(partition_owner, "recover", fail)
        bench.assignment.take_assignment(PARTITIONS)
        await bench.seen(lambda: bench.count_errors("reopened") >= 20)
        recovery.gate.release(100)
        monkeypatch.setattr(partition_owner, "recover", recovery.recover)
        await bench.seen(lambda: bench.assignment.is_ready)
        await bench.assignment.close()

    asyncio.run(story())


def test_a_partition_that_stays_is_open_all_along_and_answers_readers_after_a_commit(
    recovery: FakeRecovery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_owner, "TransactionWriter", GatedWriter)
    monkeypatch.setattr(GatedWriter, "gate", threading.Semaphore(0))
    monkeypatch.setattr(GatedWriter, "under_way", 0)

    def offer_tick(owner: PartitionOwner, offset: int) -> None:
        owner.offer_records(offset, [LogRecord(offset, 1_000, None, TICK)])

    async def story() -> None:
        bench = OwnerBench(partitions=1, commit_interval_ms=0)
        bench.assignment.take_assignment([0])
        owner = bench.assignment.owners[0]
        recovery.gate.release()
        await bench.seen(lambda: owner.is_readable)  # its changelog was read after the fencing
        offer_tick(owner, 0)
        await bench.seen(lambda: GatedWriter.under_way == 1)
        bench.assignment.begin_rebalance()
        assert owner.is_readable
        bench.assignment.take_assignment([0])
        assert (bench.assignment.owners[0], owner.is_open, owner.is_readable) == (owner, True, False)
        assert owner.tick_deadline_ms == 0, "a tick is needed at once"
        GatedWriter.gate.release()
        await bench.seen(lambda: owner.commits == 1)
        assert not owner.is_readable, "this transaction began before the assignment"
        assert not await owner.wait_until_committed(0, 0.0)
        offer_tick(owner, 1)
        await bench.seen(lambda: GatedWriter.under_way == 2)
        GatedWriter.gate.release()
        assert await owner.wait_until_committed(1, 120.0)
        assert (owner.is_readable, owner.tick_deadline_ms) == (True, None)
        assert recovery.ended == 1
        await bench.assignment.close()

    asyncio.run(story())


async def opened_owner(bench: OwnerBench, recovery: FakeRecovery) -> PartitionOwner:
    """Return the owner of partition 0 once it is open."""
    bench.assignment.take_assignment([0])
    owner = bench.assignment.owners[0]
    recovery.gate.release()
    await bench.seen(lambda: owner.is_open)
    return owner


def test_ticks_that_wait_confirm_a_partition_that_stays(recovery: FakeRecovery) -> None:
    async def story() -> None:
        bench = OwnerBench(partitions=1, commit_interval_ms=0)
        owner = await opened_owner(bench, recovery)
        for offset in range(2):
            owner.offer_records(offset, [LogRecord(offset, 1_000, None, TICK)])
            await bench.seen(lambda offset=offset: owner.position.next_offset > offset)  # type: ignore[misc]
        assert owner.commits == 1
        bench.assignment.take_assignment([0])
        await bench.seen(lambda: owner.is_readable)
        assert owner.commits == 2
        await bench.assignment.close()

    asyncio.run(story())


def test_who_waits_for_the_end_of_the_log_waits_for_no_transaction_of_ticks(recovery: FakeRecovery) -> None:
    async def story() -> None:
        bench = OwnerBench(partitions=1, commit_interval_ms=0)
        owner = await opened_owner(bench, recovery)
        owner.offer_records(0, [LogRecord(0, 1_000, None, TICK)])
        assert await owner.wait_until_folded(1, 60)
        waiting = asyncio.create_task(owner.wait_until_folded(2, 60))
        await asyncio.sleep(0)
        owner.offer_records(1, [LogRecord(1, 1_000, None, TICK)])
        assert await waiting
        assert (owner.commits, owner.state.position.next_offset) == (1, 1)
        assert not await owner.wait_until_folded(3, 0.01)
        await bench.assignment.close()

    asyncio.run(story())


def is_past(owner: PartitionOwner, offset: int) -> bool:
    return owner.position.next_offset > offset


def paces_of(
    busy: int, records: list[LogRecord], recovery: FakeRecovery, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[int], int]:
    """Offer so many of 50 open partitions each record in turn, until it is committed or folded.

    Returns when the first partition's transactions began (µs), and how many partitions are busy
    then.
    """
    monkeypatch.setattr(partition_owner, "TransactionWriter", RecordingWriter)
    monkeypatch.setattr(RecordingWriter, "written", [])
    monkeypatch.setattr(RecordingWriter, "started_at", [])
    began_at: list[int] = []

    async def story() -> int:
        bench = OwnerBench(partitions=50, commit_interval_ms=1)
        bench.assignment.take_assignment(range(50))
        recovery.gate.release(50)
        owners = bench.assignment.owners
        await bench.seen(lambda: all(owner.is_open for owner in owners.values()))
        for record in records:
            for partition in reversed(range(busy)):
                owners[partition].offer_records(record.offset, [record])
                await bench.seen(functools.partial(is_past, owners[partition], record.offset))
            began_at.append(RecordingWriter.started_at[-1])
        found = bench.context.busy_partitions.count(time.monotonic())
        await bench.assignment.close()
        return found

    return began_at, asyncio.run(story())


def test_busy_partitions_pace_each_other(recovery: FakeRecovery, monkeypatch: pytest.MonkeyPatch) -> None:
    events = [LogRecord(offset, 1_000, None, b"no event") for offset in range(2)]
    (first, second), busy = paces_of(50, events, recovery, monkeypatch)
    assert busy == 50
    assert second - first >= 99_000  # µs; two clocks are compared


def test_silent_partitions_pace_no_other(recovery: FakeRecovery, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the events of one wait 100 ms for each other, because 49 are open beside it."""
    events = [LogRecord(offset, 1_000, None, b"no event") for offset in range(20)]
    began_at, busy = paces_of(1, events, recovery, monkeypatch)
    assert busy == 1
    assert min(later - earlier for earlier, later in itertools.pairwise(began_at)) < 50_000


def test_ticks_that_cost_no_transaction_make_no_partition_busy(
    recovery: FakeRecovery, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        bench = OwnerBench(partitions=1)
        busy = bench.context.busy_partitions
        bench.assignment.take_assignment([0])
        recovery.gate.release()
        owner = bench.assignment.owners[0]
        await bench.seen(lambda: owner.is_open)
        monkeypatch.setattr(worker_context, "BUSY_S", 0.0)
        for offset in range(3):
            owner.offer_records(offset, [LogRecord(offset, 1_000 + offset, None, TICK)])
            await bench.seen(functools.partial(is_past, owner, offset))
            if offset == 0:  # the first batch shows whose the partition is
                await bench.seen(lambda: busy.count(time.monotonic()) == 0)
                monkeypatch.setattr(worker_context, "BUSY_S", 60.0)
        assert (owner.commits, busy.count(time.monotonic())) == (1, 0)
        await bench.assignment.close()

    asyncio.run(story())


def test_a_partition_that_stays_while_it_opens_reads_its_changelog_once(recovery: FakeRecovery) -> None:
    async def story() -> None:
        bench = OwnerBench(partitions=1)
        bench.assignment.take_assignment([0])
        owner = bench.assignment.owners[0]
        await bench.seen(lambda: recovery.under_way)
        bench.assignment.take_assignment([0])
        recovery.gate.release()
        await bench.seen(lambda: owner.is_open)
        assert (bench.assignment.owners[0], recovery.ended) == (owner, 1)
        assert not owner.is_readable, "another worker may have had the partition in between"
        await bench.assignment.close()

    asyncio.run(story())


class NarrowWriter(FakeWriter):
    """A transaction writer that loses each transaction of more than 700 records."""

    RECORDS_MAX = 700
    written: list[int] = []  # records of the transactions, lost ones too

    def write_result(self, outcome: BatchResult, started_at: int, seal: Seal, stored: StoredLookup) -> CommitReceipt:
        self.written.append(outcome.counts.ticks)
        if outcome.counts.ticks > self.RECORDS_MAX:
            raise Lost("timed out")
        return CommitReceipt({}, seal(outcome.position, {}), 1, started_at, 0.0)


def test_a_batch_that_is_lost_is_folded_again_in_smaller_ones(
    recovery: FakeRecovery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_owner, "TransactionWriter", NarrowWriter)
    monkeypatch.setattr(assignment, "_BACK_OFF_S_MAX", 0.0)
    NarrowWriter.written.clear()
    ticks = [LogRecord(n, 1_000, None, TICK) for n in range(4_000)]
    recovery.gate.release(100)

    async def story() -> None:
        bench = OwnerBench(partitions=1, commit_interval_ms=0, tick_commit_interval_ms=0)
        bench.assignment.take_assignment([0])
        offered: PartitionOwner | None = None
        while True:
            async with asyncio.timeout(120):
                while (owner := bench.assignment.owners[0]) is offered or not owner.is_open:
                    await asyncio.sleep(0.001)
            offered = owner
            owner.offer_records(0, ticks)
            await bench.seen(lambda: owner.task.done() or owner.state.position.next_offset == len(ticks))
            if not owner.task.done():
                break
        await bench.assignment.close()

    asyncio.run(story())
    # Each owner begins at the same offset, for the changelog of this test is empty.
    assert NarrowWriter.written[:7] == [4_000, 2_500, 1_250, 625, 664, 703, 351]
    assert sum(NarrowWriter.written[6:]) == 4_000
    assert max(NarrowWriter.written[6:]) <= NarrowWriter.RECORDS_MAX


def run(check: Callable[[CommitNotifications], Awaitable[None]]) -> None:
    async def begin() -> None:
        await check(CommitNotifications())

    asyncio.run(begin())


def test_only_who_follows_a_row_that_a_commit_touched_is_woken() -> None:
    async def check(notifications: CommitNotifications) -> None:
        with (
            notifications.watch_row(b"a") as one,
            notifications.watch_row(b"a") as same,
            notifications.watch_row(b"b") as other,
        ):
            notifications.notify_commit({b"a": 1, b"c": 2})
            assert [await watch.wait(0) for watch in (one, same, other)] == [True, True, False]
            assert [await watch.wait(0) for watch in (one, same, other)] == [False, False, False]

    run(check)


def test_many_commits_wake_a_reader_once() -> None:
    async def check(notifications: CommitNotifications) -> None:
        with notifications.watch_row(b"a") as watch:
            for n in range(5):
                notifications.notify_commit({b"a": n})
            assert [await watch.wait(0), await watch.wait(0)] == [True, False]

    run(check)


def test_a_row_that_none_follows_any_more_is_forgotten() -> None:
    async def check(notifications: CommitNotifications) -> None:
        with notifications.watch_row(b"a"):
            with notifications.watch_row(b"a"):
                assert {key: len(watches) for key, watches in notifications._watches.items()} == {b"a": 2}
            assert {key: len(watches) for key, watches in notifications._watches.items()} == {b"a": 1}
        assert notifications._watches == {}
        notifications.notify_commit({b"a": 1})

    run(check)


def test_the_end_wakes_all() -> None:
    async def check(notifications: CommitNotifications) -> None:
        waiting = asyncio.create_task(notifications.wait())
        with notifications.watch_row(b"a") as watch:
            await asyncio.sleep(0)
            assert not notifications.is_over
            notifications.end()
            assert notifications.is_over
            assert await watch.wait(0)
        await asyncio.wait_for(waiting, 60)

    run(check)
