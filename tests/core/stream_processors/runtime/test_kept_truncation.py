"""A log that lost folded records halts its partition until it is accepted, or the log has them."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from sessionary.schemas.records import Position
from sessionary.schemas.types import ClockRepair
from sessionary.stream_processors.core.model import BatchResult, LogRecord
from sessionary.stream_processors.errors import EndInDoubt, Halted, Lost
from sessionary.stream_processors.runtime import decisions, partition_owner
from sessionary.stream_processors.runtime.decisions import GapAcceptance, SkippedRecords, TruncationAcceptance
from sessionary.stream_processors.runtime.log_probe import LogProbe, RecordStamp, log_truncated
from sessionary.stream_processors.runtime.partition_owner import PartitionOwner
from sessionary.stream_processors.runtime.transaction import CommitReceipt, Seal
from sessionary.stream_processors.store.packed_rows import StoredLookup
from tests.core.stream_processors.runtime.owner_doubles import FakeRecovery, OwnerBench, RecordingWriter
from tests.support.event_factory import TICK

POSITION = Position(40, 5_000, 0, 7, 0, leader_epoch=3)
CUT = LogProbe(0, 20)
GROWN = LogProbe(0, 90, 40, None)  # what is below the position says nothing
FOLDED = LogProbe(0, 90, 40, RecordStamp(5_000, 3))
OTHER = LogProbe(0, 90, 40, RecordStamp(5_001, 3))  # as in a topic that was made again, without ids
BEGINS_LATER = LogProbe(60, 90, 60, None)


class Rig(OwnerBench):
    """Partition 0: its committed position, and what a probe finds of its log."""

    def __init__(self, recovery: FakeRecovery, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(tick_commit_interval_ms=0)
        self.position, self.log, self._recovery = POSITION, CUT, recovery
        self.last: PartitionOwner | None = None
        self.read_from: list[int] = []
        monkeypatch.setattr(partition_owner, "TransactionWriter", RecordingWriter)
        monkeypatch.setattr(RecordingWriter, "written", [])
        monkeypatch.setattr(partition_owner, "recover", self._recover)
        for module in (partition_owner, decisions):
            monkeypatch.setattr(module, "probe_log", lambda *_: self.log)
        monkeypatch.setattr(decisions, "find_replaced", lambda *_: 40)
        monkeypatch.setattr(decisions, "read_records", self._read_records)

    def _recover(self, *arguments: Any) -> int:
        self._recovery.gate.release()
        end = self._recovery.recover(*arguments)
        arguments[1].load_position(self.position)
        return end

    def _read_records(self, _settings: object, _partition: int, first: int, last: int) -> SkippedRecords:
        self.read_from.append(first)
        return SkippedRecords([LogRecord(n, 4_000, None, TICK) for n in range(first, last + 1)], last + 1)

    def own(
        self, decision: GapAcceptance | TruncationAcceptance | None = None, former: PartitionOwner | None = None
    ) -> PartitionOwner:
        store = self.assignment._stores.store_of(0)
        self.last = owner = PartitionOwner(self.context, 0, lambda: store, former, decision)
        return owner

    async def halts(
        self, decision: GapAcceptance | TruncationAcceptance | None = None, former: PartitionOwner | None = None
    ) -> Halted:
        owner = self.own(decision, former)
        with pytest.raises(Halted) as caught:
            await owner.task
        assert owner.halted is caught.value
        self.position = owner.state.position
        return caught.value

    async def opens(self, decision: GapAcceptance | TruncationAcceptance | None = None) -> PartitionOwner:
        owner = self.own(decision)
        await self.seen(lambda: owner.is_open or owner.task.done())
        assert owner.is_open, owner.halted
        return owner

    async def commit_one(self, owner: PartitionOwner) -> None:
        offset = owner.position.next_offset
        owner.offer_records(offset, [LogRecord(offset, 6_000, None, TICK)])
        assert await owner.wait_until_committed(offset, 60)
        owner.request_end()
        await owner.task
        self.position = owner.state.position


Story = Callable[[Rig], Coroutine[Any, Any, None]]


@pytest.fixture
def run(recovery: FakeRecovery, monkeypatch: pytest.MonkeyPatch) -> Callable[[Story], None]:
    return lambda story: asyncio.run(story(Rig(recovery, monkeypatch)))


@pytest.mark.parametrize("later", [GROWN, OTHER, FOLDED._replace(previous=RecordStamp(5_000, None))])
def test_a_loss_that_shows_no_longer_halts_every_later_owner(run: Callable[[Story], None], later: LogProbe) -> None:
    async def story(rig: Rig) -> None:
        first = await rig.halts()
        assert (first.reason, rig.position.log_truncated) == ("log_truncated", first.detail)
        assert len(RecordingWriter.written) == 1, "one transaction says so"
        assert rig.position.next_offset == 40
        rig.log = later
        for _ in range(2):
            again = await rig.halts()
            assert (again.reason, again.detail) == ("log_truncated", first.detail)
        assert len(RecordingWriter.written) == 1

    run(story)


def test_an_aborted_transaction_is_repeated_until_the_position_says_so(
    run: Callable[[Story], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RecordingWriter, "aborts", 2)

    async def story(rig: Rig) -> None:
        await rig.halts()
        assert rig.position.log_truncated is not None

    run(story)


class FailingWriter(RecordingWriter):
    """A transaction writer that loses its producer in as many transactions as `failures`."""

    failures = 0
    fault: type[Exception] = Lost

    def write_result(self, outcome: BatchResult, started_at: int, seal: Seal, stored: StoredLookup) -> CommitReceipt:
        if FailingWriter.failures:
            FailingWriter.failures -= 1
            raise self.fault("reported so")
        return super().write_result(outcome, started_at, seal, stored)


@pytest.mark.parametrize("fault", [Lost, EndInDoubt, lambda text: Halted("record_too_large", text)])
def test_a_truncation_that_cannot_be_kept_halts_and_is_kept_by_the_next_owner(
    run: Callable[[Story], None], monkeypatch: pytest.MonkeyPatch, fault: type[Exception]
) -> None:
    monkeypatch.setattr(FailingWriter, "failures", 2)
    monkeypatch.setattr(FailingWriter, "fault", staticmethod(fault))

    async def story(rig: Rig) -> None:
        monkeypatch.setattr(partition_owner, "TransactionWriter", FailingWriter)
        found = await rig.halts()
        assert (found.reason, rig.position.log_truncated) == ("log_truncated", None)
        rig.log = GROWN  # the loss shows no longer
        for kept in (None, found.detail):
            assert (await rig.halts(former=rig.last)).detail == found.detail
            rig.position = rig.position._replace(log_truncated=kept)
        assert len(RecordingWriter.written) == 1
        assert (await rig.halts()).detail == found.detail

    run(story)


def test_a_truncation_that_could_not_be_kept_is_void_once_another_owner_has_folded(
    run: Callable[[Story], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FailingWriter, "failures", 1)

    async def story(rig: Rig) -> None:
        monkeypatch.setattr(partition_owner, "TransactionWriter", FailingWriter)
        await rig.halts()
        rig.position, rig.log = rig.position._replace(next_offset=41, batch_number=8), FOLDED
        owner = rig.own(former=rig.last)
        await rig.seen(lambda: owner.is_open or owner.task.done())
        assert owner.is_open
        owner.request_end()
        await owner.task

    run(story)


def test_an_accepted_truncation_that_was_not_kept_does_not_come_back(
    run: Callable[[Story], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FailingWriter, "failures", 1)

    def lose(*_: object) -> LogProbe:
        raise Lost("reported so")

    async def story(rig: Rig) -> None:
        monkeypatch.setattr(partition_owner, "TransactionWriter", FailingWriter)
        await rig.halts()
        rig.log = GROWN
        with monkeypatch.context() as patch:
            patch.setattr(partition_owner, "probe_log", lose)
            owner = rig.own(TruncationAcceptance("power loss", "alice"), rig.last)
            with pytest.raises(Lost):
                await owner.task
        rig.position = owner.state.position
        owner = rig.own(former=owner)
        await rig.seen(lambda: owner.is_open or owner.task.done())
        assert owner.is_open, owner.halted
        owner.request_end()
        await owner.task

    run(story)


def test_a_loss_that_an_open_partition_notices_is_kept_too(run: Callable[[Story], None]) -> None:
    async def story(rig: Rig) -> None:
        rig.log = FOLDED
        owner = await rig.opens()
        owner.request_halt(log_truncated(0, 40, "the log ends at 20", 20))
        with pytest.raises(Halted):
            await owner.task
        rig.position = owner.state.position
        assert "the log ends at 20" in str(rig.position.log_truncated)
        rig.log = GROWN
        assert (await rig.halts()).reason == "log_truncated"

    run(story)


def test_a_log_that_has_the_folded_record_again_opens_the_partition(run: Callable[[Story], None]) -> None:
    async def story(rig: Rig) -> None:
        await rig.halts()
        rig.log = FOLDED
        owner = await rig.opens()
        await rig.commit_one(owner)
        assert (rig.position.log_truncated, rig.position.next_offset) == (None, 41)

    run(story)


REPAIRED = POSITION._replace(clock_repairs=(ClockRepair(1, 40, 5_000, 0, 4_000),))


@pytest.mark.parametrize(
    "position", [POSITION._replace(events_topic_id="events-1"), REPAIRED], ids=["with an id", "after a repair"]
)
def test_a_folded_record_is_known_by_its_epoch_whatever_its_stamp(
    run: Callable[[Story], None], position: Position
) -> None:
    async def story(rig: Rig) -> None:
        rig.position = position
        await rig.halts()
        rig.log = OTHER
        owner = await rig.opens()
        owner.request_end()
        await owner.task

    run(story)


@pytest.mark.parametrize("log", [GROWN, OTHER])
def test_an_operator_accepts_a_loss_that_shows_no_longer(run: Callable[[Story], None], log: LogProbe) -> None:
    async def story(rig: Rig) -> None:
        await rig.halts()
        rig.log = log
        owner = await rig.opens(TruncationAcceptance("power loss", "alice"))
        (decision,) = owner.state.position.decisions
        assert (decision.event_type, decision.principal) == ("log_truncation_accepted", "alice")
        assert owner.state.position.log_truncated is None
        await rig.commit_one(owner)
        assert (rig.position.log_truncated, rig.position.next_offset) == (None, 41)

    run(story)


def replaced_offsets() -> list[tuple[int | None, int | None]]:
    """Return the offsets that the decisions name, first and last."""
    audited = [
        record for result in RecordingWriter.written for stream, _, record in result.emitted if stream == "audit"
    ]
    return [(record.gap_first, record.gap_last) for record in audited if record.kind == "decision"]


@pytest.mark.parametrize(("ends", "first"), [([20], 20), ([20, 25], 20), ([20, 15], 15)])
def test_an_accepted_loss_begins_at_the_smallest_end_that_was_seen(
    run: Callable[[Story], None], ends: list[int], first: int
) -> None:
    async def story(rig: Rig) -> None:
        for end in ends:
            rig.log = LogProbe(0, end)
            await rig.halts()
        assert rig.position.log_lost_from == first
        rig.log = GROWN
        owner = await rig.opens(TruncationAcceptance("power loss", "alice"))
        assert rig.read_from == [first]
        assert replaced_offsets() == [(first, 39)]
        assert (owner.state.position.log_truncated, owner.state.position.log_lost_from) == (None, None)
        owner.request_end()
        await owner.task

    run(story)


@pytest.mark.parametrize(("start", "read_from"), [(30, [30]), (40, [])], ids=["below the position", "at it"])
def test_a_loss_of_which_the_log_has_only_the_end_or_nothing_can_be_accepted(
    run: Callable[[Story], None], start: int, read_from: list[int]
) -> None:
    async def story(rig: Rig) -> None:
        await rig.halts()
        rig.log = LogProbe(start, 90, 40, None)
        assert (await rig.halts()).reason == "log_truncated"
        owner = await rig.opens(TruncationAcceptance("power loss", "alice"))
        assert (rig.read_from, replaced_offsets()) == (read_from, [(20, 39)])
        await rig.commit_one(owner)
        assert (rig.position.log_truncated, rig.position.next_offset) == (None, 41)

    run(story)


def test_a_loss_of_ticks_that_waited_for_their_commit_is_not_kept(run: Callable[[Story], None]) -> None:
    async def story(rig: Rig) -> None:
        rig.log = FOLDED
        owner = await rig.opens()
        owner.request_halt(log_truncated(0, 45, "the log ends at 42", 42))
        with pytest.raises(Halted):
            await owner.task
        assert owner.state.position.log_truncated is None
        assert RecordingWriter.written == []

    run(story)


def test_a_gap_behind_a_loss_is_named_and_ends_it_if_it_is_accepted(run: Callable[[Story], None]) -> None:
    async def story(rig: Rig) -> None:
        await rig.halts()
        rig.log = BEGINS_LATER
        assert (await rig.halts()).reason == "log_gap"
        assert (await rig.halts(TruncationAcceptance("power loss", "alice"))).reason == "log_gap"
        owner = await rig.opens(GapAcceptance("deleted", "alice"))
        assert (owner.state.position.log_truncated, owner.state.position.next_offset) == (None, 60)
        owner.request_end()
        await owner.task

    run(story)
