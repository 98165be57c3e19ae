"""What is read of the records that an operator skips, if one of their batches cannot be read."""

import asyncio
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from sessionary.schemas.records import Position
from sessionary.stream_processors.core.model import LogRecord
from sessionary.stream_processors.errors import Halted, Lost
from sessionary.stream_processors.runtime import decisions
from sessionary.stream_processors.runtime.decisions import (
    FILL_MAX,
    GapAcceptance,
    PendingDecision,
    RecordSkip,
    SkippedRecords,
    TruncationAcceptance,
    _skipped_offsets,
    fill_log,
    find_replaced,
    read_records,
)
from sessionary.stream_processors.runtime.log_probe import LogProbe
from sessionary.stream_processors.settings import ProcessorSettings
from tests.core.stream_processors.runtime.messages import end_of, message
from tests.core.stream_processors.runtime.owner_doubles import OwnerBench

SETTINGS = ProcessorSettings(bootstrap_servers="127.0.0.1:1")


class DamagedLog:
    """A reader of a log in which the offsets of one batch cannot be read.

    `leaves_over`: each report of the batch is followed by one of an offset that the log lacks.
    """

    def __init__(self, damaged: range, end_offset: int, *, leaves_over: bool = False) -> None:
        self.damaged, self.end_offset, self.leaves_over = damaged, end_offset, leaves_over
        self.next_offset = self.assigned = 0
        self._left_over: list[Message] = []

    def assign(self, places: list[TopicPartition]) -> None:
        self.next_offset, self.assigned = places[0].offset, self.assigned + 1

    def poll(self, _timeout_s: float) -> Message:
        offset = self.next_offset
        if self._left_over:
            return self._left_over.pop()
        if offset >= self.end_offset:
            return end_of(0, offset)
        if offset in self.damaged:
            if self.leaves_over:
                self._left_over.append(message(0, 1 << 62, error=KafkaError(KafkaError._AUTO_OFFSET_RESET)))
            return message(0, self.damaged.start, error=KafkaError(KafkaError._BAD_COMPRESSION))
        self.next_offset += 1
        return message(0, offset)

    def get_watermark_offsets(self, _place: TopicPartition, timeout: float) -> tuple[int, int]:
        return 0, self.end_offset

    def close(self) -> None:
        """There is no connection."""


def read_log(monkeypatch: pytest.MonkeyPatch, log: DamagedLog, first: int, last: int) -> tuple[list[int], int]:
    """Return the offsets of what is read from `first` to `last`, and the next offset."""
    monkeypatch.setattr(decisions, "reader_of", lambda _: log)
    read = read_records(SETTINGS, 0, first, last)
    return [record.offset for record in read.records], read.next_offset


@pytest.mark.parametrize("leaves_over", [False, True])
@pytest.mark.parametrize("after", [0, 1, 50])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1_000])
def test_a_batch_that_cannot_be_read_is_skipped_to_its_end(
    monkeypatch: pytest.MonkeyPatch, size: int, after: int, leaves_over: bool
) -> None:
    log = DamagedLog(range(5, 5 + size), 5 + size + after, leaves_over=leaves_over)
    assert read_log(monkeypatch, log, 5, 5) == ([], 5 + size)
    assert log.assigned <= 25 * (1 + leaves_over), "the end is searched for by halves"
    middle = 5 + size // 2
    assert read_log(monkeypatch, log, middle, middle) == ([], 5 + size)


def test_records_before_and_after_such_a_batch_are_read_for_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    log = DamagedLog(range(5, 8), 20)
    assert read_log(monkeypatch, log, 3, 9) == ([3, 4], 5)
    assert read_log(monkeypatch, log, 5, 9) == ([], 8)
    assert read_log(monkeypatch, log, 8, 9) == ([8, 9], 10)
    assert read_log(monkeypatch, log, 3, 4) == ([3, 4], 5)
    assert read_log(monkeypatch, log, 18, 30) == ([18, 19], 20)


NEXT_OFFSET, CLOCK_MS = 40, 5_000


class StampedMessage:
    """A record's stamp and leader epoch."""

    def __init__(self, timestamp_ms: int, epoch: int | None) -> None:
        self._timestamp_ms, self._epoch = timestamp_ms, epoch

    def error(self) -> None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return 2, self._timestamp_ms

    def leader_epoch(self) -> int | None:
        return self._epoch


class CutLog:
    """A reader of a log whose records from `cut` on were appended later, by another leader."""

    def __init__(self, cut: int, epochs: tuple[int, int] | None, message: Any = None) -> None:
        self.cut, self.epochs, self.message, self.offset = cut, epochs, message, 0
        self.is_closed = False

    def assign(self, places: list[TopicPartition]) -> None:
        self.offset = places[0].offset

    def poll(self, _timeout_s: float) -> Any:
        if self.message is not None:
            return self.message if self.message != "silence" else None
        is_later = self.offset >= self.cut
        return StampedMessage(CLOCK_MS + is_later, self.epochs and self.epochs[is_later])

    def close(self) -> None:
        self.is_closed = True


def find_in(monkeypatch: pytest.MonkeyPatch, log: CutLog, epoch: int | None, start: int = 0) -> int:
    monkeypatch.setattr(decisions, "reader_of", lambda _: log)
    position = Position(NEXT_OFFSET, CLOCK_MS, 0, 1, 0, leader_epoch=epoch)
    try:
        return find_replaced(SETTINGS, 0, position, start)
    finally:
        assert log.is_closed


