"""A partition whose last transaction's end is in doubt goes on with a new producer."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sessionary.stream_processors.core.model import BatchResult, LogRecord
from sessionary.stream_processors.errors import EndInDoubt
from sessionary.stream_processors.runtime import assignment, partition_owner
from sessionary.stream_processors.runtime.partition_owner import PartitionOwner
from sessionary.stream_processors.runtime.transaction import CommitReceipt, Seal
from sessionary.stream_processors.store.packed_rows import StoredLookup
from tests.core.stream_processors.runtime.owner_doubles import FakeRecovery, FakeWriter, OwnerBench
from tests.support.event_factory import TICK

AFTER_COMMIT = 2  # the changelog's end after a commit of `FakeWriter`: its last record, and a marker


class DoubtfulWriter(FakeWriter):
    """A transaction writer whose first transaction has an end in doubt."""

    calls: list[str] = []
    gate: threading.Semaphore | None = None  # that fencing waits for

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.commits = 0

    def fence_former_owner(self) -> None:
        self.calls.append("fence")
        if self.gate is not None:
            assert self.gate.acquire(timeout=120)

    def write_result(self, outcome: BatchResult, started_at: int, seal: Seal, stored: StoredLookup) -> CommitReceipt:
        if self.commits:
            raise EndInDoubt("reported so")
        self.commits += 1
        self.calls.append(f"write up to {outcome.position.next_offset}")
        return super().write_result(outcome, started_at, seal, stored)

    def discard(self) -> None:
        self.calls.append("discard")


class _Partition:
    """An open partition, and where its changelog ends by the broker."""

    def __init__(self, recovery: FakeRecovery) -> None:
        self.changelog_end, self.unheard_s = 0, 0.0
        self.bench = OwnerBench(
            changelog_end=lambda _: self.changelog_end, commit_interval_ms=0, tick_commit_interval_ms=0
        )
        self.bench.assignment._heartbeat_s = lambda: time.monotonic() - self.unheard_s
        self._recovery = recovery

    @property
    def owner(self) -> PartitionOwner:
        return self.bench.assignment.owners[0]

    async def open(self) -> None:
        self.bench.assignment.take_assignment([0])
        await self.wait_open()

    async def wait_open(self) -> None:
        self._recovery.gate.release()
        await self.bench.seen(lambda: self.owner.is_open)

    async def commit(self, offset: int) -> None:
        owner, commits = self.owner, self.owner.commits
        owner.offer_records(offset, [LogRecord(offset, 1_000, None, TICK)])
        await self.bench.seen(lambda: owner.commits > commits or owner.task.done())


@pytest.fixture
def play(recovery: FakeRecovery, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Play a story with an open partition that has committed its first record."""
    monkeypatch.setattr(assignment, "_BACK_OFF_S", 0.0)

    monkeypatch.setattr(partition_owner, "TransactionWriter", DoubtfulWriter)
    monkeypatch.setattr(DoubtfulWriter, "calls", [])

    def play(story: Callable[[_Partition], Awaitable[None]]) -> None:
        async def play_once() -> None:
            partition = _Partition(recovery)
            await partition.open()
            await partition.commit(0)
            await story(partition)
            recovery.gate.release(10)
            await partition.bench.assignment.close()

        asyncio.run(play_once())

    return play


def test_the_next_batch_is_written_once_by_a_new_producer_and_nothing_is_read_again(
    play: Callable[..., None], recovery: FakeRecovery
) -> None:
    async def story(partition: _Partition) -> None:
        owner, partition.changelog_end = partition.owner, AFTER_COMMIT
        await partition.commit(1)
        await partition.commit(2)
        assert partition.owner is owner
        assert owner.is_readable
        assert (recovery.ended, owner.commits, owner.position.next_offset) == (1, 3, 3)
        renewed = ["discard", "fence"]
        assert DoubtfulWriter.calls == [
            *("fence", "write up to 1", *renewed, "write up to 2", *renewed, "write up to 3"),
        ]
        assert [partition.bench.count_errors(kind) for kind in ("renewed", "reopened")] == [2, 0]

    play(story)


@pytest.mark.parametrize("end", [0, AFTER_COMMIT - 1, AFTER_COMMIT + 1])
def test_a_changelog_that_ends_elsewhere_is_read_again(
    end: int, play: Callable[..., None], recovery: FakeRecovery
) -> None:
    async def story(partition: _Partition) -> None:
        owner, partition.changelog_end = partition.owner, end
        await partition.commit(1)
        await partition.bench.seen(lambda: partition.owner is not owner)
        assert isinstance(owner.task.exception(), EndInDoubt)
        assert owner.commits == 1
        await partition.wait_open()
        assert recovery.ended == 2
        assert [partition.bench.count_errors(kind) for kind in ("renewed", "reopened")] == [0, 1]

    play(story)


@pytest.mark.parametrize("why", ["a rebalance", "no heartbeat", "leaving"])
def test_no_owner_elsewhere_is_fenced_while_the_partition_may_be_another_worker_s(
    why: str, play: Callable[..., None]
) -> None:
    async def story(partition: _Partition) -> None:
        owner, partition.changelog_end = partition.owner, AFTER_COMMIT
        if why == "a rebalance":
            partition.bench.assignment.begin_rebalance()
        elif why == "leaving":
            await partition.bench.assignment.prepare_leaving()
        else:
            partition.unheard_s = 3_600.0
        await partition.commit(1)
        assert isinstance(owner.task.exception(), EndInDoubt)
        assert DoubtfulWriter.calls == ["fence", "write up to 1", "discard"]
        assert partition.owner is owner

    play(story)


def test_a_worker_that_leaves_waits_for_a_producer_that_is_being_replaced(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(partition: _Partition) -> None:
        owner, partition.changelog_end = partition.owner, AFTER_COMMIT
        gate = threading.Semaphore(0)
        monkeypatch.setattr(DoubtfulWriter, "gate", gate)
        owner.offer_records(1, [LogRecord(1, 1_000, None, TICK)])
        await partition.bench.seen(lambda: DoubtfulWriter.calls[-1] == "fence")
        leaving = asyncio.create_task(partition.bench.assignment.prepare_leaving())
        await asyncio.sleep(0.01)
        assert not leaving.done(), "it must not fence a successor"
        gate.release()
        assert await leaving == {}
        assert owner.task.done()

    play(story)


@pytest.mark.parametrize("why", ["a rebalance", "no heartbeat"])
def test_a_batch_is_not_written_if_the_partition_may_be_another_worker_s_by_then(
    why: str, play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(partition: _Partition) -> None:
        owner, partition.changelog_end = partition.owner, AFTER_COMMIT
        gate = threading.Semaphore(0)
        monkeypatch.setattr(DoubtfulWriter, "gate", gate)
        owner.offer_records(1, [LogRecord(1, 1_000, None, TICK)])
        await partition.bench.seen(lambda: DoubtfulWriter.calls[-1] == "fence")
        if why == "a rebalance":
            partition.bench.assignment.begin_rebalance()
        else:
            partition.unheard_s = 3_600.0
        gate.release()
        await partition.bench.seen(owner.task.done)
        assert isinstance(owner.task.exception(), EndInDoubt)
        assert DoubtfulWriter.calls == ["fence", "write up to 1", "discard", "fence", "discard"]
        assert partition.owner is owner

    play(story)
