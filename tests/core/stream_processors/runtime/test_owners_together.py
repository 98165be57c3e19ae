"""The owners of a worker together: how they go on while it leaves its group, and their pace."""

import asyncio
from typing import Any

import pytest

from sessionary.stream_processors.core.model import BatchResult, LogRecord
from sessionary.stream_processors.errors import Halted, Lost
from sessionary.stream_processors.runtime import assignment, partition_owner
from sessionary.stream_processors.runtime.transaction import CommitReceipt, Seal
from sessionary.stream_processors.runtime.worker_context import RECOVERIES_MAX
from sessionary.stream_processors.store.packed_rows import StoredLookup
from tests.core.stream_processors.runtime.owner_doubles import FakeRecovery, FakeWriter, OwnerBench
from tests.support.event_factory import TICK


class FencedWriter(FakeWriter):
    """A transaction writer whose partition has a new owner once `is_taken`."""

    is_taken = False

    def write_result(self, outcome: BatchResult, started_at: int, seal: Seal, stored: StoredLookup) -> CommitReceipt:
        if FencedWriter.is_taken:
            raise Lost("fenced")
        return super().write_result(outcome, started_at, seal, stored)


def test_a_worker_that_leaves_folds_until_its_partitions_are_taken_and_opens_none(
    recovery: FakeRecovery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_owner, "TransactionWriter", FencedWriter)
    monkeypatch.setattr(FencedWriter, "is_taken", False)
    monkeypatch.setattr(assignment, "_BACK_OFF_S", 0.0)

    async def story() -> None:
        bench = OwnerBench(partitions=3, commit_interval_ms=0, tick_commit_interval_ms=0)
        bench.assignment.take_assignment([0])
        owner = bench.assignment.owners[0]
        recovery.gate.release()
        await bench.seen(lambda: owner.is_readable)
        bench.assignment.take_assignment([0, 1])
        opening = bench.assignment.owners[1]
        await bench.seen(lambda: recovery.under_way == 1)
        waiting = asyncio.create_task(owner.wait_until_committed(99, 30.0))
        leaving = asyncio.create_task(bench.assignment.prepare_leaving())
        assert not await waiting, "another worker may answer soon"
        assert not leaving.done(), "an owner that opens is waited for: it must not fence a successor"
        recovery.gate.release()
        assert await leaving == {0: 0}
        assert opening.task.done()

        owner.offer_records(0, [LogRecord(0, 1_000, None, TICK)])
        await bench.seen(lambda: owner.commits == 1)
        assert (owner.is_open, owner.is_readable) == (True, False)
        bench.assignment.reopen_partition(0)
        bench.assignment.take_assignment([0, 1, 2])
        await bench.assignment.wait_until_taken(0.0)
        assert (sorted(bench.assignment.owners), bench.assignment.owners[0]) == ([0, 1], owner)

        monkeypatch.setattr(FencedWriter, "is_taken", True)
        owner.offer_records(1, [LogRecord(1, 1_000, None, TICK)])
        await bench.assignment.wait_until_taken(30.0)
        assert isinstance(owner.task.exception(), Lost)
        await asyncio.sleep(0.01)  # longer than the pause before a new start
        assert (bench.assignment.owners[0], bench.count_errors("reopened")) == (owner, 0)
        await bench.assignment.close()

    asyncio.run(story())


class SlowWriter(FakeWriter):
    """A transaction writer whose broker takes 400 ms for each transaction, by its own account."""

    def write_result(self, outcome: BatchResult, started_at: int, seal: Seal, stored: StoredLookup) -> CommitReceipt:
        return super().write_result(outcome, started_at, seal, stored)._replace(elapsed_s=0.4)


def test_a_partition_that_waits_for_an_open_transaction_holds_no_turn_and_opens_after_it(
    recovery: FakeRecovery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_owner, "_HIDDEN_PAUSE_S", 0.001)
    hidden, looks = {0, 1, 2, 3, 4}, list[int]()

    def recover(*arguments: Any) -> int:
        partition = arguments[1].partition
        looks.append(partition)
        if partition in hidden:
            raise Halted("transaction_open", "reported so")
        recovery.gate.release()
        return recovery.recover(*arguments)

    monkeypatch.setattr(partition_owner, "recover", recover)

    async def story() -> None:
        bench = OwnerBench(partitions=6)
        bench.assignment.take_assignment(range(6))
        owners = bench.assignment.owners
        await bench.seen(lambda: owners[5].is_open)
        await bench.seen(lambda: looks.count(0) > 2)
        hidden.clear()
        await bench.seen(lambda: all(owner.is_open for owner in owners.values()))
        assert not bench.assignment.halted_partitions
        assert bench.context.recovery_turns._value == RECOVERIES_MAX
        await bench.assignment.close()

    asyncio.run(story())


def test_a_transaction_that_stays_open_halts_the_partition_by_name(
    recovery: FakeRecovery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_owner, "_HIDDEN_PAUSE_S", 0.001)
    monkeypatch.setattr(partition_owner, "HIDDEN_S_MAX", 0.05)

    def recover(*_: object) -> int:
        raise Halted("transaction_open", "reported so")

    monkeypatch.setattr(partition_owner, "recover", recover)

    async def story() -> None:
        bench = OwnerBench()
        bench.assignment.take_assignment([0])
        await bench.seen(lambda: bench.assignment.halted_partitions)
        assert bench.assignment.halted_partitions[0].reason == "transaction_open"
        await bench.assignment.close()

    asyncio.run(story())


def test_owners_begin_transactions_further_apart_if_they_take_long(
    recovery: FakeRecovery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_owner, "TransactionWriter", SlowWriter)

    async def story() -> None:
        bench = OwnerBench(partitions=50, commit_interval_ms=1, tick_commit_interval_ms=0)
        bench.assignment.take_assignment(range(50))
        recovery.gate.release(50)
        await bench.seen(lambda: all(owner.is_open for owner in bench.assignment.owners.values()))
        quick_s = bench.context.commit_interval_s
        for owner in bench.assignment.owners.values():
            owner.offer_records(0, [LogRecord(0, 1_000, None, TICK)])
        await bench.seen(lambda: all(owner.commits for owner in bench.assignment.owners.values()))
        assert bench.context.commit_interval_s > 2 * quick_s
        await bench.assignment.close()

    asyncio.run(story())