@pytest.mark.parametrize("cut", [0, 1, 17, 39, 40])
@pytest.mark.parametrize(("epoch", "epochs"), [(3, (3, 4)), (3, (1, 9)), (3, None), (None, (3, 4))])
def test_records_of_a_later_epoch_or_after_the_clock_were_never_folded(
    monkeypatch: pytest.MonkeyPatch, cut: int, epoch: int | None, epochs: tuple[int, int] | None
) -> None:
    assert find_in(monkeypatch, CutLog(cut, epochs), epoch) == cut
    assert find_in(monkeypatch, CutLog(cut, epochs), epoch, start=20) == max(20, cut)


def test_an_offset_at_the_end_of_the_log_counts_as_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_in(monkeypatch, CutLog(0, None, end_of(0, 7)), 3, start=30) == 30


def test_a_broker_that_does_not_answer_loses_the_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Lost, match="nothing read at offset"):
        find_in(monkeypatch, CutLog(0, None, "silence"), 3)

    class FailedLog(CutLog):
        def poll(self, _timeout_s: float) -> Any:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    with pytest.raises(Lost, match="events of partition 0"):
        find_in(monkeypatch, FailedLog(0, None), 3)


def test_a_log_that_lost_very_much_is_not_filled() -> None:
    with pytest.raises(Halted, match="at most 1,000,000 are filled"):
        fill_log(SETTINGS, 0, LogProbe(0, 9), 9 + FILL_MAX + 1)


POSITION = Position(5, 4_000, 0, 1, 0)
SKIP = RecordSkip(5, 7, "it fails", "alice", Halted("clock_ahead", "reported so", 90.0, 5))
RECORDS = [LogRecord(n, 1_000 * n, b"k", b"v") for n in range(3, 9)]


class EpochRecord(LogRecord):
    """A record of leader epoch 4."""

    __slots__ = ()

    @property
    def leader_epoch(self) -> int | None:
        return 4


def pending(decision: RecordSkip | GapAcceptance | None) -> PendingDecision:
    return PendingDecision(OwnerBench().context, 0, decision)


def test_records_before_a_skip_are_folded_and_it_is_reached_with_its_first_one() -> None:
    decision = pending(SKIP)
    assert decision.cut_records(RECORDS[:2]) == RECORDS[:2]
    assert not decision.is_reached
    assert decision.cut_records(RECORDS) == RECORDS[:2]
    assert decision.is_reached


@pytest.mark.parametrize(("offset", "covered"), [(None, False), (4, False), (5, True), (7, True), (8, False)])
def test_a_halt_within_a_skip_is_what_was_decided_about(offset: int | None, covered: bool) -> None:
    decision = pending(SKIP)
    assert decision.covers_halt(offset) == covered
    assert decision.is_reached == covered


@pytest.mark.parametrize("other", [None, GapAcceptance("lost", "alice")])
def test_without_a_skip_every_record_is_folded_and_every_halt_stands(other: GapAcceptance | None) -> None:
    decision = pending(other)
    assert decision.cut_records(RECORDS) == RECORDS
    assert not decision.covers_halt(5)
    assert not decision.is_reached


def test_a_skip_leaves_the_clock_if_the_leader_epoch_is_known() -> None:
    known = SkippedRecords([LogRecord(6, 9_500, b"k", b"v"), EpochRecord(7, 9_000, b"k", b"v")], 8)
    skipped = _skipped_offsets(SKIP, POSITION, known, 0.0)
    assert (skipped.next_offset, skipped.clock_ms, skipped.event_type) == (8, 4_000, "records_skipped")


def test_a_skip_without_a_leader_epoch_raises_the_clock_to_the_last_stamp_unless_that_is_ahead() -> None:
    unknown = SkippedRecords([EpochRecord(6, 9_500, b"k", b"v"), LogRecord(7, 9_000, b"k", b"v")], 8)
    skipped = _skipped_offsets(SKIP, POSITION, unknown, 9.0)
    assert (skipped.next_offset, skipped.clock_ms, skipped.event_type) == (8, 9_000, "records_skipped")
    with pytest.raises(Halted, match=r"offset 7 is stamped 1\.5 s ahead") as caught:
        _skipped_offsets(SKIP, POSITION, unknown, 7.5)
    assert (caught.value.reason, caught.value.offset, caught.value.clears_in_s) == ("clock_ahead", 5, 1.5)
    for clock_ms in (9_000, 9_001):  # it never goes back, and where it stays no worker's clock matters
        assert _skipped_offsets(SKIP, POSITION._replace(clock_ms=clock_ms), unknown, 0.0).clock_ms == clock_ms


def test_a_log_that_an_open_transaction_cuts_is_not_filled_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    filled: list[int] = []
    monkeypatch.setattr(decisions, "probe_log", lambda *_: LogProbe(0, 2))  # the stable offset stays
    monkeypatch.setattr(decisions, "fill_log", lambda *_: filled.append(1))
    bench = OwnerBench()
    state = bench.context.job.new_state(0)
    state.load_position(POSITION)
    decision = PendingDecision(bench.context, 0, TruncationAcceptance("power loss", "alice"))

    async def commit(_decide: object) -> None:
        raise AssertionError("nothing was found that may be committed")

    with pytest.raises(Halted, match="an open transaction lies there") as caught:
        asyncio.run(decision.carry_out_at_opening(state, commit))
    assert (caught.value.reason, filled) == ("log_truncated", [1])
