"""Batches that hold only ticks: which of them wait, for how long, and what others see meanwhile."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from sessionary.schemas.errors import Unavailable
from sessionary.schemas.kafka.log_progress import LogEnd
from sessionary.schemas.records import Position
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.stream_processors.core.families import CHILDREN
from sessionary.stream_processors.core.family import SessionArrival
from sessionary.stream_processors.core.model import BatchResult, LogRecord
from sessionary.stream_processors.core.session.judge import SessionJudge
from sessionary.stream_processors.core.trail import ACCESS_N, Access
from sessionary.stream_processors.runtime import partition_owner
from sessionary.stream_processors.runtime.log_probe import LogProbe
from sessionary.stream_processors.runtime.open_batch import LookupReport, OpenBatch
from sessionary.stream_processors.runtime.partition_owner import PartitionOwner
from sessionary.stream_processors.runtime.watchdog import StuckLimits, StuckPartitionWatchdog, TruncationWatchdog
from tests.core.stream_processors.runtime.owner_doubles import FakeRecovery, OwnerBench, RecordingWriter
from tests.support.event_factory import TICK, EventFactory

START_MS = 1_700_000_000_000
AT_RULES_2 = Position(0, 0, 0, 0, 0, rules=NEWEST_RULES)
Story = Callable[[OwnerBench, PartitionOwner], Coroutine[Any, Any, None]]


@pytest.fixture(autouse=True)
def written(monkeypatch: pytest.MonkeyPatch) -> list[BatchResult]:
    """Let partitions open without a broker; return what their owners commit."""
    recovery = FakeRecovery()
    recovery.gate.release(100)
    monkeypatch.setattr(partition_owner, "TransactionWriter", RecordingWriter)
    monkeypatch.setattr(partition_owner, "recover", recovery.recover)
    monkeypatch.setattr(partition_owner, "probe_log", lambda settings, partition, offset: LogProbe(0, 0))
    monkeypatch.setattr(RecordingWriter, "written", [])
    monkeypatch.setattr(RecordingWriter, "aborts", 0)
    return RecordingWriter.written


def run(story: Story, **settings: Any) -> None:
    async def play() -> None:
        bench = OwnerBench(partitions=1, commit_interval_ms=0, **settings)
        bench.assignment.take_assignment([0])
        owner = bench.assignment.owners[0]
        await bench.seen(lambda: owner.is_open)
        await story(bench, owner)
        await bench.assignment.close()

    asyncio.run(play())


def tick(offset: int) -> LogRecord:
    return LogRecord(offset, START_MS + offset * 1_000, None, TICK)


def creation(offset: int) -> LogRecord:
    agent = EventFactory()
    return LogRecord(offset, START_MS + offset * 1_000, agent.key.encoded(), agent.event_bytes("session_created"))


async def fold(bench: OwnerBench, owner: PartitionOwner, *records: LogRecord) -> None:
    """Offer records one by one, and wait until each is folded."""
    for record in records:
        owner.offer_records(record.offset, [record])
        await bench.seen(lambda record=record: owner.position.next_offset > record.offset)  # type: ignore[misc]


def offsets(written: list[BatchResult]) -> list[tuple[int, int, int, int]]:
    """Return number, first offset, last offset and ticks of each batch."""
    return [
        (one.position.batch_number, one.counts.first_offset, one.counts.last_offset, one.counts.ticks)
        for one in written
    ]


def test_ticks_alone_are_committed_with_the_next_event(written: list[BatchResult]) -> None:
    async def story(bench: OwnerBench, owner: PartitionOwner) -> None:
        await fold(bench, owner, *map(tick, range(5)))
        assert offsets(written) == [(1, 0, 0, 1)], "an owner's first batch shows who owns the partition"
        assert owner.state.position.next_offset == 1
        await fold(bench, owner, creation(5), tick(6))
        assert offsets(written) == [(1, 0, 0, 1), (2, 1, 5, 4)]

    run(story)


def test_ticks_alone_are_committed_once_their_time_has_come(written: list[BatchResult]) -> None:
    async def story(bench: OwnerBench, owner: PartitionOwner) -> None:
        await fold(bench, owner, tick(0))
        await bench.seen(lambda: owner.commits == 1)
        first_s = owner.committed_s
        owner.offer_records(1, [tick(1), tick(2)])
        await bench.seen(lambda: owner.commits == 2)  # without another record
        assert time.monotonic() - first_s >= 0.3
        assert offsets(written) == [(1, 0, 0, 1), (2, 1, 2, 2)]

    run(story, tick_commit_interval_ms=300)


def test_without_an_interval_each_tick_is_committed(written: list[BatchResult]) -> None:
    async def story(bench: OwnerBench, owner: PartitionOwner) -> None:
        await fold(bench, owner, *map(tick, range(3)))
        assert len(written) == 3

    run(story, tick_commit_interval_ms=0)


def test_the_ticks_of_an_aborted_transaction_are_folded_again(written: list[BatchResult]) -> None:
    async def story(bench: OwnerBench, owner: PartitionOwner) -> None:
        await fold(bench, owner, *map(tick, range(3)))
        RecordingWriter.aborts = 1
        owner.offer_records(3, [creation(3)])
        await bench.seen(lambda: bench.count_errors("aborted"))
        await bench.seen(lambda: owner.commits == 2)
        assert offsets(written) == [(1, 0, 0, 1), (2, 1, 3, 2)]

    run(story)


def access(principal: str) -> Access:
    return Access("acme", principal, "unknown_session", "requests since the last such record: 1")


def reported(written: list[BatchResult]) -> list[list[str]]:
    """Return for each transaction whose accesses it tells."""
    return [[line.actor for _, line in one.records_on("audit") if line.kind == "access"] for one in written]


def test_an_access_is_reported_once_with_the_next_tick_which_is_due_at_once(written: list[BatchResult]) -> None:
    async def story(bench: OwnerBench, owner: PartitionOwner) -> None:
        owner.state.load_position(AT_RULES_2)
        await fold(bench, owner, tick(0))
        assert owner.tick_deadline_ms != 0
        owner.accesses += [access("ann"), access("bob")]
        assert owner.tick_deadline_ms == 0
        await fold(bench, owner, tick(1))
        await bench.seen(lambda: owner.commits == 2)  # without the pause of ticks
        await fold(bench, owner, creation(2))
        assert reported(written) == [[], ["ann", "bob"], []]
        assert (owner.tick_deadline_ms != 0, owner.accesses) == (True, [])
        assert [one.counts.audited for one in written] == [0, 2, 1]
        first, second = (line for _, line in written[1].records_on("audit"))
        assert first.audit_id != second.audit_id
        assert [(line.source_offset, line.source_n) for line in (first, second)] == [(1, ACCESS_N), (1, ACCESS_N + 1)]

    run(story, tick_commit_interval_ms=60_000)


def test_an_access_is_reported_again_after_an_aborted_transaction(written: list[BatchResult]) -> None:
    async def story(bench: OwnerBench, owner: PartitionOwner) -> None:
        owner.state.load_position(AT_RULES_2)
        RecordingWriter.aborts = 1
        owner.accesses.append(access("ann"))
        owner.offer_records(0, [creation(0)])
        await bench.seen(lambda: owner.commits == 1)
        assert reported(written) == [["ann"]]

    run(story)


def test_a_batch_full_of_ticks_is_committed(written: list[BatchResult]) -> None:
    async def story(bench: OwnerBench, owner: PartitionOwner) -> None:
        owner.state.settings = owner.state.settings._replace(records_max=3)
        await fold(bench, owner, *map(tick, range(6)))
        assert offsets(written) == [(1, 0, 0, 1), (2, 1, 3, 3)]
        assert (owner.position.next_offset, owner.state.position.next_offset) == (6, 4)

    run(story)


def test_ticks_that_wait_count_as_folded_for_lag_and_for_the_watchdogs() -> None:
    async def story(bench: OwnerBench, owner: PartitionOwner) -> None:
        await fold(bench, owner, *map(tick, range(5)))
        assert bench.assignment.next_offsets == {0: 5}
        positions = bench.assignment.open_positions
        assert positions == {0: owner.position}
        assert (positions[0].next_offset, positions[0].clock_ms) == (5, START_MS + 4_000)
        limits = StuckLimits(30.0, 90.0)
        stuck = StuckPartitionWatchdog(bench.assignment, bench.metrics, limits, pytest.fail, lambda _: None)
        stuck.check_progress({0: 5}, 0.0)
        assert stuck.find_suspects({0: 5}, 60.0) == {}
        truncation = TruncationWatchdog(bench.assignment)
        for _ in range(2):
            truncation.check_ends(positions, {0: LogEnd(4, 0)})  # behind the committed position, but folded
        await bench.seen(lambda: bench.assignment.halted_partitions)
        assert bench.assignment.halted_partitions[0].reason == "log_truncated"
        assert bench.assignment.owners[0].position.next_offset == 1, "the next owner begins at what is committed"

    run(story)


def test_what_waits_is_reported_by_its_first_record_and_folding_takes_time(written: list[BatchResult]) -> None:
    async def story(bench: OwnerBench, owner: PartitionOwner) -> None:
        assert owner.first_waiting_ms is None
        await fold(bench, owner, *map(tick, range(3)))
        assert owner.first_waiting_ms is None, "ticks that wait are folded"
        state = bench.context.job.new_state(0)
        state.finish_loading()
        batch = OpenBatch(state)
        assert (batch.first_ms_from(3), batch.fold_s) == (None, 0.0)
        await batch.fold_records([tick(3), creation(4)], lambda: True, LookupReport(bench.metrics, 0))
        assert (batch.first_ms_from(0), batch.first_ms_from(4)) == (START_MS + 3_000, START_MS + 4_000)
        assert batch.fold_s > 0
        await fold(bench, owner, creation(3))
        assert bench.metrics.work_s._value.get() > 0

    run(story)


class WaitingJudge(SessionJudge):
    """Notes the offsets of records that it reads, and waits for a registry."""

    def __init__(self, asked: list[int]) -> None:
        super().__init__(CHILDREN)
        self.asked = asked

    def read(self, record: LogRecord, *_: object) -> SessionArrival | None:
        self.asked.append(record.offset)
        raise Unavailable("the schema registry does not answer", 0.01)


@pytest.mark.interpreted  # a compiled judge has no heirs
def test_a_fold_that_waits_for_a_schema_registry_ends_once_it_is_not_wanted(written: list[BatchResult]) -> None:
    asked, wanted = list[int](), iter([True, True, False])

    async def story(bench: OwnerBench, owner: PartitionOwner) -> None:
        state = bench.context.job.new_state(0)
        state.finish_loading()
        state.judge = WaitingJudge(asked)
        batch, report = OpenBatch(state), LookupReport(bench.metrics, 0)
        assert await batch.fold_records([creation(0), creation(1)], lambda: next(wanted), report) == 0
        assert asked == [0, 0, 0], "asked again while the fold is wanted, and no more"
        assert (batch.records, batch.finish(None).counts.records) == ([], 0)

    run(story)


@pytest.mark.interpreted  # as above
def test_an_owner_that_waits_for_a_schema_registry_ends_without_a_transaction(written: list[BatchResult]) -> None:
    asked: list[int] = []

    async def story(bench: OwnerBench, owner: PartitionOwner) -> None:
        owner.state.judge = WaitingJudge(asked)
        owner.offer_records(0, [creation(0)])
        await bench.seen(lambda: len(asked) >= 3)
        bench.assignment.take_assignment([])
        await bench.seen(owner.task.done)
        assert (owner.task.exception(), owner.position.next_offset, written) == (None, 0, [])

    run(story)


def test_only_events_that_audit_or_rejections_report_on_are_asked_for_their_trace(written: list[BatchResult]) -> None:
    context = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    read: list[int] = []

    class WatchedRecord(LogRecord):
        __slots__ = ()

        @property
        def headers(self) -> Sequence[tuple[str, bytes]]:
            read.append(self.offset)
            return ("ce_id", b"1"), ("traceparent", b"junk" if self.offset == 2 else context)

    async def story(bench: OwnerBench, owner: PartitionOwner) -> None:
        created, rejected = creation(1), creation(2)
        records = [
            tick(0),
            WatchedRecord(*created),
            WatchedRecord(*rejected._replace(value=b"junk")),
            WatchedRecord(3, created.timestamp_ms + 9, created.key, created.value),
        ]
        owner.offer_records(0, records)
        await bench.seen(lambda: owner.position.next_offset == 4)
        found = {offset: value for one in written for offset, value in one.traceparents.items()}
        assert found == {1: context}, "a malformed one is left out"
        assert 3 not in read, "a repeated event has no record"

    run(story)
